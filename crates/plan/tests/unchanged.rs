//! The plans of the model zoo as text: presets are computed from a model's structure, and these are what they must give.
//!
//! With `PHALANX_BLESS=1` in the environment the texts are rewritten instead of compared.

use std::path::Path;

use phalanx_ir::graph::Graph;
use phalanx_models::{Lora, ModelConfig, SIZES};
use phalanx_plan::preset;

const PRESETS: &[(&str, usize)] = &[
    ("dp", 2),
    ("fsdp", 2),
    ("zero1", 4),
    ("tp", 2),
    ("tp", 3),
    ("tp", 4),
    ("sp", 2),
    ("sp", 4),
    ("pp", 2),
    ("pp", 4),
    ("fsdp2-tp2", 4),
    ("dp2-tp2-pp2", 8),
    ("dp2-sp2-pp2", 8),
];

/// A change of a family's nano model.
type Change = fn(&mut ModelConfig);

fn untied(config: &mut ModelConfig) {
    match config {
        ModelConfig::Gpt2(config) => config.tied = false,
        ModelConfig::Llama(config) => config.tied = false,
        ModelConfig::Mlp(_) | ModelConfig::Zoo(_) => {}
    }
}

fn tied(config: &mut ModelConfig) {
    match config {
        ModelConfig::Gpt2(config) => config.tied = true,
        ModelConfig::Llama(config) => {
            (config.tied, config.attention_bias, config.mlp_bias) = (true, true, true)
        }
        ModelConfig::Mlp(_) | ModelConfig::Zoo(_) => {}
    }
}

/// Fewer heads of keys than of queries, a vocabulary that does not divide.
fn grouped(config: &mut ModelConfig) {
    match config {
        ModelConfig::Gpt2(config) => (config.vocab, config.dropout) = (257, 0.1),
        ModelConfig::Llama(config) => {
            (config.heads, config.kv_heads, config.head_dim, config.vocab) = (8, 2, 16, 259);
            config.dropout = 0.1;
        }
        ModelConfig::Mlp(_) | ModelConfig::Zoo(_) => {}
    }
}

const ALL: &str = "*.attn.*,*.self_attn.*,*.mlp.*";

/// The rank of adapters, and the layers they are beside.
type Adapters = Option<(usize, &'static str)>;

/// Names of cases, what is changed, and the adapters.
const CASES: &[(&str, Change, Adapters)] = &[
    ("tied", tied, None),
    ("untied", untied, None),
    ("grouped", grouped, None),
    ("lora", tied, Some((4, ""))),
    ("lora-all", untied, Some((6, ALL))),
    ("lora-odd", grouped, Some((3, ALL))),
];

fn graph(family: &str, change: Change, adapters: Adapters, time: usize) -> Graph {
    let mut config = ModelConfig::preset(family, "nano").expect("every family has a nano");
    change(&mut config);
    let model = config.training_graph(16, time).expect("the sizes are legal");
    let Some((rank, patterns)) = adapters else { return model };
    let ours = if family == "gpt2" { "attn" } else { "self_attn" };
    let patterns = patterns.split(',').filter(|text| !text.is_empty());
    let is_ours = |text: &&str| text.contains("mlp") || text.split('.').any(|part| part == ours);
    let patterns = patterns.filter(is_ours).map(String::from).collect();
    Lora { rank, alpha: 8.0, patterns }.adapt(&model).expect("there are linear layers")
}

fn texts(family: &str, change: Change, adapters: Adapters) -> String {
    let context = ModelConfig::preset(family, "nano").expect("a nano").context().expect("a language model");
    let mut texts = String::new();
    // A shorter sequence takes some rows of the position table.
    for time in [context, context / 2] {
        let model = graph(family, change, adapters, time);
        for (name, devices) in PRESETS {
            let plan = preset(name, *devices, &model);
            let text = plan.map_or_else(|error| format!("{error}\n"), |plan| plan.to_text());
            texts.push_str(&format!("## {name} on {devices}, {time} steps\n{text}\n"));
        }
    }
    texts
}

/// Compares what is found with what is recorded under this name, or records it.
fn compare(name: &str, found: &str) {
    let file = format!("{}/tests/plans/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("PHALANX_BLESS").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(Path::new(&file).parent().expect("a folder")).expect("the folder is made");
        return std::fs::write(&file, found).expect("the file is written");
    }
    let wanted = std::fs::read_to_string(&file).expect("the texts are recorded");
    let differs = found.lines().zip(wanted.lines()).find(|(found, wanted)| found != wanted);
    assert_eq!(differs, None, "{name}");
    assert!(found == wanted, "{name}: {} bytes, not {}", found.len(), wanted.len());
}

#[test]
fn plans_of_the_zoo_stay_as_they_are() {
    for family in ["gpt2", "llama"] {
        for (case, change, adapters) in CASES {
            compare(&format!("{family}-{case}"), &texts(family, *change, *adapters));
        }
    }
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Every size, by what its plans hash to.
#[test]
fn plans_of_all_sizes_stay_as_they_are() {
    let mut hashes = String::new();
    for family in ["gpt2", "llama"] {
        for size in SIZES {
            let config = ModelConfig::preset(family, size).unwrap_or_else(|error| panic!("{error}"));
            let model = config.training_graph(8, 128).expect("the sizes are legal");
            for (name, devices) in [("tp2", 2), ("sp4", 4), ("pp2", 2), ("dp2-tp3", 6)] {
                let text = preset(name, devices, &model)
                    .map_or_else(|error| error.to_string(), |plan| plan.to_text());
                hashes.push_str(&format!("{family} {size} {name} {:016x}\n", hash(&text)));
            }
        }
    }
    compare("sizes", &hashes);
}
