//! A look at everything in a checkpoint: more than a run that resumes needs to know.

use std::path::PathBuf;

use super::{Checkpoint, CkptError};

/// What is wrong with a checkpoint.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum AuditError {
    /// A file is damaged, or lacks a part.
    #[error(transparent)]
    Read(#[from] CkptError),
    /// Parts of a tensor overlap.
    #[error(
        "{}: the parts of tensor `{tensor}` hold {found} elements, it has {need}: some are there twice", path.display()
    )]
    Twice {
        path: PathBuf,
        tensor: String,
        found: usize,
        need: usize,
    },
}

/// Checks length and checksum of every file, and that the files hold every element of every tensor exactly once.
pub fn audit(checkpoint: &Checkpoint) -> Result<(), AuditError> {
    checkpoint.verify()?;
    for tensor in &checkpoint.manifest().tensors {
        checkpoint.tensor(&tensor.name)?;
        let found = tensor.parts.iter().map(|part| part.shape.iter().product::<usize>()).sum();
        let need = tensor.shape.iter().product();
        // A manifest is only read if its parts cover the tensor: any more elements are there twice.
        if found != need {
            let (path, tensor) = (checkpoint.path().into(), tensor.name.clone());
            return Err(AuditError::Twice { path, tensor, found, need });
        }
    }
    Ok(())
}
