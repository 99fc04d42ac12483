//! Every model of the zoo builds, its samples fit its inputs, and its sizes are read back.

use phalanx_ir::graph::Graph;
use phalanx_ir::{DType, Op};
use serde_json::json;

use super::*;

fn inputs(graph: &Graph) -> Vec<(String, DType, usize)> {
    let inputs = graph.leaves(|op| matches!(op, Op::Input));
    let describe = |value| {
        let ty = graph.ty(value);
        (graph.values()[value].name.clone(), ty.dtype, ty.shape.elements())
    };
    let mut all: Vec<_> = inputs.map(describe).collect();
    all.sort();
    all
}

#[test]
fn samples_fit_the_inputs_of_every_model() {
    for entry in ZOO {
        let model = entry.preset("nano").unwrap();
        let graph = training_graph(entry.name, &*model, 5).unwrap();
        let kind = |(name, data): (String, SampleData)| match data {
            SampleData::F32(values) => (name, DType::F32, values.len()),
            SampleData::I64(values) => (name, DType::I64, values.len()),
        };
        let mut fed: Vec<_> = model.samples(1, 2, 5).into_iter().map(kind).collect();
        fed.sort();
        assert_eq!(fed, inputs(&graph), "{}", entry.name);
        assert_eq!(model.samples(1, 2, 5), model.samples(1, 2, 5), "{}", entry.name);
        assert_ne!(model.samples(1, 2, 5), model.samples(1, 3, 5), "{}", entry.name);
        let read = entry.read(model.sizes()).unwrap();
        assert_eq!(read.sizes(), model.sizes(), "{}", entry.name);
    }
}

#[test]
fn names_are_sorted_and_small_sizes_build() {
    assert!(ZOO.is_sorted_by(|a, b| a.name < b.name));
    for entry in ZOO {
        let model = entry.preset("small").unwrap();
        assert_eq!(
            training_graph(entry.name, &*model, 2).map(|graph| graph.verify()),
            Ok(Ok(())),
            "{entry:?}"
        );
        assert!(entry.preset("huge").is_none());
    }
}

#[test]
fn models_have_the_parameters_of_the_published_ones() {
    let count = |name: &str, size: &str| {
        let graph = training_graph(name, &*ZooEntry::find(name).unwrap().preset(size).unwrap(), 2).unwrap();
        let params = graph.leaves(|op| matches!(op, Op::Param(_)));
        params.map(|value| graph.ty(value).shape.elements() as u64).sum::<u64>()
    };
    // transformers: bert-base-uncased, vit-base-patch16-224, roberta-base, t5-small with their heads.
    assert_eq!(count("bert", "medium"), 109_514_298);
    assert_eq!(count("vit", "medium"), 86_567_656);
    assert_eq!(count("roberta", "medium"), 124_697_433);
    assert_eq!(count("t5", "small"), 60_506_624);
    // torchvision.
    assert_eq!(count("alexnet", "small"), 61_100_840);
    assert_eq!(count("convnext", "small"), 28_589_128);
    assert_eq!(count("inception", "small"), 27_161_264);
    assert_eq!(count("mobilenet", "small"), 2_542_856);
    assert_eq!(count("mobilenet", "medium"), 5_483_032);
    assert_eq!(count("resnext", "medium"), 25_028_904);
    // milesial/Pytorch-UNet with two classes.
    assert_eq!(count("unet", "small"), 31_037_698);
    assert_eq!(count("resnet", "small"), 11_689_512);
    assert_eq!(count("resnet", "medium"), 25_557_032);
}

#[test]
fn impossible_sizes_are_refused() {
    let error = |name: &str, field: &str, value: Value| {
        let entry = ZooEntry::find(name).unwrap();
        let mut sizes = entry.preset("nano").unwrap().sizes();
        sizes[field] = value;
        match entry.read(sizes) {
            Ok(model) => training_graph(name, &*model, 2).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    };
    let heads = error("bert", "heads", json!(3));
    assert_eq!(heads, "bert: `width` 64 is not a multiple of `heads` 3; set `width` to 63 or 66");
    assert_eq!(error("vit", "classes", json!(1)), "vit: `classes` is 1; set it to at least 2");
    assert_eq!(error("dlrm", "top", json!([0])), "dlrm: `top` is 0; set it to at least 1");
    assert!(error("xdl", "entries", json!(usize::MAX)).contains("too large"));
    assert!(error("lstm", "context", json!(300)).contains("256"));
    assert!(error("candle-uno", "wings", json!(2)).contains("unknown field `wings`"));
}
