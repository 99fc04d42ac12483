//! The graphs of GPT-2, Llama and MLP stay as they are, byte for byte: weights, checkpoints, dropout masks and hashes of runs
//! depend on their names and their order. `texts.txt` has the checksum and the length of each text.

use std::fmt::Write;

use phalanx_ir::graph::Graph;
use phalanx_ir::{Activation, RopeScaling};
use phalanx_models::{Gpt2Config, LlamaConfig, Lora, MlpConfig, MlpLoss, ModelConfig};

const TEXTS: &str = include_str!("texts.txt");

fn gpt2() -> Gpt2Config {
    match ModelConfig::preset("gpt2", "nano").unwrap() {
        ModelConfig::Gpt2(config) => config,
        other => panic!("{other:?}"),
    }
}

fn llama() -> LlamaConfig {
    match ModelConfig::preset("llama", "nano").unwrap() {
        ModelConfig::Llama(config) => config,
        other => panic!("{other:?}"),
    }
}

/// Every kind of model, by name.
fn models() -> Vec<(&'static str, ModelConfig)> {
    let (gpt2, llama) = (gpt2(), llama());
    let mlp = |hidden: &[usize], loss| MlpConfig {
        inputs: 5,
        hidden: hidden.to_vec(),
        outputs: 3,
        activation: Activation::Relu,
        loss,
    };
    vec![
        ("gpt2", ModelConfig::Gpt2(gpt2.clone())),
        ("gpt2-dropout", ModelConfig::Gpt2(Gpt2Config { dropout: 0.1, ..gpt2.clone() })),
        ("gpt2-untied", ModelConfig::Gpt2(Gpt2Config { tied: false, layers: 1, ..gpt2.clone() })),
        (
            "gpt2-odd",
            ModelConfig::Gpt2(Gpt2Config {
                heads: 2,
                hidden: 96,
                eps: 1e-6,
                activation: Activation::Relu,
                ..gpt2
            }),
        ),
        ("llama", ModelConfig::Llama(llama.clone())),
        ("llama-dropout", ModelConfig::Llama(LlamaConfig { dropout: 0.25, ..llama.clone() })),
        (
            "llama-biased",
            ModelConfig::Llama(LlamaConfig {
                attention_bias: true,
                mlp_bias: true,
                tied: false,
                kv_heads: 1,
                head_dim: 16,
                rope_scaling: RopeScaling::Linear { factor: 2.0 },
                ..llama
            }),
        ),
        ("mlp", ModelConfig::Mlp(mlp(&[7, 9], MlpLoss::CrossEntropy))),
        ("mlp-mse", ModelConfig::Mlp(mlp(&[], MlpLoss::Mse))),
        ("mlp-regression", ModelConfig::Mlp(MlpConfig::regression([1, 4, 1]))),
    ]
}

fn graphs(model: &ModelConfig) -> Vec<(&'static str, Graph)> {
    let mut graphs = vec![
        ("training", model.training_graph(2, 16).unwrap()),
        ("logits", model.logits_graph(3, 8).unwrap()),
    ];
    if let Some(context) = model.context() {
        graphs.push(("full-length", model.training_graph(1, context).unwrap()));
        graphs.push(("lora", Lora { rank: 2, alpha: 4.0, patterns: vec![] }.adapt(&graphs[0].1).unwrap()));
    }
    let cached = [model.decode_graph(32).unwrap(), model.prefill_graph(4, 32).unwrap()];
    for (name, cached) in ["decode", "prefill"].into_iter().zip(cached) {
        graphs.extend(cached.map(|cached| (name, cached.graph)));
    }
    graphs
}

/// 64-bit FNV-1a.
fn checksum(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[test]
fn graphs_have_the_texts_that_they_have_had() {
    let mut found = String::new();
    for (name, model) in models() {
        for (kind, graph) in graphs(&model) {
            let text = graph.to_string();
            writeln!(found, "{name} {kind} {:016x} {}", checksum(&text), text.len()).unwrap();
            if let Some(dir) = std::env::var_os("PHALANX_WRITE_TEXTS") {
                std::fs::write(std::path::Path::new(&dir).join(format!("{name}-{kind}.ir")), text).unwrap();
            }
        }
        if let Some(cached) = model.decode_graph(32).unwrap() {
            let text = format!("{:?}", cached.caches);
            writeln!(found, "{name} caches {:016x} {}", checksum(&text), text.len()).unwrap();
        }
    }
    assert_eq!(found, TEXTS, "set PHALANX_WRITE_TEXTS to a directory to see the texts");
}
