//! Reading checkpoints: which there are, whether they are whole, and their tensors.
//!
//! Files are memory-mapped, so that only what is asked for is read.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use phalanx_ir::Precision;
use phalanx_mapping::Mapping;
use phalanx_program::rect::{Tile, copy_tile};
use phalanx_program::{Port, PortTile};
use safetensors::tensor::Metadata;
use safetensors::{SafeTensorError, SafeTensors};

use super::{Disk, FileEntry, LATEST, MANIFEST, Manifest, ManifestError, Part, SaveError, Storage};
use super::{TensorEntry, name_of, snapshot, step_of};
use crate::files;
use crate::hashes::{self, StateHashes};
use crate::seal::checksum;
use crate::{Error, Session};

/// The most bytes of a manifest: one of a million parts has about a tenth of it.
const MOST_MANIFEST: u64 = 2 << 30;

/// Why a checkpoint cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CkptError {
    /// A file or directory cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The manifest is wrong.
    #[error("{} is no manifest: {source}", path.display())]
    Manifest { path: PathBuf, source: Box<ManifestError> },
    /// The directory has the name of another step.
    #[error("{} is called after another step than the {step} of its manifest", path.display())]
    Step { path: PathBuf, step: u64 },
    /// The file `latest` is not about the checkpoint that it names.
    #[error("{} names `{name}`, {problem}; the next checkpoint of the run replaces it", path.display())]
    Latest { path: PathBuf, name: String, problem: String },
    /// A file has another length.
    #[error("{} has {found} bytes, the manifest says {expected}", path.display())]
    Length { path: PathBuf, found: u64, expected: u64 },
    /// A file has other bytes.
    #[error("{} has the checksum {found}, the manifest says {expected}", path.display())]
    Checksum { path: PathBuf, found: String, expected: String },
    /// A file is not in the safetensors format.
    #[error("{} is not a safetensors file: {source}", path.display())]
    Format { path: PathBuf, source: SafeTensorError },
    /// A file lacks a part of a tensor.
    #[error("{} has no `{key}` of {extents:?}", path.display())]
    Part { path: PathBuf, key: String, extents: Vec<usize> },
    /// There is no such tensor.
    #[error("{} has no tensor `{name}`", path.display())]
    NoTensor { path: PathBuf, name: String },
    /// It belongs to another model.
    #[error(
        "{} does not fit: {what} is {found} in the checkpoint, but {wanted} in this run; resume with the model, \
         --freeze and --lora of that run, or choose another directory with --checkpoint", path.display()
    )]
    Mismatch { path: PathBuf, what: String, found: String, wanted: String },
    /// The run was trained on other data.
    #[error(
        "{} was trained on {found}, but the data of this run has {wanted}; give it the data it had, or accept the change \
         with --accept-data-change", path.display()
    )]
    Data { path: PathBuf, found: String, wanted: String },
    /// The products of the run were computed in another precision.
    #[error(
        "{} was trained with --precision {found}, but this run has {wanted}; give it {found}, or go on in {wanted} with \
         --change-precision", path.display()
    )]
    Precision { path: PathBuf, found: Precision, wanted: Precision },
    /// No checkpoint can be used.
    #[error("no checkpoint in {} is usable: {}", dir.display(), problems.join("; "))]
    Unusable {
        dir: PathBuf,
        /// What is wrong with each, newest first.
        problems: Vec<String>,
    },
    /// The directory cannot be written.
    #[error("{0}; choose another directory with --checkpoint")]
    Directory(Box<SaveError>),
    /// A new run would mix its checkpoints with those of another one.
    #[error(
        "{} has checkpoints, the last one of step {step}: continue that run with --resume, or choose another directory \
         with --checkpoint", dir.display()
    )]
    Present { dir: PathBuf, step: u64 },
}

/// A directory of checkpoints.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    dir: PathBuf,
}

impl Checkpoints {
    /// The checkpoints in `dir`, which need not be there.
    pub fn open(dir: impl Into<PathBuf>) -> Checkpoints {
        Checkpoints { dir: dir.into() }
    }

    /// The steps of all committed checkpoints, ascending; whether they are whole is not looked at.
    pub fn list(&self) -> Result<Vec<u64>, CkptError> {
        let names = match Disk.list(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names.map_err(|source| CkptError::Read { path: self.dir.clone(), source })?,
        };
        let mut steps: Vec<u64> = names.iter().filter_map(|name| step_of(name)).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// The checkpoint of a step.
    pub fn checkpoint(&self, step: u64) -> Result<Checkpoint, CkptError> {
        Checkpoint::open(self.path(step))
    }

    /// Where the checkpoint after `step` steps is, if there is one.
    pub(super) fn path(&self, step: u64) -> PathBuf {
        self.dir.join(name_of(step))
    }

    /// Which of the checkpoints of `steps`, ascending, has the lowest loss on held-back data; the first one of several. Those
    /// whose weights were not evaluated, or whose manifest cannot be read, do not count.
    pub fn best(&self, steps: &[u64]) -> Option<u64> {
        let loss = |step: u64| self.checkpoint(step).ok()?.manifest.run.eval_loss();
        let losses = steps.iter().filter_map(|&step| Some((step, loss(step)?)));
        losses.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(step, _)| step)
    }

    /// The newest checkpoint whose manifest can be read, if there is one; see [`Checkpoint::verify`] for its files.
    pub fn latest(&self) -> Result<Option<Checkpoint>, CkptError> {
        Ok(self.list()?.into_iter().rev().find_map(|step| self.checkpoint(step).ok()))
    }

    /// Checks that the file `latest` names a checkpoint and has the checksum of its manifest; nothing if there is no file.
    pub fn check_latest(&self) -> Result<(), CkptError> {
        let path = self.dir.join(LATEST);
        let text = match files::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            text => text.map_err(|source| CkptError::Read { path: path.clone(), source })?,
        };
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines();
        let (name, expected) = (lines.next().unwrap_or_default().to_string(), lines.next());
        let found = step_of(&name)
            .and_then(|_| files::read_up_to(&self.dir.join(&name).join(MANIFEST), MOST_MANIFEST).ok());
        let problem = match (found.map(|manifest| checksum(&[&manifest])), expected) {
            (None, _) => "which has no manifest".to_string(),
            // As the first version wrote it.
            (Some(_), None) => return Ok(()),
            (Some(found), Some(expected)) if found == expected => return Ok(()),
            (Some(found), Some(expected)) => {
                format!("whose manifest has the checksum {found} and not {expected}")
            }
        };
        Err(CkptError::Latest { path, name, problem })
    }
}

/// One checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
    /// Those files that were needed so far, by their place in the manifest.
    files: Vec<OnceCell<StoredFile>>,
}

/// A file in memory and where its tensors are.
#[derive(Debug)]
struct StoredFile {
    bytes: Mapping,
    /// Where tensors begin.
    start: usize,
    tensors: Metadata,
}

impl Checkpoint {
    /// Reads the manifest of the checkpoint in the directory `path`.
    pub fn open(path: impl Into<PathBuf>) -> Result<Checkpoint, CkptError> {
        let path = path.into();
        let file = path.join(MANIFEST);
        let text = files::read_up_to(&file, MOST_MANIFEST)
            .map_err(|source| CkptError::Read { path: file.clone(), source })?;
        let manifest = Manifest::parse(&text)
            .map_err(|error| CkptError::Manifest { path: file, source: error.into() })?;
        let step = manifest.run.step;
        let name = path.file_name().and_then(|name| name.to_str());
        if name.and_then(step_of).is_some_and(|named| named != step) {
            return Err(CkptError::Step { path, step });
        }
        let files = manifest.files.iter().map(|_| OnceCell::new()).collect();
        Ok(Checkpoint { path, manifest, files })
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it says about itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Checks length and checksum of every file, all of which are read.
    pub fn verify(&self) -> Result<(), CkptError> {
        self.verify_share(0, 1)
    }

    /// The same for every `ranks`-th file from number `rank` on: together, ranks look at each once.
    pub(crate) fn verify_share(&self, rank: u32, ranks: u32) -> Result<(), CkptError> {
        let share = self.manifest.files.iter().skip(rank as usize).step_by(ranks.max(1) as usize);
        for file in share {
            let bytes = self.map(file)?;
            let found = checksum(&[&bytes]);
            if found != file.xxh3 {
                let (path, expected) = (self.path.join(&file.name), file.xxh3.clone());
                return Err(CkptError::Checksum { path, found, expected });
            }
        }
        Ok(())
    }

    /// Checks as well that the files have every part of every tensor; a manifest says of these that they hold each element once.
    pub fn audit(&self) -> Result<(), CkptError> {
        self.verify()?;
        self.manifest.tensors.iter().try_for_each(|tensor| self.check_parts(tensor))
    }

    fn check_parts(&self, tensor: &TensorEntry) -> Result<(), CkptError> {
        tensor.parts.iter().try_for_each(|part| self.part(tensor, part).map(|_| ()))
    }

    /// All bytes of the tensor called `name`, row-major, wherever its parts are.
    pub fn tensor(&self, name: &str) -> Result<Vec<u8>, CkptError> {
        let Some(tensor) = self.manifest.tensor(name) else {
            return Err(CkptError::NoTensor { path: self.path.clone(), name: name.into() });
        };
        // The parts are looked at first: there is as much as is allocated.
        self.check_parts(tensor)?;
        let mut bytes = vec![0; tensor.bytes()];
        let whole = Tile { origin: &vec![0; tensor.shape.len()], extents: &tensor.shape };
        self.fill(tensor, whole, &mut bytes)?;
        Ok(bytes)
    }

    /// Hashes of all tensors: those of a run whose state it is.
    pub fn hashes(&self) -> Result<StateHashes, CkptError> {
        let mut sums = BTreeMap::new();
        for tensor in &self.manifest.tensors {
            let mut sum = 0u64;
            for part in &tensor.parts {
                let rect = Tile { origin: &part.origin, extents: &part.shape };
                let own = hashes::sum_of(tensor.element(), &tensor.shape, rect, self.part(tensor, part)?);
                sum = sum.wrapping_add(own);
            }
            sums.insert(tensor.name.clone(), sum);
        }
        Ok(StateHashes::of_sums(&sums))
    }

    /// Sets all weights and optimizer state of `session`, which may lie on any devices of any number of ranks; each process
    /// reads what it has. A session of another model is left as it is.
    pub fn restore(&self, session: &mut Session) -> Result<(), Error> {
        self.check_fit(session)?;
        let mut result = Ok(());
        session.visit_state(|port: &Port, tile: &PortTile, bytes| {
            if let (Ok(()), Some(tensor)) = (&result, self.manifest.tensor(&port.name)) {
                let rect = Tile { origin: &tile.origin, extents: tile.ty.shape.dims() };
                result = self.fill(tensor, rect, bytes);
            }
        })?;
        Ok(result?)
    }

    /// Checks that the tensors are those of `session`.
    fn check_fit(&self, session: &Session) -> Result<(), CkptError> {
        let differs = |name: &str, found: Option<&TensorEntry>, wanted: Option<&TensorEntry>| {
            let text = |entry: Option<&TensorEntry>| entry.map_or("absent".into(), TensorEntry::describe);
            let (path, what) = (self.path.clone(), format!("tensor `{name}`"));
            CkptError::Mismatch { path, what, found: text(found), wanted: text(wanted) }
        };
        let wanted = snapshot::tensors(session);
        for wanted in &wanted {
            let found = self.manifest.tensor(&wanted.name);
            if found.is_none_or(|found| found.describe() != wanted.describe()) {
                return Err(differs(&wanted.name, found, Some(wanted)));
            }
        }
        let extra =
            self.manifest.tensors.iter().find(|found| wanted.iter().all(|wanted| wanted.name != found.name));
        extra.map_or(Ok(()), |found| Err(differs(&found.name, Some(found), None)))
    }

    /// Fills in the rectangle `rect` of a tensor from all parts that have some of it.
    fn fill(&self, tensor: &TensorEntry, rect: Tile<'_>, bytes: &mut [u8]) -> Result<(), CkptError> {
        for part in &tensor.parts {
            let Some((origin, extents)) = part.common(rect.origin, rect.extents) else { continue };
            let source = self.part(tensor, part)?;
            let from = Tile { origin: &part.origin, extents: &part.shape };
            let common = Tile { origin: &origin, extents: &extents };
            copy_tile(tensor.element(), common, (from, source), (rect, bytes));
        }
        Ok(())
    }

    /// The bytes of a part.
    fn part(&self, tensor: &TensorEntry, part: &Part) -> Result<&[u8], CkptError> {
        let (file, key) = (self.file(part.file)?, tensor.key(&part.origin));
        let need = part.shape.iter().product::<usize>() * tensor.element();
        match file.range(&key).filter(|range| range.len() == need) {
            Some(range) => Ok(&file.bytes[range]),
            None => {
                let path = self.path.join(&self.manifest.files[part.file].name);
                Err(CkptError::Part { path, key, extents: part.shape.clone() })
            }
        }
    }

    /// A file of the manifest, opened when it is first needed.
    fn file(&self, index: usize) -> Result<&StoredFile, CkptError> {
        let cell = &self.files[index];
        if cell.get().is_none() {
            let entry = &self.manifest.files[index];
            let bytes = self.map(entry)?;
            let (length, tensors) = SafeTensors::read_metadata(&bytes)
                .map_err(|source| CkptError::Format { path: self.path.join(&entry.name), source })?;
            // Eight bytes tell the length of the list, which comes before the tensors.
            let _ = cell.set(StoredFile { bytes, start: length + 8, tensors });
        }
        Ok(cell.get().expect("the file was opened just now"))
    }

    fn map(&self, file: &FileEntry) -> Result<Mapping, CkptError> {
        let path = self.path.join(&file.name);
        let bytes = Mapping::open(&path).map_err(|source| CkptError::Read { path: path.clone(), source })?;
        match bytes.len() as u64 {
            found if found == file.bytes => Ok(bytes),
            found => Err(CkptError::Length { path, found, expected: file.bytes }),
        }
    }
}

impl StoredFile {
    /// Where a tensor of the file is.
    fn range(&self, key: &str) -> Option<Range<usize>> {
        let (start, end) = self.tensors.info(key)?.data_offsets;
        // The library has checked that all tensors are in the file.
        Some(self.start + start..self.start + end)
    }
}
