//! Models exported from PyTorch, as graphs.
//!
//! A module is exported once, by the Python package: its operators, as JSON of the format `phalanx.aten/1`, and its tensors,
//! as safetensors. [`read`] turns both into graphs. Nothing here knows PyTorch itself, so a graph file trains where there
//! is no Python.
//!
//! * [`format`](self): what a file holds. * `layout`: tensors of PyTorch as values of the graph, which makes transposes
//!   vanish. * `rules`: what each operator becomes. * `patterns`: groups of operators that are one layer here.
#![forbid(unsafe_code)]

mod call;
mod emit;
mod error;
mod format;
mod layout;
mod mapper;
mod model;
mod patterns;
mod prune;
mod rules;
mod tensors;

use std::collections::BTreeMap;

use phalanx_ir::TensorType;
use phalanx_ir::graph::Graph;
use phalanx_ir::{Op, Shape};

pub use error::{ImportError, UnsupportedOperator};
pub use model::{ImportedInput, ImportedModel, ImportedWeight, RandomLayer, StoredDtype, WeightKind};
pub use rules::supported_operators;

use format::{Exchange, Leaf, Role};
use tensors::Stored;

/// Reads an exchange file and the tensors beside it, a safetensors file.
pub fn read(json: &[u8], tensors: &[u8]) -> Result<ImportedModel, ImportError> {
    let file = parse(json)?;
    let stored = Stored::read(tensors)?;
    let train = mapper::map(&file, &file.train, &stored)?;
    let eval = match &file.eval {
        Some(section) => Some(mapper::map(&file, section, &stored)?),
        None => None,
    };
    let inputs = file.leaves.iter().filter(|leaf| leaf.role.is_fed()).map(input).collect::<Result<_, _>>()?;
    let weights = weights(&file, &stored, &train.graph)?;
    let outputs = file.eval.as_ref().unwrap_or(&file.train).outputs.iter();
    Ok(ImportedModel {
        name: file.name.clone(),
        outputs: outputs.map(|output| mapper::sanitized(&output.name)).collect(),
        train: train.graph,
        eval: eval.map(|mapped| mapped.graph),
        inputs,
        weights,
        random: train.random,
    })
}

/// How often each operator of PyTorch is used by the training graph of an exchange file.
pub fn operators(json: &[u8]) -> Result<BTreeMap<String, usize>, ImportError> {
    Ok(mapper::census(&parse(json)?.train))
}

fn parse(json: &[u8]) -> Result<Exchange, ImportError> {
    let wrong = |place: String, reason: String| ImportError::Format { place, reason };
    // The version first, since other versions have other fields.
    let value: serde_json::Value =
        serde_json::from_slice(json).map_err(|error| wrong(".".into(), error.to_string()))?;
    let version = value.get("version").and_then(serde_json::Value::as_str).unwrap_or_default().to_string();
    if version != format::VERSION {
        return Err(ImportError::Version { found: version, known: format::VERSION });
    }
    let file: Exchange = serde_path_to_error::deserialize(value)
        .map_err(|error| wrong(error.path().to_string(), error.inner().to_string()))?;
    let mut names = std::collections::HashSet::new();
    for leaf in &file.leaves {
        if !names.insert(mapper::sanitized(&leaf.name)) {
            return Err(wrong("leaves".into(), format!("there are two called `{}`", leaf.name)));
        }
    }
    let sections = [Some(&file.train), file.eval.as_ref()];
    for node in sections.into_iter().flatten().flat_map(|section| &section.nodes) {
        let unbounded = node.results.iter().find(|typed| !Shape::new(&typed.shape[..]).is_bounded());
        if let Some(typed) = unbounded {
            return Err(wrong(
                format!("node `{}`", node.name),
                format!("no tensor has the shape {:?}", typed.shape),
            ));
        }
    }
    Ok(file)
}

fn input(leaf: &Leaf) -> Result<ImportedInput, ImportError> {
    let Some(dtype) = tensors::dtype(&leaf.dtype) else {
        let problem =
            format!("inputs of type {} are not supported: use float32, int64, int32 or bool", leaf.dtype);
        return Err(ImportError::Tensor { name: leaf.name.clone(), problem });
    };
    let ty = TensorType::new(dtype, leaf.shape.clone());
    Ok(ImportedInput { name: mapper::sanitized(&leaf.name), ty, is_computed: leaf.role == Role::Computed })
}

/// The tensors of the `state_dict`.
fn weights(file: &Exchange, stored: &Stored<'_>, train: &Graph) -> Result<Vec<ImportedWeight>, ImportError> {
    let mut all = Vec::new();
    for leaf in &file.leaves {
        let kind = match leaf.role {
            Role::Input | Role::Computed | Role::Constant => continue,
            // A parameter that does not reach the loss has no gradient.
            Role::Param | Role::State => {
                let used = train.find(&mapper::sanitized(&leaf.name)).map(|value| train.op_of(value));
                match used {
                    Some(Op::Param(_)) => WeightKind::Trained,
                    Some(Op::State(_)) => WeightKind::State,
                    _ => WeightKind::Constant,
                }
            }
            Role::Counter => WeightKind::Counter,
            Role::Fixed => WeightKind::Constant,
        };
        let constant = stored.of(leaf)?;
        all.push(ImportedWeight {
            name: leaf.name.clone(),
            aliases: leaf.aliases.clone(),
            kind,
            dtype: constant.dtype,
            shape: constant.shape,
            bytes: constant.bytes,
        });
    }
    Ok(all)
}
