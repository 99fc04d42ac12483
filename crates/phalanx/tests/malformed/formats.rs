//! Every format that a user can hand us, with its reader. The gallery of malformed files and the fuzz targets share it.
//!
//! A reader goes as far as a command goes before a step runs. What it refuses it refuses with the message that people see;
//! what it accepts it prints, where the format can be printed, and asserts that the text reads as the same thing. Any panic
//! is a bug, also one in a library that reads for us.

use std::fmt::{Debug, Display};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use phalanx::artifact::{Artifact, ArtifactFiles};
use phalanx::ckpt::{Checkpoint, Manifest, RunState};
use phalanx::data::{DataSource, Dataset, Tokenizer};
use phalanx::internals::costs::CostTable;
use phalanx::ir::graph::Graph;
use phalanx::ir::parallel::ParallelGraph;
use phalanx::ir::sharded::ShardedGraph;
use phalanx::ir::tasks::TaskGraph;
use phalanx::ir::text::ParseError;
use phalanx::job::Drill;
use phalanx::models::{IGNORE_LABEL, ModelConfig};
use phalanx::plan;
use phalanx::train::TrainConfig;
use phalanx::{Certificate, Cluster, DeviceModel, Flavor, Link, Plan, PlanChoice, Program, Schedule, hf};
use phalanx_bench::{golden, parity};
use phalanx_inductor::cases::{Keys, answer};
use phalanx_inductor::mode::PassMode;
use safetensors::tensor::{Dtype, TensorView};

/// Reads a file's bytes; an error is the message.
pub type Reader = fn(&[u8]) -> Result<(), String>;

/// The formats by name: a folder of the gallery and a fuzz target each.
pub const FORMATS: &[(&str, Reader)] = &[
    ("graph", graph),
    ("parallel", parallel),
    ("sharded", sharded),
    ("tasks", tasks),
    ("schedule", schedule),
    ("program", program),
    ("certificate", certificate),
    ("artifact", artifact),
    ("plan", plan),
    ("train_config", train_config),
    ("model_config", model_config),
    ("weights", weights),
    ("shards", shards),
    ("batch", batch),
    ("tokenizer", tokenizer),
    ("text", text),
    ("json_lines", json_lines),
    ("operator_cases", operator_cases),
    ("schedule_cases", schedule_cases),
    ("costs", costs),
    ("link", link),
    ("cluster", cluster),
    ("device", device),
    ("memory", memory),
    ("drill", drill),
    ("preset", preset),
    ("manifest", manifest),
    ("torch_graph", torch_graph),
];

/// A model (`phalanx explain`).
pub fn graph(bytes: &[u8]) -> Result<(), String> {
    printed(bytes, |text| Graph::parse(text, phalanx::ops::operators()))?.verify().map_err(first)
}

/// A model on devices (`phalanx opt`).
pub fn parallel(bytes: &[u8]) -> Result<(), String> {
    printed(bytes, |text| ParallelGraph::parse(text, phalanx::ops::operators()))?.verify().map_err(first)
}

/// Tasks on tiled tensors (`phalanx opt`).
pub fn sharded(bytes: &[u8]) -> Result<(), String> {
    printed(bytes, str::parse::<ShardedGraph>)?.verify().map_err(first)
}

/// Tasks on tiles (`phalanx opt`).
pub fn tasks(bytes: &[u8]) -> Result<(), String> {
    printed(bytes, str::parse::<TaskGraph>)?.verify().map_err(first)
}

/// Lane orders and places; what they mean depends on the tasks they belong to.
pub fn schedule(bytes: &[u8]) -> Result<(), String> {
    printed(bytes, str::parse::<Schedule>).map(drop)
}

/// A frozen step.
pub fn program(bytes: &[u8]) -> Result<(), String> {
    printed(bytes, str::parse::<Program>).map(drop)
}

/// The parts of a job (`phalanx verify`).
pub fn certificate(bytes: &[u8]) -> Result<(), String> {
    printed(bytes, str::parse::<Certificate>).map(drop)
}

/// A file of an artifact, whose name is the first line, in an artifact whose checksums are adapted to it (`phalanx run`).
pub fn artifact(bytes: &[u8]) -> Result<(), String> {
    let end =
        bytes.iter().position(|&byte| byte == b'\n').ok_or("the first line must be the name of a file")?;
    let name = utf8(&bytes[..end])?;
    let mut files = ARTIFACT.clone();
    if !files.0.contains_key(name) {
        return Err(format!("`{name}` is no file of the artifact"));
    }
    files.replace(name, bytes[end + 1..].to_vec()).map_err(message)?;
    let loaded = Artifact::of_files(&files).map_err(message)?;
    let again = loaded.to_files().expect("what was loaded can be written");
    Artifact::of_files(&again).map(drop).map_err(|error| panic!("what was written cannot be loaded: {error}"))
}

/// A plan file (`--plan FILE`), and what it makes of a small model.
pub fn plan(bytes: &[u8]) -> Result<(), String> {
    let plan = Plan::parse(utf8(bytes)?).map_err(message)?;
    assert_eq!(Plan::parse(&plan.to_text()).as_ref(), Ok(&plan), "a written plan reads as itself");
    let graph = plan::parallelize(&SMALL, &plan).map_err(message)?;
    graph.verify().map_err(first)
}

/// A training run (`phalanx train --config FILE`).
pub fn train_config(bytes: &[u8]) -> Result<(), String> {
    let path = place("train", "run.toml", bytes);
    let config = TrainConfig::read(&path).map_err(message)?;
    let model = config.build_model(256).map_err(message)?;
    let graph = model.training_graph(config.batch, config.context_of(&model)).map_err(message)?;
    // The files that it names are formats of their own.
    let config = config.costs(None);
    config.settings(&graph).map(drop).map_err(message)
}

/// `config.json` of a Hugging Face directory.
pub fn model_config(bytes: &[u8]) -> Result<(), String> {
    let path = place("model", "config.json", bytes);
    let model = hf::read_config(&folder(&path)).map_err(message)?;
    hf::tensors(&model).map(drop).map_err(message)
}

/// `model.safetensors` of a Hugging Face directory.
pub fn weights(bytes: &[u8]) -> Result<(), String> {
    let path = place("weights", "model.safetensors", bytes);
    let wanted = hf::tensors(&TINY).map_err(message)?;
    hf::read_weights(&folder(&path), &wanted).map(drop).map_err(message)
}

/// `model.safetensors.index.json` of a Hugging Face directory in which no shard is.
pub fn shards(bytes: &[u8]) -> Result<(), String> {
    let path = place("shards", "model.safetensors.index.json", bytes);
    hf::read_weights(&folder(&path), &[]).map(drop).map_err(message)
}

/// Tokens and targets (`phalanx step --batch FILE`).
pub fn batch(bytes: &[u8]) -> Result<(), String> {
    let batch = parity::read_batch(&place("batch", "batch.safetensors", bytes)).map_err(message)?;
    assert_eq!(Some(batch.tokens.len()), batch.rows.checked_mul(batch.time), "a batch has its elements");
    Ok(())
}

/// A `tokenizer.json` (`--tokenizer FILE`).
pub fn tokenizer(bytes: &[u8]) -> Result<(), String> {
    let tokenizer = Tokenizer::open(&place("tokenizer", "tokenizer.json", bytes)).map_err(message)?;
    let tokens = tokenizer.encode("Three words, and é.\n").map_err(message)?;
    assert!(
        tokens.iter().all(|&token| (token as usize) < tokenizer.vocab()),
        "tokens are below the vocabulary"
    );
    tokenizer.decode(&tokens).map(drop).map_err(message)
}

/// Text to train on (`--data FILE`).
pub fn text(bytes: &[u8]) -> Result<(), String> {
    let data = Dataset::open_text(&place("text", "text.txt", bytes), 0).map_err(message)?;
    data.check(4).map_err(message)?;
    let (mut tokens, mut targets) = ([0; 8], [0; 8]);
    data.batch(1, 2, 4, &mut tokens, &mut targets);
    assert_eq!(tokens[1..4], targets[..3], "a target is the next token");
    Ok(())
}

/// Lines of JSON to train the answers of (`--data FILE.jsonl --mask-prompt`).
pub fn json_lines(bytes: &[u8]) -> Result<(), String> {
    let path = place("json_lines", "lines.jsonl", bytes);
    let source = DataSource { mask_prompt: true, ..DataSource::new(&path) };
    let data = Dataset::open(&source, 0, &mut |_, _| ()).map_err(message)?;
    data.check(4).map_err(message)?;
    let (mut tokens, mut targets) = ([0; 8], [0; 8]);
    data.batch(1, 2, 4, &mut tokens, &mut targets);
    let is_next = |(token, target): (&i64, &i64)| [*token, IGNORE_LABEL].contains(target);
    assert!(tokens[1..4].iter().zip(&targets).all(is_next), "a target is the next token, or none");
    assert!(targets[..4].iter().any(|&target| target != IGNORE_LABEL), "a window has a target");
    Ok(())
}

/// What operators give (`phalanx doctor --ops FILE`).
pub fn operator_cases(bytes: &[u8]) -> Result<(), String> {
    for case in golden::read_cases(utf8(bytes)?).map_err(message)? {
        case.run(Flavor::Reference, 1).map_err(message)?;
    }
    Ok(())
}

/// Lists for the overlap passes (`phalanx schedule FILE`).
pub fn schedule_cases(bytes: &[u8]) -> Result<(), String> {
    for line in bytes.split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
        for mode in [PassMode::Reference, PassMode::Newer, PassMode::Fixed] {
            answer(line, &Keys::default(), mode).map_err(message)?;
        }
    }
    Ok(())
}

/// Measured times of kernels (`--costs FILE`).
pub fn costs(bytes: &[u8]) -> Result<(), String> {
    let path = Path::new("costs.json");
    let cost_table = CostTable::parse(utf8(bytes)?, path).map_err(message)?;
    let again = CostTable::parse(&cost_table.to_text(), path).map_err(message);
    assert_eq!(again.as_ref(), Ok(&cost_table), "a written cost_table reads as itself");
    Ok(())
}

/// `--link`.
pub fn link(bytes: &[u8]) -> Result<(), String> {
    let link: Link = utf8(bytes)?.parse().map_err(message)?;
    link.occupancy(u64::MAX);
    let again: Link = link.to_string().parse().map_err(message)?;
    assert!((again.bytes_per_second / link.bytes_per_second - 1.0).abs() < 1e-12, "{link} reads as {again}");
    Ok(())
}

/// `--cluster`.
pub fn cluster(bytes: &[u8]) -> Result<(), String> {
    let cluster = Cluster::parse(utf8(bytes)?).map_err(message)?;
    let last = cluster.devices as u32 - 1;
    assert!(cluster.topology.level(0, last) < cluster.topology.levels().len(), "{}", cluster.draw());
    Ok(())
}

/// `simulate --device`.
pub fn device(bytes: &[u8]) -> Result<(), String> {
    DeviceModel::parse(utf8(bytes)?).map(drop).map_err(message)
}

/// `--memory`.
pub fn memory(bytes: &[u8]) -> Result<(), String> {
    let config = TrainConfig::default().memory(Some(utf8(bytes)?.into()));
    config.settings(&SMALL).map(drop).map_err(message)
}

/// `--drill`.
pub fn drill(bytes: &[u8]) -> Result<(), String> {
    utf8(bytes)?.parse::<Drill>().map(drop).map_err(message)
}

/// The name of a preset (`--plan NAME`), and what it makes of a small model.
pub fn preset(bytes: &[u8]) -> Result<(), String> {
    let choice = PlanChoice::default().plan(Some(utf8(bytes)?.into()));
    let plan = choice.resolve(&SMALL).map_err(message)?;
    plan::parallelize(&SMALL, &plan).map(drop).map_err(message)
}

/// `manifest.json` of a checkpoint (`phalanx ckpt show`).
pub fn manifest(bytes: &[u8]) -> Result<(), String> {
    let path = place("checkpoint", "manifest.json", bytes);
    let checkpoint = Checkpoint::open(folder(&path)).map_err(message)?;
    let written = checkpoint.manifest().to_text().expect("what was read can be written");
    let again = Manifest::parse(&written).expect("what was written can be read");
    // Descriptions of model and run are JSON of any kind, whose numbers need not keep their last bit.
    let run = RunState {
        model: again.run.model.clone(),
        config: again.run.config.clone(),
        ..checkpoint.manifest().run.clone()
    };
    assert_eq!(
        again,
        Manifest { run, ..checkpoint.manifest().clone() },
        "a written manifest reads as itself"
    );
    Ok(())
}

/// An artifact for files that need the others.
static ARTIFACT: LazyLock<ArtifactFiles> = LazyLock::new(|| {
    let config = TrainConfig::default().layers(Some(1)).heads(Some(1)).width(Some(4)).context(Some(4));
    let config = config.batch(2).plan(Some("dp2".into())).cores_per_device(1).hidden(Some(4));
    let artifact = Artifact::compile(config, None, &mut |_| ()).expect("the run compiles");
    artifact.to_files().expect("it can be written")
});

/// A graph exported from PyTorch (`phalanx train --graph`), with zeros for the tensors beside it.
pub fn torch_graph(bytes: &[u8]) -> Result<(), String> {
    let document: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
    let leaves = document["leaves"].as_array().cloned().unwrap_or_default();
    let mut zeros: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for leaf in leaves.iter().filter(|leaf| leaf["role"] != "input") {
        let shape: Vec<usize> = serde_json::from_value(leaf["shape"].clone()).unwrap_or_default();
        let count = shape.iter().fold(1_usize, |product, &extent| product.saturating_mul(extent));
        let (dtype, size) = match leaf["dtype"].as_str().unwrap_or_default() {
            "i64" => (Dtype::I64, 8),
            "i32" => (Dtype::I32, 4),
            "bool" => (Dtype::BOOL, 1),
            _ => (Dtype::F32, 4),
        };
        let name = leaf["name"].as_str().unwrap_or_default().to_string();
        if count <= 1 << 16 && zeros.len() < 64 && zeros.iter().all(|other| other.0 != name) {
            zeros.push((name, dtype, shape, vec![0; count * size]));
        }
    }
    let views = zeros.iter().map(|(name, dtype, shape, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).expect("its bytes fit"))
    });
    let tensors = safetensors::serialize(views, None).map_err(message)?;
    let model = phalanx::import::read(bytes, &tensors).map_err(message)?;
    model.train.verify().map_err(first)
}

/// A model for what needs one.
static SMALL: LazyLock<Graph> = LazyLock::new(|| TINY.training_graph(4, 4).expect("the sizes fit"));

static TINY: LazyLock<ModelConfig> = LazyLock::new(|| {
    let (layers, heads, width, context) = (Some(2), Some(2), Some(8), Some(4));
    let config = TrainConfig::default()
        .model("llama".into())
        .layers(layers)
        .heads(heads)
        .width(width)
        .context(context);
    config.build_model(8).expect("the sizes fit")
});

/// What a text stands for, if it prints as a text that stands for the same. Debug output is compared: NaN is no NaN's equal.
fn printed<T: Display + Debug>(
    bytes: &[u8],
    parse: impl Fn(&str) -> Result<T, ParseError>,
) -> Result<T, String> {
    let value = parse(utf8(bytes)?).map_err(message)?;
    let text = value.to_string();
    let again = parse(&text).unwrap_or_else(|error| panic!("printed text does not parse: {error}\n{text}"));
    assert_eq!(format!("{again:?}"), format!("{value:?}"), "printed text parses as itself");
    Ok(value)
}

fn utf8(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|error| format!("byte {} is not UTF-8", error.valid_up_to()))
}

fn first<E: Display>(errors: Vec<E>) -> String {
    message(&errors[0])
}

/// An error as people see it, without the folder that only this process has.
fn message(error: impl Display) -> String {
    error.to_string().replace(&format!("{}/", scratch().display()), "")
}

/// Puts a file where a reader opens it.
pub fn place(folder: &str, name: &str, bytes: &[u8]) -> PathBuf {
    let folder = scratch().join(folder);
    let path = folder.join(name);
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&path, bytes))
        .expect("the scratch folder is writable");
    path
}

fn folder(path: &Path) -> PathBuf {
    path.parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// A folder of this process.
pub fn scratch() -> PathBuf {
    std::env::temp_dir().join(format!("phalanx-formats-{}", std::process::id()))
}
