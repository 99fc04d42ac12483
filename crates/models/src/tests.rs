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

fn decoder(family: DecoderFamily) -> LlamaConfig {
    let ModelConfig::Llama(config) = preset(family.name(), "nano") else { panic!("{family:?} is a decoder") };
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
            let Ok(model) = ModelConfig::preset(family, size) else { continue };
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
    let two = |family| ["small", "medium"].map(|size| preset(family, size).parameters());
    assert_eq!(two("mistral"), [7_248_023_552, 12_247_782_400]);
    assert_eq!(counts("qwen2"), [494_032_768, 1_543_714_304, 7_615_616_512, 72_706_203_648]);
    assert_eq!(counts("qwen3"), [596_049_920, 1_720_574_976, 4_022_468_096, 8_190_735_360]);
    assert_eq!(two("phi3"), [3_821_079_552, 13_960_238_080]);
    assert_eq!(counts("olmo2"), [1_484_916_736, 7_298_617_344, 13_716_198_400, 32_234_279_936]);
    assert_eq!(two("gemma"), [2_506_172_416, 8_537_680_896]);
    assert_eq!(counts("gpt_neox"), [162_322_944, 405_334_016, 1_414_647_808, 6_857_302_016]);
    assert_eq!(two("mixtral"), [46_702_792_704, 140_630_071_296]);
    let error = ModelConfig::preset("gemma", "xl").unwrap_err().to_string();
    assert_eq!(error, "model `gemma` has no size `xl`; use one of nano, tiny, small, medium");
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

#[test]
fn families_have_the_names_of_transformers() {
    let names = |family| {
        let graph = LlamaConfig { layers: 1, tied: false, ..decoder(family) }.logits_graph(1, 4).unwrap();
        let params = graph.leaves(|op| matches!(op, Op::Param(_)));
        let of_block = |name: &str| Some(name.split_once("layers.0.")?.1.to_string());
        params.filter_map(|value| of_block(&graph.values()[value].name)).collect::<Vec<_>>()
    };
    let weights = |names: &[&str]| names.iter().map(|name| format!("{name}.weight")).collect::<Vec<_>>();
    let mlp = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];
    let plain = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"];
    let before = [&["input_layernorm"][..], &plain, &["post_attention_layernorm"], &mlp].concat();
    for family in ["mistral", "phi3", "gemma"] {
        assert_eq!(names(family.parse().unwrap()), weights(&before), "{family}");
    }
    let [q, k, v, o] = plain;
    let (q_norm, k_norm) = ("self_attn.q_norm", "self_attn.k_norm");
    let qwen3 = [&["input_layernorm", q, q_norm, k, k_norm, v, o, "post_attention_layernorm"], &mlp[..]];
    assert_eq!(names(DecoderFamily::Qwen3), weights(&qwen3.concat()));
    let olmo2 = [
        &[q, q_norm, k, k_norm, v, o, "post_attention_layernorm"],
        &mlp[..],
        &["post_feedforward_layernorm"],
    ];
    assert_eq!(names(DecoderFamily::Olmo2), weights(&olmo2.concat()));
    let biases: Vec<String> =
        names(DecoderFamily::Qwen2).into_iter().filter(|name| name.ends_with(".bias")).collect();
    assert_eq!(biases, [q, k, v].map(|name| format!("{name}.bias")));
    let mixtral = names(DecoderFamily::Mixtral);
    assert!(mixtral.contains(&"block_sparse_moe.gate.weight".into()), "{mixtral:?}");
    assert!(mixtral.contains(&"block_sparse_moe.experts.3.w2.weight".into()), "{mixtral:?}");
    let neox = names(DecoderFamily::GptNeox);
    assert!(neox.contains(&"attention.dense.bias".into()) && neox.contains(&"mlp.dense_4h_to_h.bias".into()));
}

#[test]
fn what_a_family_does_not_have_is_refused() {
    let text = |config: LlamaConfig, time| config.logits_graph(1, time).unwrap_err().to_string();
    let llama = text(LlamaConfig { window: "4".parse().ok(), ..llama() }, 2);
    assert_eq!(llama, "llama: `window` is 4; this family has none: leave it out");
    let mistral = LlamaConfig { window: "5".parse().ok(), ..decoder(DecoderFamily::Mistral) };
    assert_eq!(mistral.logits_graph(1, 5).unwrap().verify(), Ok(()));
    assert!(mistral.logits_graph(1, 6).unwrap().to_string().contains("window=5"));
    let long = mistral.decode_graph(6).unwrap_err().to_string();
    assert!(long.starts_with("mistral: 6 tokens exceed the sliding window of 5 tokens"), "{long}");
    let late = LlamaConfig { window: "5,4".parse().ok(), ..mistral };
    assert!(late.decode_graph(6).is_ok(), "no layer has the window");
    let qwen2 = text(LlamaConfig { attention_bias: false, ..decoder(DecoderFamily::Qwen2) }, 2);
    assert_eq!(qwen2, "qwen2: `attention_bias` is false; it is always true in this family");
    let neox = text(LlamaConfig { head_dim: 16, ..decoder(DecoderFamily::GptNeox) }, 2);
    assert_eq!(neox, "gpt_neox: `head_dim` is 16; all 4 heads together must have the width 128");
    let experts = Some(RoutedExperts { count: 3, per_token: 4, balance: 0.0 });
    let mixtral = text(LlamaConfig { experts, ..decoder(DecoderFamily::Mixtral) }, 2);
    assert!(mixtral.starts_with("mixtral: `experts` is 3,4; use COUNT,PER_TOKEN"), "{mixtral}");
    let padding = text(LlamaConfig { padding: Some(256), ..decoder(DecoderFamily::Gemma) }, 2);
    assert_eq!(padding, "gemma: `padding` is 256; use a token below `vocab` 256");
    let rotary = text(LlamaConfig { rotary_dim: Some(34), ..decoder(DecoderFamily::Phi3) }, 2);
    assert_eq!(rotary, "phi3: `rotary_dim` is 34; use at most `head_dim` 32");
}

#[test]
fn windows_and_experts_are_written_as_they_are_read() {
    for text in ["4096", "7,28"] {
        assert_eq!(text.parse::<SlidingWindow>().unwrap().to_string(), text);
    }
    for text in ["8,2", "8,2,0.02"] {
        assert_eq!(text.parse::<RoutedExperts>().unwrap().to_string(), text);
    }
    for text in ["", "0", "4,", "x"] {
        assert!(text.parse::<SlidingWindow>().is_err(), "{text}");
    }
    for text in ["8", "2,3", "4,0", "4,2,-1", "4,2,nan", "4,2,1,1"] {
        assert!(text.parse::<RoutedExperts>().is_err(), "{text}");
    }
}
