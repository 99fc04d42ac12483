//! Graphs verify, have the promised inputs and outputs, and as many parameters as the published models.

use phalanx_ir::Op;
use phalanx_ir::graph::Graph;

use crate::*;

fn preset(family: &str, size: &str) -> ModelConfig {
    ModelConfig::preset(family, size).unwrap()
}

fn gpt2() -> Gpt2Config {
    let ModelConfig::Gpt2(config) = preset("gpt2", "nano") else { panic!("gpt2 presets are gpt2") };
    config
}

fn llama() -> LlamaConfig {
    let ModelConfig::Llama(config) = preset("llama", "nano") else { panic!("llama presets are llama") };
    config
}

fn trained(graph: &Graph) -> u64 {
    let params = graph.leaves(|op| matches!(op, Op::Param(_)));
    params.map(|value| graph.ty(value).shape.elements() as u64).sum()
}

fn ty(graph: &Graph, name: &str) -> String {
    let value = graph.find(name).unwrap_or_else(|| panic!("no value {name} in {graph}"));
    graph.ty(value).to_string()
}

#[test]
fn every_preset_gives_verified_graphs_with_the_parameters_it_counts() {
    for family in FAMILIES {
        for size in SIZES {
            let model = preset(family, size);
            for graph in [model.training_graph(2, 16).unwrap(), model.logits_graph(2, 16).unwrap()] {
                assert_eq!(graph.verify(), Ok(()), "{family} {size}");
                assert_eq!(trained(&graph), model.parameters(), "{family} {size}");
                assert_eq!(
                    Graph::parse(graph.to_string(), phalanx_ops::operators()),
                    Ok(graph),
                    "{family} {size}"
                );
            }
        }
    }
}

#[test]
fn parameter_counts_are_the_published_ones() {
    let counts = |family| ["small", "medium", "large", "xl"].map(|size| preset(family, size).parameters());
    assert_eq!(counts("gpt2"), [124_439_808, 354_823_168, 774_030_080, 1_557_611_200]);
    assert_eq!(counts("llama"), [134_515_008, 361_821_120, 1_100_048_384, 6_738_415_616]);
    assert_eq!(preset("mlp", "nano").parameters(), 785 * 128 + 129 * 10);
}

#[test]
fn untied_heads_and_biases_are_counted() {
    let gpt2 = Gpt2Config { tied: false, ..gpt2() };
    let llama = LlamaConfig { tied: false, attention_bias: true, mlp_bias: true, head_dim: 16, ..llama() };
    for model in [ModelConfig::Gpt2(gpt2), ModelConfig::Llama(llama)] {
        let graph = model.training_graph(2, 8).unwrap();
        assert_eq!(graph.verify(), Ok(()));
        assert_eq!(trained(&graph), model.parameters());
        assert_eq!(ty(&graph, "lm_head.weight"), "f32[256, 128]");
    }
}

#[test]
fn gpt2_has_the_names_and_layouts_of_transformers_and_three_projections() {
    let graph = gpt2().training_graph(2, 16).unwrap();
    assert_eq!(ty(&graph, "tokens"), "i64[2, 16]");
    assert_eq!(ty(&graph, "targets"), "i64[2, 16]");
    assert_eq!(ty(&graph, "transformer.wpe.weight"), "f32[128, 128]");
    assert_eq!(ty(&graph, "transformer.wpe.0"), "f32[16, 128]");
    for linear in ["q", "k", "v", "c_proj"] {
        assert_eq!(ty(&graph, &format!("transformer.h.3.attn.{linear}.weight")), "f32[128, 128]");
        assert_eq!(ty(&graph, &format!("transformer.h.3.attn.{linear}.bias")), "f32[128]");
    }
    let heads = graph.find("transformer.h.0.attn.heads").unwrap();
    let names =
        ["query", "key", "value"].map(|part| graph.find(&format!("transformer.h.0.attn.{part}")).unwrap());
    assert_eq!(graph.layers()[graph.values()[heads].layer].operands, names);
    assert_eq!(ty(&graph, "transformer.h.0.attn.key"), "f32[2, 16, 4, 32]");
    assert_eq!(ty(&graph, "transformer.h.0.mlp.c_fc"), "f32[2, 16, 512]");
    assert_eq!(ty(&graph, "transformer.h.3"), "f32[2, 16, 128]");
    assert_eq!(ty(&graph, "logits"), "f32[2, 16, 256]");
    assert_eq!(ty(&graph, "loss"), "f32[]");
    assert_eq!(graph.outputs(), [graph.find("loss").unwrap()]);
    assert_eq!(graph.find("lm_head.weight"), None);
    let full = gpt2().training_graph(2, 128).unwrap();
    assert_eq!(full.find("transformer.wpe.0"), None, "nothing to cut at full length");
}

#[test]
fn llama_has_the_names_and_layouts_of_transformers() {
    let graph = LlamaConfig { head_dim: 16, ..llama() }.logits_graph(2, 16).unwrap();
    assert_eq!(ty(&graph, "model.embed_tokens.weight"), "f32[256, 128]");
    assert_eq!(ty(&graph, "model.layers.0.self_attn.q_proj.weight"), "f32[64, 128]");
    assert_eq!(ty(&graph, "model.layers.3.self_attn.k_proj.weight"), "f32[32, 128]");
    assert_eq!(ty(&graph, "model.layers.0.self_attn.key"), "f32[2, 16, 2, 16]");
    assert_eq!(ty(&graph, "model.layers.0.mlp.gate_proj.weight"), "f32[352, 128]");
    assert_eq!(ty(&graph, "model.layers.0.mlp.down_proj.weight"), "f32[128, 352]");
    assert_eq!(graph.outputs(), [graph.find("logits").unwrap()]);
    assert_eq!(graph.find("targets"), None);
}

#[test]
fn dropout_is_in_training_graphs_only() {
    let config = Gpt2Config { dropout: 0.1, ..gpt2() };
    let count = |graph: Graph| {
        graph.layers().iter().filter(|(_, layer)| layer.op.get::<phalanx_ops::Dropout>().is_some()).count()
    };
    assert_eq!(count(config.training_graph(2, 8).unwrap()), 1 + 2 * 4);
    assert_eq!(count(config.logits_graph(2, 8).unwrap()), 0);
    assert_eq!(count(gpt2().training_graph(2, 8).unwrap()), 0);
}

#[test]
fn an_mlp_regresses_or_classifies() {
    let ModelConfig::Mlp(config) = preset("mlp", "tiny") else { panic!("mlp presets are mlps") };
    let classify = config.training_graph(4).unwrap();
    assert_eq!(ty(&classify, "y"), "i64[4]");
    assert_eq!(ty(&classify, "logits"), "f32[4, 10]");
    let regress = MlpConfig { loss: MlpLoss::Mse, hidden: vec![], ..config }.training_graph(4).unwrap();
    assert_eq!(regress.verify(), Ok(()));
    assert_eq!(ty(&regress, "y"), "f32[4, 10]");
    assert_eq!(ty(&regress, "layers.0.weight"), "f32[10, 784]");
}

#[test]
fn impossible_sizes_are_refused_with_both_values_and_the_fix() {
    let text = |result: Result<Graph, ModelError>| result.unwrap_err().to_string();
    let too_long = text(gpt2().training_graph(2, 129));
    assert_eq!(
        too_long,
        "gpt2: `time` 129 exceeds `context` 128; use at most 128 tokens or a larger context"
    );
    let heads = text(Gpt2Config { heads: 3, ..gpt2() }.logits_graph(1, 1));
    assert_eq!(heads, "gpt2: `width` 128 is not a multiple of `heads` 3; set `width` to 126 or 129");
    let zero = text(llama().training_graph(0, 8));
    assert_eq!(zero, "llama: `batch` is 0; set it to at least 1");
    let grouped = text(LlamaConfig { kv_heads: 3, ..llama() }.logits_graph(1, 1));
    assert_eq!(grouped, "llama: `heads` 4 is not a multiple of `kv_heads` 3; set `heads` to 3 or 6");
    let odd = text(LlamaConfig { head_dim: 5, ..llama() }.logits_graph(1, 1));
    assert_eq!(odd, "llama: `head_dim` 5 is odd but rotary positions pair its halves; set it to 4 or 6");
    let rate = text(Gpt2Config { dropout: 1.0, ..gpt2() }.logits_graph(1, 1));
    assert_eq!(rate, "gpt2: `dropout` is 1; use a value from 0 to below 1");
    let large = text(Gpt2Config { vocab: usize::MAX, ..gpt2() }.logits_graph(1, 1));
    assert!(large.contains("`vocab` 18446744073709551615 elements is too large"), "{large}");
    assert!(ModelConfig::preset("gpt3", "nano").unwrap_err().to_string().contains("gpt2, llama, mlp"));
    assert!(ModelConfig::preset("gpt2", "huge").unwrap_err().to_string().contains("nano, tiny"));
}
