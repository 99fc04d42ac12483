//! Reading files that people write or that describe others: as a whole, but never more than such a file can have. A device
//! that never ends, given by mistake, is an error and not all memory.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The most bytes of a plan, a configuration or a list.
const MOST: u64 = 64 << 20;

/// The bytes of a file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_up_to(path, MOST)
}

/// The text of a file.
pub fn read_text(path: &Path) -> io::Result<String> {
    io::read_to_string(read(path)?.as_slice())
}

/// The bytes of a file that may have as many as `most`.
pub fn read_up_to(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        length if length > most => {
            let problem = format!("it has more than {} MiB, which no such file has", most >> 20);
            Err(io::Error::new(io::ErrorKind::FileTooLarge, problem))
        }
        _ => Ok(bytes),
    }
}
