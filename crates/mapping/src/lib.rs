//! A file seen as memory, read only. The one place where files are mapped; everything else handles slices.
//!
//! A crate of its own because mapping is unsafe and its users, which read data, weights and checkpoints, forbid that.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

/// The bytes of a file, paged in when first touched.
///
/// The file must not shrink while it is mapped: the operating system ends a process that reads past the new end. Other
/// writes show up as changed bytes; readers that checked the bytes once must not rely on the check for memory safety.
#[derive(Debug)]
pub struct Mapping(Option<Mmap>);

impl Mapping {
    /// Maps the whole file; an empty file gives no bytes.
    pub fn open(path: &Path) -> io::Result<Mapping> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        if meta.len() == 0 {
            return Ok(Mapping(None));
        }
        // SAFETY: the mapping is private to this type and only ever read as plain bytes, for which every value is
        // valid; that the file is left alone meanwhile is the documented condition of this type.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Mapping(Some(map)))
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_reads_as_its_bytes_and_an_empty_one_as_none() {
        let path = std::env::temp_dir().join(format!("phalanx-mapping-{}", std::process::id()));
        std::fs::write(&path, b"abc").unwrap();
        assert_eq!(&*Mapping::open(&path).unwrap(), b"abc");
        std::fs::write(&path, b"").unwrap();
        assert!(Mapping::open(&path).unwrap().is_empty());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Mapping::open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(Mapping::open(&std::env::temp_dir()).is_err(), "a directory is no file");
    }
}
