//! What was found out about files before, so that a second start reads none of them as a whole.
//!
//! Files are recognized by path, size, times and inode. A file that changed in the last seconds is not: it could change
//! again without a trace. What is found out is kept in the cache under the hash of all that.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf, absolute};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::cache::{self, hash_part};
use super::corpus::Part;

/// How long ago a file must have changed: file systems have clocks that tick every other second.
const SETTLED: Duration = Duration::from_secs(2);

/// A file of tokens, and one more than its largest token.
pub(super) type TokenBound = (PathBuf, usize);

/// What is known of files: that all text is UTF-8, and this.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Findings {
    /// The name under which the tokens of the text are kept.
    pub(super) tokens: Option<String>,
    /// The file of tokens with the largest one.
    pub(super) largest: Option<TokenBound>,
}

impl Findings {
    /// The tokens of the text, if they are kept.
    pub(super) fn part(&self, cache: &Path) -> Option<Part> {
        let name = u128::from_str_radix(self.tokens.as_ref()?, 16).ok()?;
        cache::find(cache, name)
    }
}

/// The place of what is known about files.
pub(super) struct Stamp(Option<PathBuf>);

impl Stamp {
    /// The place for files that are read in a certain way; none if there is no cache, or if they changed just now.
    pub(super) fn new(cache: Option<&Path>, paths: &[PathBuf], way: &[&[u8]]) -> Stamp {
        let identity = || -> io::Result<Option<u128>> {
            let mut hash = Xxh3::new();
            for path in paths {
                let meta = fs::metadata(path)?;
                let age = SystemTime::now().duration_since(meta.modified()?).unwrap_or_default();
                if age < SETTLED {
                    return Ok(None);
                }
                hash_part(&mut hash, absolute(path)?.as_os_str().as_encoded_bytes());
                let numbers = [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()];
                numbers.iter().for_each(|number| hash.update(&number.to_le_bytes()));
                [meta.len(), meta.ino(), meta.dev()]
                    .iter()
                    .for_each(|number| hash.update(&number.to_le_bytes()));
            }
            way.iter().for_each(|part| hash_part(&mut hash, part));
            Ok(Some(hash.digest128()))
        };
        let identity = cache.and_then(|dir| Some((dir, identity().ok()??)));
        Stamp(identity.map(|(dir, identity)| dir.join(format!("{identity:032x}.stamp"))))
    }

    pub(super) fn read(&self) -> Option<Findings> {
        serde_json::from_slice(&fs::read(self.0.as_ref()?).ok()?).ok()
    }

    /// Keeps what is known; without it the next start takes longer.
    pub(super) fn write(&self, findings: &Findings) {
        let Some(path) = &self.0 else { return };
        let write = || -> io::Result<()> {
            fs::create_dir_all(path.parent().unwrap_or(Path::new("")))?;
            let partial = path.with_extension(format!("{}.partial", std::process::id()));
            fs::write(&partial, serde_json::to_vec(findings)?)?;
            fs::rename(partial, path)
        };
        _ = write();
    }
}
