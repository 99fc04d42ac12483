//! What a checkpoint says about itself: `manifest.json`.
//!
//! A manifest that has been read keeps these rules, so that nobody who follows it reads outside a file or allocates more
//! than the files hold: file names are plain and differ; the parts of a tensor lie inside it, do not overlap and cover it;
//! the parts in a file are not larger than the file. Whether the files are as told is not looked at here.

use std::collections::BTreeSet;
use std::path::Path;

use phalanx_ir::{DType, MAX_RANK};
use phalanx_program::{Port, PortKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::LearningRate;

/// The version of the format that is written and read.
pub const FORMAT: u32 = 1;

/// A checkpoint's description of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the format: [`FORMAT`].
    pub format: u32,
    /// The run, after its last step.
    pub run: RunState,
    /// All tensors, weights first, in the order of the program.
    pub tensors: Vec<TensorEntry>,
    /// The files that hold them.
    pub files: Vec<FileEntry>,
}

/// Everything besides tensors that the next step depends on, and how the run came here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Steps done. The order of data and dropout are functions of seed and step, so it is their cursor, too.
    pub step: u64,
    /// Tokens seen so far.
    pub tokens: u64,
    /// The loss of the last step.
    pub loss: f32,
    /// Seed of initialization, data order and dropout.
    pub seed: u64,
    /// How the learning rate goes.
    pub learning_rate: LearningRate,
    /// The model's configuration.
    pub model: Value,
    /// The configuration of the run.
    pub config: Value,
    /// The plan, as text.
    pub plan: String,
    /// Fingerprint of the program, in hexadecimal.
    pub program: String,
}

/// What a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorKind {
    /// A weight.
    Param,
    /// State of the optimizer.
    State,
}

/// A whole tensor and where its parts are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: TensorKind,
    /// Element type, as the compiler spells it.
    pub dtype: String,
    /// Extents.
    pub shape: Vec<usize>,
    /// Rectangles that cover it.
    pub parts: Vec<Part>,
}

/// A rectangle of a tensor in a file, where it is called [`TensorEntry::key`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Position in [`Manifest::files`].
    pub file: usize,
    /// The coordinates of its first element.
    pub origin: Vec<usize>,
    /// Its extents.
    pub shape: Vec<usize>,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name in the checkpoint's directory.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The 128-bit XXH3 of all its bytes, in hexadecimal.
    pub xxh3: String,
}

/// Why a text is no manifest.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It is not JSON of this form.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// Another version of Phalanx wrote it.
    #[error("its format is {found}, this build reads {FORMAT}: take the version that wrote it")]
    Format {
        /// The version of the format.
        found: u32,
    },
    /// A file has a name that it cannot have.
    #[error("it names the file `{0}`: every file is in the same directory and named once")]
    File(String),
    /// A tensor is named twice.
    #[error("it names the tensor `{0}` twice")]
    Twice(String),
    /// A tensor cannot exist.
    #[error("tensor `{name}` is {dtype}{shape:?}, which is no tensor")]
    Tensor {
        /// The tensor.
        name: String,
        /// Its element type.
        dtype: String,
        /// Its extents.
        shape: Vec<usize>,
    },
    /// A part is not inside its tensor.
    #[error("tensor `{name}` of {shape:?} has a part of {extents:?} at {origin:?} in file {file} of {files}")]
    Part {
        /// The tensor.
        name: String,
        /// Its extents.
        shape: Vec<usize>,
        /// Those of the part.
        extents: Vec<usize>,
        /// Its first element.
        origin: Vec<usize>,
        /// The part's file.
        file: usize,
        /// How many files there are.
        files: usize,
    },
    /// The parts of a tensor are not the tensor.
    #[error("the parts of tensor `{name}` hold {found} elements once, it has {need}")]
    Cover {
        /// The tensor.
        name: String,
        /// Elements in parts that overlap no other.
        found: usize,
        /// Elements of the tensor.
        need: usize,
    },
    /// A file is smaller than what should be in it.
    #[error("file `{name}` has {bytes} bytes, its parts {need}")]
    TooSmall {
        /// The file.
        name: String,
        /// Its length.
        bytes: u64,
        /// Bytes of its parts.
        need: u64,
    },
}

impl Manifest {
    /// Reads the text of a manifest.
    pub fn parse(text: &[u8]) -> Result<Manifest, ManifestError> {
        /// The part that every version has.
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let Version { format } = serde_json::from_slice(text)?;
        if format != FORMAT {
            return Err(ManifestError::Format { found: format });
        }
        let manifest: Manifest = serde_json::from_slice(text)?;
        manifest.check()?;
        Ok(manifest)
    }

    /// The text of the manifest, which [`Manifest::parse`] reads back.
    pub fn to_text(&self) -> Result<Vec<u8>, ManifestError> {
        self.check()?;
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    fn check(&self) -> Result<(), ManifestError> {
        let mut files = BTreeSet::new();
        for FileEntry { name, .. } in &self.files {
            if Path::new(name).file_name() != Some(name.as_ref()) || !files.insert(name) {
                return Err(ManifestError::File(name.clone()));
            }
        }
        let (mut names, mut held) = (BTreeSet::new(), vec![0u64; self.files.len()]);
        for tensor in &self.tensors {
            if !names.insert(&tensor.name) {
                return Err(ManifestError::Twice(tensor.name.clone()));
            }
            tensor.check(&mut held)?;
        }
        let too_small = self.files.iter().zip(held).find(|(file, held)| file.bytes < *held);
        too_small.map_or(Ok(()), |(file, need)| {
            Err(ManifestError::TooSmall { name: file.name.clone(), bytes: file.bytes, need })
        })
    }
}

impl TensorEntry {
    /// The tensor of a port, without parts; none if it is neither weight nor state.
    pub(super) fn of_port(port: &Port) -> Option<TensorEntry> {
        let kind = match port.kind {
            PortKind::Param => TensorKind::Param,
            PortKind::State => TensorKind::State,
            PortKind::Input | PortKind::Output => return None,
        };
        let (dtype, shape) = (port.ty.dtype.to_string(), port.ty.shape.dims().to_vec());
        Some(TensorEntry { name: port.name.clone(), kind, dtype, shape, parts: Vec::new() })
    }

    /// What the part at `origin` is called in its file.
    pub fn key(&self, origin: &[usize]) -> String {
        let origin: Vec<String> = origin.iter().map(usize::to_string).collect();
        format!("{}@{}", self.name, origin.join(","))
    }

    /// Kind, element type and extents, for people.
    pub fn describe(&self) -> String {
        let kind = match self.kind {
            TensorKind::Param => "param",
            TensorKind::State => "state",
        };
        format!("{kind} {}{:?}", self.dtype, self.shape)
    }

    /// Bytes of an element and of all of them, if there can be such a tensor.
    fn sizes(&self) -> Option<(usize, usize)> {
        let element = self.dtype.parse::<DType>().ok()?.bytes();
        let elements = self.shape.iter().try_fold(1usize, |all, &extent| all.checked_mul(extent))?;
        let known = self.shape.len() <= MAX_RANK;
        Some((element, elements.checked_mul(element).filter(|&bytes| known && bytes <= isize::MAX as usize)?))
    }

    /// Bytes of an element of a tensor that was checked.
    pub(super) fn element(&self) -> usize {
        self.sizes().map_or(0, |(element, _)| element)
    }

    /// All bytes of a tensor that was checked.
    pub(crate) fn bytes(&self) -> usize {
        self.sizes().map_or(0, |(_, bytes)| bytes)
    }

    /// Checks the tensor and its parts, and adds their bytes to what each file must hold.
    fn check(&self, held: &mut [u64]) -> Result<(), ManifestError> {
        let TensorEntry { name, dtype, shape, parts, .. } = self;
        let Some((element, bytes)) = self.sizes() else {
            return Err(ManifestError::Tensor {
                name: name.clone(),
                dtype: dtype.clone(),
                shape: shape.clone(),
            });
        };
        let (need, files) = (bytes / element, held.len());
        let mut found = 0usize;
        for (at, part) in parts.iter().enumerate() {
            if part.file >= files || !part.lies_in(shape) {
                return Err(ManifestError::Part {
                    name: name.clone(),
                    shape: shape.clone(),
                    extents: part.shape.clone(),
                    origin: part.origin.clone(),
                    file: part.file,
                    files,
                });
            }
            // Inside a tensor whose bytes can be counted, so can those of the part.
            let elements: usize = part.shape.iter().product();
            held[part.file] = held[part.file].saturating_add((elements * element) as u64);
            if parts[..at].iter().all(|other| !other.overlaps(part)) {
                found = found.saturating_add(elements);
            }
        }
        if found != need {
            return Err(ManifestError::Cover { name: name.clone(), found, need });
        }
        Ok(())
    }
}

impl Part {
    fn lies_in(&self, shape: &[usize]) -> bool {
        let inside = |((&origin, &extent), &whole): ((&usize, &usize), &usize)| {
            extent > 0 && origin.checked_add(extent).is_some_and(|end| end <= whole)
        };
        (self.origin.len(), self.shape.len()) == (shape.len(), shape.len())
            && self.origin.iter().zip(&self.shape).zip(shape).all(inside)
    }

    fn overlaps(&self, other: &Part) -> bool {
        self.common(&other.origin, &other.shape).is_some()
    }

    /// Origin and extents of what the part has in common with a rectangle of the same rank.
    pub(super) fn common(&self, origin: &[usize], extents: &[usize]) -> Option<(Vec<usize>, Vec<usize>)> {
        let both = (0..self.origin.len()).map(|dim| {
            let start = self.origin[dim].max(origin[dim]);
            let end = (self.origin[dim] + self.shape[dim]).min(origin[dim] + extents[dim]);
            (start < end).then(|| (start, end - start))
        });
        both.collect::<Option<Vec<_>>>().map(|dims| dims.into_iter().unzip())
    }
}
