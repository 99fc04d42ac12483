//! What of a model is trained: frozen parameters, low-rank adapters, and what is written of them.

use std::collections::BTreeMap;
use std::path::Path;

use phalanx_ir::Op;
use phalanx_ir::graph::Graph;
use phalanx_lower::FrozenParameters;

use super::{ConfigError, LoraSave, TrainConfig};
use crate::hf::SaveOptions;
use crate::models::{Lora, ModelConfig};
use crate::pipeline::CompileError;
use crate::train::Notice;
use crate::{Error, hf};

impl TrainConfig {
    /// The graph of a step of `model`, with adapters if there are to be any.
    pub fn training_graph(&self, model: &ModelConfig) -> Result<Graph, Error> {
        self.adapted(model.training_graph(self.batch, self.context_of(model))?)
    }

    /// The graph of a step with adapters, if there are to be any.
    pub fn adapted(&self, graph: Graph) -> Result<Graph, Error> {
        Ok(match self.parse_lora()? {
            Some(lora) => lora.adapt(&graph)?,
            None => graph,
        })
    }

    /// The adapters to train, if there are any.
    pub fn parse_lora(&self) -> Result<Option<Lora>, ConfigError> {
        let Some(text) = &self.lora else { return Ok(None) };
        match text.parse() {
            Ok(lora) => Ok(Some(lora)),
            Err(()) => {
                let wanted =
                    "it must be RANK[,ALPHA[,PATTERNS]], such as 8,16,q_proj,v_proj, with numbers above 0";
                self.field("lora", text, wanted)
            }
        }
    }

    /// Patterns for the parameters that stay as they are; see [`crate::Optimizer::frozen`].
    pub fn frozen(&self) -> Vec<String> {
        match (&self.lora, &self.freeze) {
            (Some(_), _) => Lora::PARAMETERS.map(|adapters| format!("!{adapters}")).to_vec(),
            (None, Some(patterns)) => patterns.split(',').map(|pattern| pattern.trim().to_string()).collect(),
            (None, None) => Vec::new(),
        }
    }

    /// How many numbers of a model and its adapters are trained, and how many there are, if not all are.
    pub(crate) fn count_trained(&self, model: &ModelConfig) -> Result<Option<[u64; 2]>, Error> {
        let optimizer = self.build_optimizer();
        if optimizer.frozen.is_empty() {
            return Ok(None);
        }
        let graph = self.training_graph(model)?;
        let frozen = FrozenParameters::new(&optimizer, &graph).map_err(CompileError::from)?;
        let mut counts = [0; 2];
        for param in graph.leaves(|op| matches!(op, Op::Param(_))) {
            let elements = graph.ty(param).shape.elements() as u64;
            counts[0] += if frozen.contains(&graph.values()[param].name) { 0 } else { elements };
            counts[1] += elements;
        }
        Ok(Some(counts))
    }

    /// How much of a model is trained, if not all.
    pub(crate) fn note_frozen(&self, model: &ModelConfig) -> Result<Option<Notice>, Error> {
        let note = |[trained, all]: [u64; 2]| {
            let share = 100.0 * trained as f64 / all as f64;
            Notice::Note(format!(
                "training {trained} of {all} parameters ({share:.2} %); the others are frozen"
            ))
        };
        Ok(self.count_trained(model)?.map(note))
    }

    /// That the dropout a directory was trained with is not taken over, if so.
    pub fn note_dropout(&self, hf: &Path) -> Result<Option<String>, Error> {
        let stored = hf::read_config(hf)?.dropout();
        let is_lost = stored > 0.0 && self.dropout == 0.0;
        Ok(is_lost.then(|| {
            let config = hf.join("config.json");
            format!("dropout is off; {} says {stored}: --dropout {stored} takes it over", config.display())
        }))
    }

    /// Writes the weights of a run: as a model directory of transformers, or adapters alone as PEFT reads them.
    pub(crate) fn write_weights(
        &self,
        dir: &Path,
        model: &ModelConfig,
        weights: BTreeMap<String, Vec<f32>>,
    ) -> Result<(), Error> {
        let like = self.hf.as_deref();
        let options = SaveOptions { like, dtype: self.save_dtype };
        match (self.parse_lora()?, self.lora_save, like) {
            (Some(lora), LoraSave::Separate, Some(base)) => {
                Ok(hf::write_adapters(dir, model, &lora, base, weights)?)
            }
            (Some(lora), ..) => {
                let merged = hf::merge_adapters(model, &lora, weights)?;
                Ok(hf::write_model(dir, model, &merged, options)?)
            }
            (None, ..) => Ok(hf::write_model(dir, model, &weights, options)?),
        }
    }
}
