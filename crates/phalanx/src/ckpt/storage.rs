//! The file system as the writer of checkpoints sees it: eight calls, nothing else.
//!
//! No call hides a failure or repeats itself, so what a crash can leave behind is a prefix of the calls made.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Where checkpoints are written.
pub trait Storage: Send + Sync {
    /// Makes a directory and those above it; one that is there stays as it is.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Makes an empty file, in place of any that has the name.
    fn create_file(&self, path: &Path) -> io::Result<File>;

    /// Appends some of `bytes`, at least one if there are any; how many.
    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize>;

    /// Returns when all bytes of a file are safe.
    fn sync_file(&self, file: &File) -> io::Result<()>;

    /// Returns when all names in a directory are safe.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Gives a file or directory another name, at once and entirely.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file, or a directory with all that is in it.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// The names in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
}

/// The file system itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Storage for Disk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn create_file(&self, path: &Path) -> io::Result<File> {
        File::create(path)
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize> {
        file.write(bytes)
    }

    fn sync_file(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::symlink_metadata(path)?.is_dir() {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = fs::read_dir(dir)?.map(name).collect::<io::Result<_>>()?;
        names.sort_unstable();
        Ok(names)
    }
}
