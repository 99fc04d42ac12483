//! Reading `model.safetensors`, whole or in shards, memory-mapped.
//!
//! Accepted under other names: files of a bare model without the prefix `transformer.`, `model.` or `gpt_neox.`, and
//! GPT-NeoX's head as `lm_head`. Left out: mask and frequency buffers of old files, counters of batch norms, other heads, and
//! a stored head that the model ties to its embedding.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use phalanx_ir::Shape;
use phalanx_mapping::Mapping;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::Deserialize;

use super::{Mismatch, Stored};

/// Why weights cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum WeightsError {
    /// The directory holds no weights.
    #[error(
        "{} has neither model.safetensors nor model.safetensors.index.json; save the model with transformers' \
         save_pretrained", dir.display()
    )]
    NoWeights { dir: PathBuf },
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file is not in the safetensors format.
    #[error("{} is not a safetensors file: {source}; download it again", path.display())]
    Format { path: PathBuf, source: SafeTensorError },
    /// The list of shards cannot be understood.
    #[error("{} is not a list of shards: {source}; download it again", path.display())]
    Index { path: PathBuf, source: serde_json::Error },
    /// A shard would lie outside the directory.
    #[error("{} names the shard `{shard}`; a shard is a file in the same directory", path.display())]
    Shard { path: PathBuf, shard: String },
    /// The tensors do not fit the model.
    #[error("the weights in {} do not fit the model: {mismatch}; check config.json", dir.display())]
    Mismatch { dir: PathBuf, mismatch: Box<Mismatch> },
}

/// Reads the tensors `wanted` from a model directory, or a `.safetensors` file, and gives the parameters they consist of, by name; see
/// [`super::tensors`] for what to ask for.
pub fn read_weights(dir: &Path, wanted: &[Stored]) -> Result<BTreeMap<String, Vec<f32>>, WeightsError> {
    let mut reader = Reader {
        wanted: wanted.iter().map(|stored| (stored.name(), stored)).collect(),
        found: BTreeMap::new(),
        head: None,
        mismatch: Mismatch::default(),
    };
    for path in if dir.is_dir() { shards(dir)? } else { vec![dir.to_path_buf()] } {
        let bytes = open(&path)?;
        let file = SafeTensors::deserialize(&bytes)
            .map_err(|source| WeightsError::Format { path: path.clone(), source })?;
        reader.take_file(&file);
    }
    reader.finish().map_err(|mismatch| WeightsError::Mismatch { dir: dir.into(), mismatch })
}

/// Tensors of files by name: the shape, and the elements if they are floats.
pub type StoredTensors = BTreeMap<String, (Shape, Option<Vec<f32>>)>;

/// Every tensor of a `.safetensors` file, or of a directory with `model.safetensors` whole or in shards.
pub fn stored_tensors(path: &Path) -> Result<StoredTensors, WeightsError> {
    let files = if path.is_dir() { shards(path)? } else { vec![path.to_path_buf()] };
    let mut all = BTreeMap::new();
    for path in files {
        let bytes = open(&path)?;
        let file = SafeTensors::deserialize(&bytes)
            .map_err(|source| WeightsError::Format { path: path.clone(), source })?;
        for (name, view) in file.tensors() {
            all.insert(name, (Shape::new(view.shape()), to_f32(&view)));
        }
    }
    Ok(all)
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The files that hold the weights, each once, in order.
fn shards(dir: &Path) -> Result<Vec<PathBuf>, WeightsError> {
    let whole = dir.join("model.safetensors");
    if whole.is_file() {
        return Ok(vec![whole]);
    }
    let path = dir.join("model.safetensors.index.json");
    if !path.is_file() {
        return Err(WeightsError::NoWeights { dir: dir.into() });
    }
    let index: Index = serde_json::from_slice(&open(&path)?)
        .map_err(|source| WeightsError::Index { path: path.clone(), source })?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    match names.iter().find(|name| Path::new(name).file_name() != Some(name.as_ref())) {
        Some(shard) => Err(WeightsError::Shard { path, shard: shard.clone() }),
        None => Ok(names.iter().map(|name| dir.join(name)).collect()),
    }
}

fn open(path: &Path) -> Result<Mapping, WeightsError> {
    Mapping::open(path).map_err(|source| WeightsError::Read { path: path.into(), source })
}

/// Collects wanted tensors over all files.
struct Reader<'a> {
    wanted: BTreeMap<&'a str, &'a Stored>,
    /// By the names in `wanted`.
    found: BTreeMap<String, Vec<f32>>,
    /// The stored output head of a model whose head is tied.
    head: Option<(Shape, Option<Vec<f32>>)>,
    mismatch: Mismatch,
}

impl Reader<'_> {
    fn take_file(&mut self, file: &SafeTensors<'_>) {
        let mut names = file.names();
        names.sort_unstable();
        for name in names {
            if let Ok(view) = file.tensor(name) {
                self.take(name, &view);
            }
        }
    }

    fn take(&mut self, name: &str, view: &TensorView<'_>) {
        if is_buffer(name) {
            return;
        }
        let shape = Shape::new(view.shape());
        let Some((target, wanted)) = self.target(name) else {
            match name {
                "lm_head.weight" | "embed_out.weight" => self.head = Some((shape, to_f32(view))),
                _ if UNUSED.iter().any(|prefix| name.starts_with(prefix)) => {}
                _ => self.mismatch.unexpected.push((name.into(), shape)),
            }
            return;
        };
        if shape != wanted {
            self.mismatch.reshaped.push((target.clone(), shape, wanted));
        }
        let values = to_f32(view).unwrap_or_else(|| {
            self.mismatch.unreadable.push((name.into(), format!("{:?}", view.dtype())));
            Vec::new()
        });
        self.found.insert(target, values);
    }

    /// The wanted tensor that a file calls `name`, not taken yet.
    fn target(&self, name: &str) -> Option<(String, Shape)> {
        let renamed = (name == "lm_head.weight").then(|| "embed_out.weight".to_string());
        let norm = name.strip_suffix("LayerNorm.gamma").map(|path| format!("{path}LayerNorm.weight"));
        let shift = name.strip_suffix("LayerNorm.beta").map(|path| format!("{path}LayerNorm.bias"));
        let name = norm.or(shift).unwrap_or_else(|| name.to_string());
        let spellings = PREFIXES.map(|prefix| format!("{prefix}{name}"));
        let target =
            spellings.into_iter().chain(renamed).find(|target| self.wanted.contains_key(target.as_str()))?;
        let shape = self.wanted[target.as_str()].shape().clone();
        (!self.found.contains_key(&target)).then_some((target, shape))
    }

    /// All parameters, or what does not fit. A tied head stands in for an embedding that was not stored.
    fn finish(mut self) -> Result<BTreeMap<String, Vec<f32>>, Box<Mismatch>> {
        for (&name, stored) in &self.wanted {
            if self.found.contains_key(name) {
                continue;
            }
            let embedding = matches!(
                name,
                "transformer.wte.weight"
                    | "model.embed_tokens.weight"
                    | "gpt_neox.embed_in.weight"
                    | "shared.weight"
            );
            match self.head.take_if(|(found, _)| embedding && found == stored.shape()) {
                Some((_, Some(values))) => drop(self.found.insert(name.into(), values)),
                _ => self.mismatch.missing.push((name.into(), stored.shape().clone())),
            }
        }
        if !self.mismatch.is_empty() {
            self.mismatch.sort();
            return Err(Box::new(self.mismatch));
        }
        let parts = |(name, values): (String, _)| self.wanted[name.as_str()].split(values);
        Ok(self.found.into_iter().flat_map(parts).collect())
    }
}

/// What names in files of a bare model lack.
const PREFIXES: [&str; 7] = ["", "transformer.", "model.", "gpt_neox.", "bert.", "roberta.", "vit."];

/// Parts that files may have beside a model: other heads, and tensors that are tied to another one.
const UNUSED: [&str; 9] = [
    "bert.pooler.",
    "cls.seq_relationship.",
    "cls.predictions.decoder.",
    "roberta.pooler.",
    "lm_head.decoder.",
    "vit.pooler.",
    "encoder.embed_tokens.",
    "decoder.embed_tokens.",
    "AuxLogits.",
];

/// Whether a stored tensor is a constant or a counter that PyTorch or old versions of transformers saved along.
fn is_buffer(name: &str) -> bool {
    const BUFFERS: [&str; 7] = [
        ".position_ids",
        ".num_batches_tracked",
        ".attn.bias",
        ".attn.masked_bias",
        ".attention.bias",
        ".attention.masked_bias",
        ".rotary_emb.inv_freq",
    ];
    BUFFERS.iter().any(|suffix| name.ends_with(suffix))
}

/// The elements as 32-bit floats; none if they are of a type that is not read.
fn to_f32(view: &TensorView<'_>) -> Option<Vec<f32>> {
    let bytes = view.data();
    match view.dtype() {
        Dtype::F32 => Some(convert(bytes, f32::from_le_bytes)),
        Dtype::BF16 => Some(convert(bytes, |pair| bf16::from_le_bytes(pair).to_f32())),
        Dtype::F16 => Some(convert(bytes, |pair| f16::from_le_bytes(pair).to_f32())),
        _ => None,
    }
}

fn convert<const N: usize>(bytes: &[u8], element: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&chunk| element(chunk)).collect()
}
