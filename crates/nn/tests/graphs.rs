//! What functions build: names, types, modes.

use phalanx_nn::{Activation, BuiltModel, Dense, F32, I64, Init, Net, SelfAttention, Tensor};
use phalanx_nn::{build_evaluation, build_training};

fn ty(built: &BuiltModel, name: &str) -> String {
    let graph = &built.graph;
    graph.ty(graph.find(name).unwrap_or_else(|| panic!("no `{name}` in {graph}"))).to_string()
}

fn lines(built: &BuiltModel) -> Vec<String> {
    built.graph.to_string().lines().map(|line| line.trim().to_string()).collect()
}

#[test]
fn parameters_are_named_by_place_and_start_as_in_torch() {
    let built = build_training("line", 4, |net| {
        let x = net.input("x", F32, [net.batch(), 16]);
        let h = net.at("blocks").at(0).at("fc").linear(&x, Dense::new(8).then(Activation::Relu));
        let h = net.at("out").linear(&h.tanh(), Dense::new(2).bias(false).transposed());
        net.at("norm").layer_norm(&h).square().mean_all()
    })
    .unwrap();
    let text = "graph @line {
%x = input f32[4, 16]
%blocks.0.fc.weight = param init=uniform(0.25) f32[8, 16]
%blocks.0.fc.bias = param init=uniform(0.25) f32[8]
%blocks.0.fc = linear activation=relu %x, %blocks.0.fc.weight, %blocks.0.fc.bias : f32[4, 8]
%blocks.0.fc.tanh = tanh %blocks.0.fc : f32[4, 8]
%out.weight = param init=uniform(0.35355338) f32[8, 2]
%out = linear transposed=true %blocks.0.fc.tanh, %out.weight : f32[4, 2]
%norm.weight = param init=ones f32[2]
%norm.bias = param init=zeros f32[2]
%norm = layer_norm eps=0.00001 %out, %norm.weight, %norm.bias : f32[4, 2]
%norm.square = square %norm : f32[4, 2]
%norm.mean = reduce kind=mean axes=[0, 1] %norm.square : f32[]
return %norm.mean
}";
    let (found, wanted) = (lines(&built), text.lines().collect::<Vec<_>>());
    assert_eq!(found, wanted);
}

#[test]
fn one_function_gives_training_and_evaluation() {
    let model = |net: &Net| {
        let x = net.input("x", F32, [net.batch(), 4]);
        let labels = net.input("labels", I64, [net.batch()]);
        let h = net.at("drop").dropout(0.5, net.at("fc").linear(&x, 3));
        net.output("logits", &h);
        net.metric("accuracy", &h.is_top(&labels).mean_all());
        h.cross_entropy(&labels)
    };
    let (train, eval) = (build_training("m", 2, model).unwrap(), build_evaluation("m", 6, model).unwrap());
    assert!(train.graph.find("drop").is_some());
    assert!(eval.graph.find("drop").is_none());
    assert_eq!(ty(&train, "loss"), "f32[]");
    assert_eq!(train.outputs, [("logits".to_string(), "drop".to_string())]);
    assert_eq!(eval.outputs, [("logits".to_string(), "fc".to_string())]);
    assert_eq!(train.metrics[0].0, "accuracy");
    assert_eq!(train.graph.outputs().len(), 3);
    assert_eq!(train.graph.outputs()[0], train.graph.find("loss").unwrap());
    assert_eq!(ty(&eval, "fc"), "f32[6, 3]");
}

#[test]
fn frozen_places_and_initial_values_reach_below() {
    let built = build_training("m", 2, |net| {
        let net = &net.init(Init::Normal(0.02));
        let table = net.at("table").frozen().embedding(5, 4);
        let x = table.rows(&net.tokens("ids", 3));
        let body = net.at("body").frozen();
        let x = body.at("attn").attention(&x, SelfAttention::new(2).bidirectional());
        table.logits(&net.at("head").linear(&x, 4)).mean_all()
    })
    .unwrap();
    let frozen: Vec<&str> = built.frozen.iter().map(String::as_str).collect();
    assert_eq!(frozen[..3], ["table.weight", "body.attn.q.weight", "body.attn.q.bias"]);
    assert!(frozen.iter().all(|name| !name.starts_with("head")));
    let text = built.graph.to_string();
    assert!(text.contains("%head.weight = param init=normal(0.02) f32[4, 4]"), "{text}");
    assert!(text.contains("%head.bias = param init=zeros f32[4]"), "{text}");
    assert!(text.contains("attention causal=false"), "{text}");
}

#[test]
fn several_losses_are_summed_with_weights_and_each_is_readable() {
    let built = build_training("m", 2, |net| {
        let (x, y) = (net.input("x", F32, [net.batch(), 4]), net.input("y", F32, [net.batch(), 4]));
        let h = net.at("fc").linear(&x, 4);
        let (near, small) = (h.mse(&y), h.abs().mean_all());
        net.metric("near", &near);
        net.metric("small", &small);
        near + 0.1 * small
    })
    .unwrap();
    assert_eq!(built.metrics.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["near", "small"]);
    assert_eq!(built.graph.outputs().len(), 3);
}

#[test]
fn inputs_and_parameters_can_be_outputs() {
    let built = build_training("m", 2, |net| {
        let x = net.input("x", F32, [net.batch(), 1]);
        net.output("given", &x);
        let scale = net.param("scale", [1], Init::Ones);
        net.output("learned", &scale);
        (x * scale).mean_all()
    })
    .unwrap();
    assert_eq!(built.graph.verify(), Ok(()));
    assert_eq!(built.outputs.len(), 2);
}

#[test]
fn operators_take_tensors_references_and_numbers_on_both_sides() {
    let built = build_evaluation("m", 2, |net| -> Vec<Tensor> {
        let x = net.input("x", F32, [net.batch(), 3]);
        let all = [
            &x + &x,
            &x - x.clone(),
            x.clone() * &x,
            x.clone() / x.clone(),
            -&x,
            -x.clone(),
            &x + 1.0,
            x.clone() - 2.0,
            1.0 + &x,
            2.0 - &x,
            3.0 * x.clone(),
            1.0 / x.clone(),
            &x / 4.0,
        ];
        assert!(all.iter().all(|tensor| tensor.dims() == [2, 3]));
        vec![all.iter().skip(1).fold(all[0].clone(), |sum, x| sum + x)]
    })
    .unwrap();
    assert_eq!(built.graph.verify(), Ok(()));
}
