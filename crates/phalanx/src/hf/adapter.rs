//! Low-rank adapters: added into the weights of their model, or written apart as PEFT reads them.
//!
//! PEFT adapts a tensor of the file as a whole. Where the model has parts of one apart, such as GPT-2's query, key and value, their
//! adapters become one of the sum of their ranks: the factors A stand one below the other, and each factor B in the rows of
//! its part and the columns of its A, with zeros elsewhere. That is the same function.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use phalanx_ir::Shape;
use phalanx_models::{AdaptedModule, Lora, ModelConfig};
use serde_json::{Map, Value, json};

use super::write::{Beside, Tensor, WriteError};
use super::{Mismatch, SaveDtype, Stored, tensors};

/// Parameters by name.
type Weights = BTreeMap<String, Vec<f32>>;

/// Adds the adapters among `weights` into those of their layers: the weights of the model without adapters.
pub fn merge_adapters(model: &ModelConfig, lora: &Lora, mut weights: Weights) -> Result<Weights, WriteError> {
    for module in lora.modules(&model.logits_graph(1, 1)?)? {
        let [down, up] = take_factors(model, lora, &module, &mut weights)?;
        // A weight that does not fit is found when the model is written.
        let elements = module.inputs * module.outputs;
        let weight =
            weights.get_mut(&format!("{}.weight", module.name)).filter(|weight| weight.len() == elements);
        let Some(weight) = weight else { continue };
        for (index, weight) in weight.iter_mut().enumerate() {
            let (row, column) = match module.transposed {
                true => (index % module.outputs, index / module.outputs),
                false => (index / module.inputs, index % module.inputs),
            };
            let product = |rank: usize| {
                f64::from(up[row * lora.rank + rank]) * f64::from(down[rank * module.inputs + column])
            };
            let sum: f64 = (0..lora.rank).map(product).sum();
            *weight = (f64::from(*weight) + f64::from(lora.scale()) * sum) as f32;
        }
    }
    Ok(weights)
}

/// Both factors of a layer's adapter, taken out.
fn take_factors(
    model: &ModelConfig,
    lora: &Lora,
    module: &AdaptedModule,
    weights: &mut Weights,
) -> Result<[Vec<f32>; 2], WriteError> {
    let mut mismatch = Mismatch::default();
    let shapes = [("A", [lora.rank, module.inputs]), ("B", [module.outputs, lora.rank])];
    let factors = shapes.map(|(factor, shape)| {
        let (name, shape) = (format!("{}.lora_{factor}.weight", module.name), Shape::from(shape));
        match weights.remove(&name) {
            Some(values) if values.len() == shape.elements() => return values,
            Some(values) => mismatch.reshaped.push((name, Shape::from([values.len()]), shape)),
            None => mismatch.missing.push((name, shape)),
        }
        Vec::new()
    });
    match mismatch.is_empty() {
        true => Ok(factors),
        false => Err(WriteError::Mismatch { family: model.family(), mismatch: Box::new(mismatch) }),
    }
}

/// An adapter as PEFT has it.
struct PeftAdapter {
    /// The layer's name in transformers.
    module: String,
    rank: usize,
    inputs: usize,
    outputs: usize,
    down: Vec<f32>,
    up: Vec<f32>,
}

/// Writes the adapters among `weights` as `adapter_config.json` and `adapter_model.safetensors` into `dir`, which is made
/// if need be. `base` is the directory of the model they belong to.
pub fn write_adapters(
    dir: &Path,
    model: &ModelConfig,
    lora: &Lora,
    base: &Path,
    mut weights: Weights,
) -> Result<(), WriteError> {
    let stored = tensors(model)?;
    let modules = lora.modules(&model.logits_graph(1, 1)?)?;
    let mut adapters: Vec<PeftAdapter> = Vec::new();
    for module in &modules {
        let [down, up] = take_factors(model, lora, module, &mut weights)?;
        let (name, outputs, rows) = place(&stored, module);
        let at = adapters.iter().position(|adapter| adapter.module == name).unwrap_or(adapters.len());
        if at == adapters.len() {
            let (inputs, down, up) = (module.inputs, Vec::new(), Vec::new());
            adapters.push(PeftAdapter { module: name, rank: 0, inputs, outputs, down, up });
        }
        adapters[at].append(lora.rank, &down, &rows, &up);
    }
    fs::create_dir_all(dir).map_err(|source| WriteError::Write { path: dir.into(), source })?;
    let config = Beside::new(dir.join("adapter_config.json"));
    let json = adapter_config(model, lora, base, &stored, &adapters);
    config.done(fs::write(&config.temporary, format!("{json:#}\n")))?;
    let file = Beside::new(dir.join("adapter_model.safetensors"));
    file.serialize(adapters.iter().flat_map(PeftAdapter::tensors).collect(), &config)?;
    config.commit()
}

/// Where the layer of an adapter lies: the layer's name in transformers, all outputs there, and the place of each of the
/// adapter's outputs among them.
fn place(stored: &[Stored], module: &AdaptedModule) -> (String, usize, Vec<usize>) {
    let weight = format!("{}.weight", module.name);
    let part = |stored: &Stored| stored.parts().iter().position(|(part, _)| *part == weight);
    let holder = stored.iter().find_map(|stored| Some((stored, part(stored)?)));
    let Some((holder, part)) = holder.filter(|(holder, _)| holder.parts().len() > 1) else {
        return (module.name.clone(), module.outputs, (0..module.outputs).collect());
    };
    let name = holder.name().strip_suffix(".weight").unwrap_or(holder.name());
    let outputs = holder.shape().dims()[usize::from(module.transposed)];
    (name.to_string(), outputs, (0..module.outputs).map(|row| holder.position(part, row)).collect())
}

impl PeftAdapter {
    /// Adds an adapter for the outputs at `rows`.
    fn append(&mut self, rank: usize, down: &[f32], rows: &[usize], up: &[f32]) {
        let (before, after) = (self.rank, self.rank + rank);
        let mut wider = vec![0.0; self.outputs * after];
        if before > 0 {
            for (wide, row) in wider.chunks_exact_mut(after).zip(self.up.chunks_exact(before)) {
                wide[..before].copy_from_slice(row);
            }
        }
        for (&row, own) in rows.iter().zip(up.chunks_exact(rank)) {
            wider[row * after + before..][..rank].copy_from_slice(own);
        }
        (self.rank, self.up) = (after, wider);
        self.down.extend_from_slice(down);
    }

    fn tensors(&self) -> [(String, Tensor<'_>); 2] {
        let factors =
            [("A", [self.rank, self.inputs], &self.down[..]), ("B", [self.outputs, self.rank], &self.up[..])];
        factors.map(|(factor, shape, values)| {
            let key = format!("base_model.model.{}.lora_{factor}.weight", self.module);
            let (stored, dtype) = (Stored::whole(key.clone(), Shape::from(shape)), SaveDtype::F32);
            (key, Tensor { stored, parts: vec![values], dtype })
        })
    }
}

/// What PEFT reads beside the tensors.
fn adapter_config(
    model: &ModelConfig,
    lora: &Lora,
    base: &Path,
    stored: &[Stored],
    adapters: &[PeftAdapter],
) -> Value {
    let usual = adapters.first().map_or(lora.rank, |adapter| adapter.rank);
    let alpha = |rank: usize| f64::from(lora.scale()) * rank as f64;
    let others = adapters.iter().filter(|adapter| adapter.rank != usual);
    let (ranks, alphas): (Map<String, Value>, Map<String, Value>) = others
        .map(|adapter| {
            let name = || adapter.module.clone();
            ((name(), adapter.rank.into()), (name(), alpha(adapter.rank).into()))
        })
        .unzip();
    json!({
        "alpha_pattern": alphas,
        "base_model_name_or_path": base.display().to_string(),
        "bias": "none",
        // GPT-2 stores its weights [in, out].
        "fan_in_fan_out": matches!(model, ModelConfig::Gpt2(_)),
        "inference_mode": true,
        "init_lora_weights": true,
        "lora_alpha": alpha(usual),
        "lora_dropout": 0.0,
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": usual,
        "rank_pattern": ranks,
        "target_modules": target_modules(stored, adapters),
        "task_type": "CAUSAL_LM",
        "use_dora": false,
        "use_rslora": false,
    })
}

/// The adapted layers as PEFT names them: by their last part where all layers with it are adapted, else in full.
fn target_modules(stored: &[Stored], adapters: &[PeftAdapter]) -> BTreeSet<String> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or(name).to_string();
    let is_adapted = |module: &str| adapters.iter().any(|adapter| adapter.module == module);
    let modules = || stored.iter().filter_map(|stored| stored.name().strip_suffix(".weight"));
    let is_whole = |part: &str| modules().filter(|module| last(module) == part).all(is_adapted);
    let name = |adapter: &PeftAdapter| match last(&adapter.module) {
        part if is_whole(&part) => part,
        _ => adapter.module.clone(),
    };
    adapters.iter().map(name).collect()
}
