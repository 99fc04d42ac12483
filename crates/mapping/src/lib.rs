//! A file seen as memory, read only. The one place where files are mapped; everything else handles slices.
//!
//! A crate of its own because mapping is unsafe and its users, which read data, weights and checkpoints, forbid that.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;

use memmap2::{Mmap, UncheckedAdvice};

/// The system pages in what is near, too, also what was given back before: bytes in front of a range go with it.
const NEIGHBORS: usize = 1 << 16;

/// The bytes of a file, paged in when first touched.
///
/// The file must not shrink while it is mapped: the operating system ends a process that reads past the new end. Other
/// writes show up as changed bytes; readers that checked the bytes once must not rely on the check for memory safety.
#[derive(Debug)]
pub struct Mapping(Option<Mmap>);

impl Mapping {
    /// Maps the whole file; an empty file gives no bytes.
    pub fn open(path: &Path) -> io::Result<Mapping> {
        // Looked at first: opening a pipe waits for a process that writes to it.
        if !path.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        let meta = file.metadata()?;
        if meta.len() == 0 {
            return Ok(Mapping(None));
        }
        // SAFETY: the mapping is private to this type and only ever read as plain bytes, for which every value is
        // valid; that the file is left alone meanwhile is the documented condition of this type.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Mapping(Some(map)))
    }

    /// Gives the memory of a range back to the system, for a reader that goes through a large file once: bytes that are
    /// touched again are read again. A range behind the end is none.
    pub fn release(&self, range: Range<usize>) {
        let Some(map) = self.0.as_ref().filter(|map| range.end <= map.len()) else { return };
        let start = range.start.saturating_sub(NEIGHBORS);
        // SAFETY: the pages of a shared, read-only mapping of a file hold nothing that the file does not, so dropping them
        // changes no byte that is read later. The range lies inside, as checked above.
        let released = unsafe {
            map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, range.end.saturating_sub(start))
        };
        // It is advice: without it the process holds more memory.
        _ = released;
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
        let mapping = Mapping::open(&path).unwrap();
        assert_eq!(&*mapping, b"abc");
        for range in [0..3, 1..2, 3..3, 2..9] {
            mapping.release(range);
            assert_eq!(&*mapping, b"abc", "it is read again");
        }
        std::fs::write(&path, b"").unwrap();
        assert!(Mapping::open(&path).unwrap().is_empty());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Mapping::open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(Mapping::open(&std::env::temp_dir()).is_err(), "a directory is no file");
    }
}
