//! The rules that every manifest keeps, and what is said about one that breaks them.
//!
//! File names are plain and differ; checksums can be compared; tensors can exist and differ in name; the parts of a tensor
//! lie inside it, do not overlap and cover it; the parts in a file are not larger than the file; numbers are finite.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::pipeline::MOST_RUN;

use super::{FORMAT, Manifest, Part, TensorEntry, UNSEALED};
use crate::seal::{DIGITS, JsonError, SealError};

/// Why a text is no manifest.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ManifestError {
    /// It is not JSON of this form.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// Another version of Phalanx wrote it.
    #[error("`format` is {found}, this build reads {UNSEALED} and {FORMAT}: take the version that wrote it")]
    Format { found: u32 },
    /// It is not as it was written.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// A number is not finite.
    #[error("`{field}` is {value}: it must be a finite number")]
    Number { field: &'static str, value: f32 },
    /// A file is not in the checkpoint's directory.
    #[error("`files[{file}].name` is {name:?}: it must be the plain name of a file beside the manifest")]
    File { file: usize, name: String },
    /// Files or tensors have the same name.
    #[error("`{list}[{second}].name` is `{name}`, and so is `{list}[{first}].name`: names must differ")]
    Twice { list: &'static str, first: usize, second: usize, name: String },
    /// A checksum is none.
    #[error("`files[{file}].xxh3` is {found:?}: it must be {DIGITS} hexadecimal digits in lower case")]
    Checksum { file: usize, found: String },
    /// A tensor cannot exist.
    #[error(
        "`tensors[{tensor}]`, `{name}`, is {dtype}{shape:?}: it must have a known element type, at most {} extents and less \
         than 2^63 bytes",
        phalanx_ir::MAX_RANK
    )]
    Tensor { tensor: usize, name: String, dtype: String, shape: Vec<usize> },
    /// More parts than devices.
    #[error(
        "`tensors[{tensor}].parts` has {found} parts: it must have at most {MOST_RUN}, one for each device"
    )]
    Parts { tensor: usize, found: usize },
    /// A part is in a file that is not listed.
    #[error(
        "`tensors[{tensor}].parts[{part}].file` is {file}: it must be below {files}, the number of files"
    )]
    NoFile { tensor: usize, part: usize, file: usize, files: usize },
    /// A part is not inside its tensor.
    #[error(
        "`tensors[{tensor}].parts[{part}]` is {extents:?} at {origin:?}: it must lie in the tensor, which is {shape:?}"
    )]
    Outside { tensor: usize, part: usize, extents: Vec<usize>, origin: Vec<usize>, shape: Vec<usize> },
    /// Two parts have elements in common, or are the same.
    #[error(
        "`tensors[{tensor}].parts[{second}]` is {:?} at {:?} and overlaps `parts[{first}]`, {:?} at {:?}: every element must \
         be in one part", parts[1].shape, parts[1].origin, parts[0].shape, parts[0].origin
    )]
    Overlap { tensor: usize, first: usize, second: usize, parts: Box<[Part; 2]> },
    /// Parts are missing.
    #[error(
        "`tensors[{tensor}].parts` hold {found} elements, the tensor has {need}: every element must be in one part"
    )]
    Hole { tensor: usize, found: usize, need: usize },
    /// A file is smaller than what should be in it.
    #[error("`files[{file}].bytes` is {bytes}: it must be at least the {need} bytes of the parts in it")]
    TooSmall { file: usize, bytes: u64, need: u64 },
}

impl From<serde_json::Error> for ManifestError {
    fn from(error: serde_json::Error) -> Self {
        JsonError::from(error).into()
    }
}

impl Manifest {
    /// Checks all rules.
    pub(super) fn check(&self) -> Result<(), ManifestError> {
        let rate = &self.run.learning_rate;
        let numbers = [
            ("run.loss", self.run.loss),
            ("run.learning_rate.peak", rate.peak),
            ("run.learning_rate.floor", rate.floor),
        ];
        if let Some(&(field, value)) = numbers.iter().find(|(_, value)| !value.is_finite()) {
            return Err(ManifestError::Number { field, value });
        }
        self.check_files()?;
        names_differ("tensors", self.tensors.iter().map(|tensor| &tensor.name))?;
        let mut held = vec![0u64; self.files.len()];
        for (tensor, entry) in self.tensors.iter().enumerate() {
            entry.check(tensor, &mut held)?;
        }
        for (file, (entry, need)) in self.files.iter().zip(held).enumerate() {
            if entry.bytes < need {
                return Err(ManifestError::TooSmall { file, bytes: entry.bytes, need });
            }
        }
        Ok(())
    }

    fn check_files(&self) -> Result<(), ManifestError> {
        for (file, entry) in self.files.iter().enumerate() {
            let (name, checksum) = (&entry.name, &entry.xxh3);
            if Path::new(name).file_name() != Some(name.as_ref()) {
                return Err(ManifestError::File { file, name: name.clone() });
            }
            if checksum.len() != DIGITS
                || !checksum.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
            {
                return Err(ManifestError::Checksum { file, found: checksum.clone() });
            }
        }
        names_differ("files", self.files.iter().map(|file| &file.name))
    }
}

fn names_differ<'a>(
    list: &'static str,
    names: impl Iterator<Item = &'a String>,
) -> Result<(), ManifestError> {
    let mut known = BTreeMap::new();
    for (second, name) in names.enumerate() {
        if let Some(first) = known.insert(name, second) {
            return Err(ManifestError::Twice { list, first, second, name: name.clone() });
        }
    }
    Ok(())
}

impl TensorEntry {
    /// Checks the tensor, number `tensor` of the manifest, and its parts, and adds their bytes to what each file must hold.
    fn check(&self, tensor: usize, held: &mut [u64]) -> Result<(), ManifestError> {
        let TensorEntry { name, dtype, shape, parts, .. } = self;
        let Some((element, bytes)) = self.sizes() else {
            let (name, dtype, shape) = (name.clone(), dtype.clone(), shape.clone());
            return Err(ManifestError::Tensor { tensor, name, dtype, shape });
        };
        if parts.len() > MOST_RUN {
            return Err(ManifestError::Parts { tensor, found: parts.len() });
        }
        for number in 0..parts.len() {
            self.check_part(tensor, number, held.len())?;
        }
        if let Some((first, second)) = self.first_overlap() {
            let parts = Box::new([first, second].map(|part| self.parts[part].clone()));
            return Err(ManifestError::Overlap { tensor, first, second, parts });
        }
        let mut found = 0;
        for part in parts {
            // Inside a tensor whose bytes can be counted, so can those of parts that do not overlap.
            let elements: usize = part.shape.iter().product();
            held[part.file] = held[part.file].saturating_add((elements * element) as u64);
            found += elements;
        }
        match bytes / element {
            need if need == found => Ok(()),
            need => Err(ManifestError::Hole { tensor, found, need }),
        }
    }

    /// Checks that part number `part` is in one of the files and lies in the tensor.
    fn check_part(&self, tensor: usize, part: usize, files: usize) -> Result<(), ManifestError> {
        let Part { file, origin, shape } = &self.parts[part];
        if *file >= files {
            return Err(ManifestError::NoFile { tensor, part, file: *file, files });
        }
        if !self.parts[part].lies_in(&self.shape) {
            let (extents, origin, shape) = (shape.clone(), origin.clone(), self.shape.clone());
            return Err(ManifestError::Outside { tensor, part, extents, origin, shape });
        }
        Ok(())
    }

    /// Two parts with an element in common. Parts are swept along the dimension in which most begin at different places, and
    /// each is compared with those that reach as far: n parts of a grid take at most n to the power of 1.5 comparisons. Parts
    /// that lie otherwise take more, up to n squared, so their number is bounded.
    fn first_overlap(&self) -> Option<(usize, usize)> {
        let parts = &self.parts;
        let starts = |&dim: &usize| parts.iter().map(|part| part.origin[dim]).collect::<BTreeSet<_>>().len();
        let Some(dim) = (0..self.shape.len()).max_by_key(starts) else {
            return (parts.len() > 1).then_some((0, 1));
        };
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by_key(|&part| parts[part].origin[dim]);
        let mut open: Vec<usize> = Vec::new();
        for part in order {
            let start = parts[part].origin[dim];
            open.retain(|&other| parts[other].origin[dim] + parts[other].shape[dim] > start);
            if let Some(&other) = open.iter().find(|&&other| parts[other].overlaps(&parts[part])) {
                return Some((other.min(part), other.max(part)));
            }
            open.push(part);
        }
        None
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

    /// Whether two parts of one tensor have an element in common.
    fn overlaps(&self, other: &Part) -> bool {
        (0..self.origin.len()).all(|dim| {
            self.origin[dim] < other.origin[dim] + other.shape[dim]
                && other.origin[dim] < self.origin[dim] + self.shape[dim]
        })
    }
}
