//! Writing a model directory that transformers loads.
//!
//! Each file is written under another name, synced and renamed, weights before configuration, so an interrupted write
//! leaves either the old file or the new one.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use phalanx_ir::Shape;
use phalanx_models::{ModelConfig, ModelError};
use safetensors::tensor::View;
use safetensors::{Dtype, SafeTensorError};

use super::{Mismatch, SaveDtype, Stored, config, tensors};

/// Why a model cannot be written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum WriteError {
    /// Transformers has no such family.
    #[error("a model of family `{family}` has no transformers form; supported: {}", config::families().join(", "))]
    Family { family: &'static str },
    /// The configuration gives no model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The configuration to take over cannot be read.
    #[error(transparent)]
    Like(#[from] super::ConfigError),
    /// The weights do not belong to the configuration.
    #[error("the weights do not fit the {family} model to be written: {mismatch}")]
    Mismatch { family: &'static str, mismatch: Box<Mismatch> },
    /// A weight is too large for the type of elements.
    #[error(
        "`{tensor}` has the weight {value:?}, and {dtype} ends below that: save it in another type, such as --save-dtype f32"
    )]
    Overflow { tensor: String, value: f32, dtype: &'static str },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// The new directory is complete but cannot take its place.
    #[error(
        "cannot replace {}: {source}; the model is in {}: move it from there", dir.display(), partial.display()
    )]
    Replace { dir: PathBuf, partial: PathBuf, source: io::Error },
    /// The weights cannot be laid out.
    #[error("cannot write {}: {source}", path.display())]
    Format { path: PathBuf, source: SafeTensorError },
}

/// Files beside the weights that a model made from another one needs, too.
const COMPANIONS: [&str; 8] = [
    "chat_template.jinja",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
];

/// How a model is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct SaveOptions<'a> {
    /// The directory whose other contents are taken over: special tokens, fields that only transformers reads, and files
    /// of the tokenizer.
    pub like: Option<&'a Path>,
    /// What elements are.
    pub dtype: SaveDtype,
}

/// Writes `config.json` and `model.safetensors` into `dir`, which is made if need be. `weights` are the model's
/// parameters by name.
pub fn write_model(
    dir: &Path,
    model: &ModelConfig,
    weights: &BTreeMap<String, Vec<f32>>,
    SaveOptions { like, dtype }: SaveOptions<'_>,
) -> Result<(), WriteError> {
    let Some(mut json) = config::to_json(model) else {
        return Err(WriteError::Family { family: model.family() });
    };
    json["dtype"] = dtype.in_config().into();
    let json = match like {
        Some(like) => config::merged(like, json)?,
        None => json,
    };
    let tensors = pair(model, weights, dtype)?;
    fs::create_dir_all(dir).map_err(|source| WriteError::Write { path: dir.into(), source })?;
    let config = Beside::new(dir.join("config.json"));
    config.done(fs::write(&config.temporary, format!("{json:#}\n")))?;
    Beside::new(dir.join("model.safetensors")).serialize(tensors, &config)?;
    config.commit()?;
    for name in COMPANIONS {
        let Some(from) = like.map(|like| like.join(name)).filter(|from| from.is_file()) else { continue };
        let path = dir.join(name);
        copy_file(&from, &path).map_err(|source| WriteError::Write { path, source })?;
    }
    Ok(())
}

/// Copies the bytes of a file; its permissions are those of any new file, not those of the other one.
pub fn copy_file(from: &Path, to: &Path) -> io::Result<u64> {
    io::copy(&mut File::open(from)?, &mut File::create(to)?)
}

/// Tries whether [`replace_directory`] could work.
pub fn probe_directory(dir: &Path) -> io::Result<()> {
    if dir.file_name().is_none() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it has no name that could be replaced"));
    }
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent)?;
    }
    let partial = beside(dir, ".partial");
    match fs::create_dir(&partial) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => fs::remove_dir_all(&partial),
    }
}

/// The directory with an ending, also if its path ends with a separator.
fn beside(dir: &Path, ending: &str) -> PathBuf {
    let mut name = dir.components().collect::<PathBuf>().into_os_string();
    name.push(ending);
    PathBuf::from(name)
}

/// Makes a directory anew: `fill` writes into another one beside it, which takes its place when it is complete. What was
/// there before goes as a whole.
pub fn replace_directory<T, E: From<WriteError>>(
    dir: &Path,
    fill: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<T, E> {
    let [partial, old] = [".partial", ".old"].map(|ending| beside(dir, ending));
    let failed = |path: &Path, source: io::Error| E::from(WriteError::Write { path: path.into(), source });
    let remove = |path: &Path| match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(failed(path, source)),
        _ => Ok(()),
    };
    remove(&partial)?;
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent).map_err(|source| failed(parent, source))?;
    }
    // It must not be there: what another user put in its place is not followed.
    fs::create_dir(&partial).map_err(|source| failed(&partial, source))?;
    let filled = fill(&partial)?;
    take_place(dir, &partial, &old).map_err(|source| {
        E::from(WriteError::Replace { dir: dir.into(), partial: partial.clone(), source })
    })?;
    remove(&old)?;
    Ok(filled)
}

/// Puts a complete directory in the place of another one, which is kept as `old`.
fn take_place(dir: &Path, partial: &Path, old: &Path) -> io::Result<()> {
    match fs::remove_dir_all(old) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    match fs::rename(dir, old) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::rename(partial, dir)
}

/// Each tensor of the file with the elements of its parts.
fn pair<'a>(
    model: &ModelConfig,
    weights: &'a BTreeMap<String, Vec<f32>>,
    dtype: SaveDtype,
) -> Result<Vec<(String, Tensor<'a>)>, WriteError> {
    let tensors = tensors(model)?;
    let mismatch = misfits(&tensors, weights);
    if !mismatch.is_empty() {
        return Err(WriteError::Mismatch { family: model.family(), mismatch: Box::new(mismatch) });
    }
    for (name, values) in weights {
        if let Some(value) = dtype.first_overflow(values) {
            return Err(WriteError::Overflow { tensor: name.clone(), value, dtype: dtype.in_config() });
        }
    }
    let filled = |stored: Stored| {
        let parts = stored.parts().iter().map(|(name, _)| &weights[name][..]).collect();
        (stored.name().to_string(), Tensor { stored, parts, dtype })
    };
    Ok(tensors.into_iter().map(filled).collect())
}

/// What differs between the parameters of `tensors` and `weights`.
fn misfits(tensors: &[Stored], weights: &BTreeMap<String, Vec<f32>>) -> Mismatch {
    let wanted: BTreeMap<&String, &Shape> =
        tensors.iter().flat_map(Stored::parts).map(|(name, shape)| (name, shape)).collect();
    let mut mismatch = Mismatch::default();
    for (name, values) in weights {
        let found = Shape::from([values.len()]);
        match wanted.get(name) {
            None => mismatch.unexpected.push((name.clone(), found)),
            Some(&shape) if values.len() != shape.elements() => {
                mismatch.reshaped.push((name.clone(), found, shape.clone()));
            }
            Some(_) => {}
        }
    }
    let missing = wanted.into_iter().filter(|(name, _)| !weights.contains_key(*name));
    mismatch.missing.extend(missing.map(|(name, shape)| (name.clone(), shape.clone())));
    mismatch
}

/// A tensor of the file, joined when it is written.
pub(super) struct Tensor<'a> {
    pub(super) stored: Stored,
    pub(super) parts: Vec<&'a [f32]>,
    pub(super) dtype: SaveDtype,
}

impl View for Tensor<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype.in_file()
    }

    fn shape(&self) -> &[usize] {
        self.stored.shape().dims()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self.stored.join(&self.parts) {
            Cow::Borrowed(values) if self.dtype == SaveDtype::F32 && cfg!(target_endian = "little") => {
                Cow::Borrowed(bytemuck::cast_slice(values))
            }
            values => Cow::Owned(self.dtype.convert(&values)),
        }
    }

    fn data_len(&self) -> usize {
        self.stored.shape().elements() * self.dtype.bytes()
    }
}

/// A file and the name it has until it is complete.
pub(super) struct Beside {
    pub(super) path: PathBuf,
    pub(super) temporary: PathBuf,
}

impl Beside {
    pub(super) fn new(path: PathBuf) -> Self {
        let mut temporary = path.clone().into_os_string();
        temporary.push(".partial");
        Beside { path, temporary: temporary.into() }
    }

    /// Writes tensors as the file. The library makes it readable by the owner only; `other`, which is written but not
    /// committed, has what the user's mask allows.
    pub(super) fn serialize<V: View>(
        &self,
        tensors: Vec<(String, V)>,
        other: &Beside,
    ) -> Result<(), WriteError> {
        let format = HashMap::from([("format".to_string(), "pt".to_string())]);
        safetensors::serialize_to_file(tensors, Some(format), &self.temporary)
            .map_err(|source| WriteError::Format { path: self.path.clone(), source })?;
        let allowed = other.done(fs::metadata(&other.temporary))?.permissions();
        self.done(fs::set_permissions(&self.temporary, allowed))?;
        self.commit()
    }

    /// Names the file in a failure.
    pub(super) fn done<T>(&self, result: io::Result<T>) -> Result<T, WriteError> {
        result.map_err(|source| WriteError::Write { path: self.path.clone(), source })
    }

    pub(super) fn commit(&self) -> Result<(), WriteError> {
        self.done(File::open(&self.temporary).and_then(|file| file.sync_all()))?;
        self.done(fs::rename(&self.temporary, &self.path))
    }
}
