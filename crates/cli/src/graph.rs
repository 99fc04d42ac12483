//! Graph files: models exported from PyTorch, and what they are fed with.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use phalanx::import::{self, ImportedInput, ImportedModel, StoredDtype, WeightKind};
use phalanx::ir::DType;
use phalanx::nn::OwnedFeed;
use safetensors::SafeTensors;
use serde_json::json;

use crate::failure::Failure;
use crate::output;

/// Show what is in a graph file that was exported from PyTorch: inputs, weights, operators, and what has no counterpart.
///
/// The tensors lie beside it: model.safetensors for model.json.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx import model.json
  phalanx train --graph model.json --feeds batches.safetensors --steps 100 --plan dp2")]
pub struct Args {
    /// The graph file
    #[arg(value_name = "FILE.json")]
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Write the weights of a checkpoint as a module's state_dict: all names, ties and buffers.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx export-torch --graph model.json --checkpoint run --out trained.safetensors")]
pub struct ExportTorchArgs {
    /// The graph file that was trained
    #[arg(long, value_name = "FILE.json")]
    graph: PathBuf,
    /// A checkpoint, or a directory of checkpoints
    #[arg(long, value_name = "DIR")]
    checkpoint: PathBuf,
    /// The file to write
    #[arg(long, value_name = "FILE.safetensors")]
    out: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn bytes_of(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))
}

/// Reads a graph file and the tensors beside it.
pub fn read(path: &Path) -> Result<ImportedModel, Failure> {
    let json = bytes_of(path)?;
    let tensors = bytes_of(&path.with_extension("safetensors"))?;
    import::read(&json, &tensors).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))
}

/// Prints what is in a graph file.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let operators = import::operators(&bytes_of(&args.file)?)
        .map_err(|error| Failure::Input(format!("{}: {error}", args.file.display())))?;
    let model = read(&args.file)?;
    let trained = |kind| model.weights.iter().filter(move |weight| weight.kind == kind);
    let numbers: usize =
        trained(WeightKind::Trained).map(|weight| weight.shape.iter().product::<usize>()).sum();
    if args.json {
        let inputs: Vec<_> = model
            .inputs
            .iter()
            .map(|input| json!({ "name": input.name, "type": input.ty.to_string(), "computed": input.is_computed }))
            .collect();
        let random: Vec<_> = model
            .random
            .iter()
            .map(|layer| json!({ "name": layer.name, "node": layer.node, "rate": layer.rate, "shape": layer.shape, "order": layer.order }))
            .collect();
        output::json(&json!({
            "model": model.name, "inputs": inputs, "parameters": numbers, "states": trained(WeightKind::State).count(),
            "layers": model.train.layers().len(), "evaluation": model.eval.is_some(), "outputs": model.outputs,
            "operators": operators, "random": random,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let tensors = trained(WeightKind::Trained).count();
    output::line(format!(
        "{}: {} parameters in {}",
        model.name,
        output::grouped(numbers as u64),
        output::count(tensors, "tensor")
    ))?;
    for input in &model.inputs {
        let origin = if input.is_computed { ", computed on the host from arguments" } else { "" };
        output::line(format!("{:14}{} {}{origin}", "input", input.name, input.ty))?;
    }
    let kinds =
        [("states", WeightKind::State), ("counters", WeightKind::Counter), ("fixed", WeightKind::Constant)];
    for (word, kind) in kinds.into_iter().filter(|(_, kind)| trained(*kind).count() > 0) {
        output::line(format!("{word:14}{}", output::count(trained(kind).count(), "tensor")))?;
    }
    let text: Vec<String> = operators.iter().map(|(name, count)| format!("{name} {count}")).collect();
    output::line(format!("{:14}{}", "operators", text.join(", ")))?;
    output::line(format!("{:14}{}", "layers", model.train.layers().len()))?;
    Ok(ExitCode::SUCCESS)
}

/// Samples that steps are fed with, from a safetensors file with a tensor for each input.
pub struct FeedFile {
    tensors: Vec<(ImportedInput, Vec<u8>, usize)>,
}

impl FeedFile {
    /// Reads the file and checks it against the inputs.
    pub fn read(path: Option<&Path>, inputs: &[ImportedInput]) -> Result<FeedFile, Failure> {
        let list: Vec<String> = inputs.iter().map(|input| format!("`{}` {}", input.name, input.ty)).collect();
        let Some(path) = path else {
            return Err(Failure::Input(format!(
                "--graph needs --feeds FILE.safetensors with {}, each as many samples long as there are",
                list.join(", ")
            )));
        };
        let wrong = |problem: String| Failure::Input(format!("{}: {problem}", path.display()));
        let bytes = bytes_of(path)?;
        let file = SafeTensors::deserialize(&bytes)
            .map_err(|error| wrong(format!("not a safetensors file: {error}")))?;
        let mut tensors = Vec::new();
        for input in inputs {
            let Ok(view) = file.tensor(&input.name) else {
                return Err(wrong(format!(
                    "it has no tensor `{}`, {}; the graph needs {}",
                    input.name,
                    input.ty,
                    list.join(", ")
                )));
            };
            let dtype = match view.dtype() {
                StoredDtype::F32 => Some(DType::F32),
                StoredDtype::I64 => Some(DType::I64),
                StoredDtype::I32 => Some(DType::I32),
                StoredDtype::BOOL => Some(DType::Bool),
                _ => None,
            };
            let dims = input.ty.shape.dims();
            let fits = dtype == Some(input.ty.dtype)
                && view.shape().len() == dims.len()
                && view.shape().get(1..) == dims.get(1..)
                && view.shape().first().is_none_or(|&rows| rows > 0 && rows.is_multiple_of(dims[0]));
            if !fits {
                let found = format!("{:?}{:?}", view.dtype(), view.shape());
                let wanted = format!("{} with any multiple of its samples", input.ty);
                return Err(wrong(format!("tensor `{}` is {found}, the graph needs {wanted}", input.name)));
            }
            let batches = view.shape().first().map_or(1, |&rows| rows / dims[0]);
            tensors.push((input.clone(), view.data().to_vec(), batches));
        }
        Ok(FeedFile { tensors })
    }

    /// The batch of a step: batches follow each other and begin again.
    pub fn batch(&self, step: u64) -> Vec<(String, OwnedFeed)> {
        let feed = |(input, bytes, batches): &(ImportedInput, Vec<u8>, usize)| {
            let size = input.ty.bytes();
            let at = (step % *batches as u64) as usize * size;
            let bytes = &bytes[at..at + size];
            let values = match input.ty.dtype {
                DType::I64 => {
                    bytes.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b)).collect::<Vec<_>>().into()
                }
                DType::I32 => {
                    bytes.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b)).collect::<Vec<_>>().into()
                }
                DType::Bool => bytes.iter().map(|&byte| byte != 0).collect::<Vec<_>>().into(),
                _ => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect::<Vec<_>>().into(),
            };
            (input.name.clone(), values)
        };
        self.tensors.iter().map(feed).collect()
    }
}

/// Writes the weights of a checkpoint as a state_dict.
pub fn export(args: &ExportTorchArgs) -> Result<ExitCode, Failure> {
    let model = read(&args.graph)?;
    let wrong = |problem: String| Failure::Input(format!("{}: {problem}", args.checkpoint.display()));
    let checkpoint = match args.checkpoint.join("manifest.json").is_file() {
        true => Some(phalanx::ckpt::Checkpoint::open(&args.checkpoint).map_err(phalanx::Error::from)?),
        false => phalanx::ckpt::Checkpoints::open(&args.checkpoint).latest().map_err(phalanx::Error::from)?,
    };
    let Some(checkpoint) = checkpoint else { return Err(wrong("there is no checkpoint".into())) };
    let steps = checkpoint.manifest().run.step;
    let mut tensors: Vec<(String, StoredDtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for weight in &model.weights {
        let bytes = match weight.kind {
            WeightKind::Trained | WeightKind::State => {
                checkpoint.tensor(&weight.name).map_err(phalanx::Error::from)?
            }
            WeightKind::Counter => {
                let counted =
                    weight.bytes.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes) + steps as i64);
                counted.flat_map(i64::to_le_bytes).collect()
            }
            WeightKind::Constant => weight.bytes.clone(),
        };
        for name in [&weight.name].into_iter().chain(&weight.aliases) {
            tensors.push((name.clone(), weight.dtype, weight.shape.clone(), bytes.clone()));
        }
    }
    let mut views = Vec::new();
    for (name, dtype, shape, bytes) in &tensors {
        let view = safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes);
        views.push((name.as_str(), view.map_err(|error| wrong(format!("`{name}`: {error}")))?));
    }
    safetensors::serialize_to_file(views, None, &args.out)
        .map_err(|error| Failure::Input(format!("{}: {error}", args.out.display())))?;
    match args.json {
        true => output::json(&json!({ "out": args.out, "tensors": tensors.len(), "step": steps }))?,
        false => output::line(format!(
            "{} of step {steps} written to {}",
            output::count(tensors.len(), "tensor"),
            args.out.display()
        ))?,
    }
    Ok(ExitCode::SUCCESS)
}
