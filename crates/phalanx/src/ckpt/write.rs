//! Writing checkpoints so that a crash, a full disk or a failing one costs at most the checkpoint being written.
//!
//! Everything goes into a directory whose name marks it as unfinished. When all files and their names are safe, the
//! directory gets its final name at once: that is the commit. Then `latest` is replaced in the same way, and only then
//! are old checkpoints removed, under an unfinished name first. So at any moment every directory with a final name is
//! whole, and the newest of them is not older than the last commit.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;

use xxhash_rust::xxh3::Xxh3;

use super::{
    Checkpoints, FORMAT, FileEntry, MANIFEST, Manifest, ManifestError, RunState, Snapshot, Storage, name_of,
};
use super::{snapshot, step_of};
use crate::{Error, Session};

/// Ends the names of all that is unfinished.
const PARTIAL: &str = ".partial";

/// The file that names the newest checkpoint, for people and scripts.
const LATEST: &str = "latest";

/// Bytes of a write.
const CHUNK: usize = 4 << 20;

/// Why a checkpoint cannot be written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum SaveError {
    /// The file system refuses a call.
    #[error("cannot {call} {}: {source}", path.display())]
    Storage { call: &'static str, path: PathBuf, source: io::Error },
    /// Another run has the directory.
    #[error("another run writes its checkpoints below {}: wait for its end, or give this one a directory of its own", dir.display())]
    Claimed { dir: PathBuf },
    /// A tensor has diverged.
    #[error("tensor `{tensor}` has the value {value} in its part at {origin:?}")]
    NotFinite { tensor: String, origin: Vec<usize>, value: f32 },
    /// Tensors cannot be laid out in a file: a bug.
    #[error("the tensors make no file: {0}; this is a defect, please report it")]
    Layout(safetensors::SafeTensorError),
    /// The manifest would not be read back: a bug.
    #[error("the manifest is wrong: {0}; this is a defect, please report it")]
    Manifest(#[from] ManifestError),
    /// Another rank cannot write its file, or the first one cannot commit.
    #[error("rank {rank}: {problem}")]
    Rank { rank: u32, problem: String },
    /// A thread that writes has panicked: a bug.
    #[error("a thread that writes has panicked; this is a defect, please report it")]
    Panicked,
}

/// Writes the checkpoints of one run.
#[derive(Clone)]
pub struct Writer {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    keep: usize,
    /// The directory, locked as long as this writer or a clone of it lives.
    claim: Arc<OnceLock<File>>,
}

/// Writes a checkpoint of a session that is not part of a job, as step `run.step`.
pub fn write(writer: &Writer, session: &mut Session, run: RunState) -> Result<(), Error> {
    let mut snapshot = Snapshot::of(session)?;
    snapshot.take(session)?;
    let tensors = snapshot::tensors(session);
    let files = vec![writer.write_file(run.step, 0, &snapshot)?];
    Ok(writer.commit(&Manifest { format: FORMAT, run, tensors, files })?)
}

impl Writer {
    /// Writes below `dir` and keeps the last `keep` checkpoints and the one with the lowest loss on held-back data.
    pub fn new(storage: Arc<dyn Storage>, dir: impl Into<PathBuf>, keep: usize) -> Writer {
        Writer { storage, dir: dir.into(), keep: keep.max(1), claim: Arc::default() }
    }

    /// Where checkpoints are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes the directory, if need be, claims it, tries whether it can be written, and puts right what a broken attempt has left: what is
    /// unfinished goes, and `latest` names the newest checkpoint again. None is removed: the newest may be damaged.
    pub fn prepare(&self) -> Result<(), SaveError> {
        let probe = self.dir.join(format!(".probe{PARTIAL}"));
        at("create", &self.dir, self.storage.create_dir(&self.dir))?;
        self.claim()?;
        at("create", &probe, self.storage.create_dir(&probe))?;
        let names = self.list()?;
        self.remove_partial(&names)?;
        match names.iter().filter_map(|name| step_of(name)).max() {
            Some(newest) => self.point_to(&name_of(newest)),
            None => Ok(()),
        }
    }

    /// Keeps other runs from the directory: they would remove what this one has not finished. Where the file system has no
    /// locks no process is kept from it. A process that dies, in whatever way, gives its claim up.
    fn claim(&self) -> Result<(), SaveError> {
        let Ok(dir) = File::open(&self.dir) else { return Ok(()) };
        if self.claim.get().is_none() && matches!(dir.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(SaveError::Claimed { dir: self.dir.clone() });
        }
        self.claim.get_or_init(|| dir);
        Ok(())
    }

    /// Writes and syncs the file of one rank. Several ranks may do so at the same time.
    pub fn write_file(&self, step: u64, rank: u32, snapshot: &Snapshot) -> Result<FileEntry, SaveError> {
        let (dir, name) = (self.partial(step), format!("rank-{rank:04}.safetensors"));
        at("create", &dir, self.storage.create_dir(&dir))?;
        let path = dir.join(&name);
        // Another thread looks at the bytes meanwhile: this one mostly waits for the disk.
        let (looked_at, written) = thread::scope(|scope| {
            let look = || snapshot.check_finite().map(|()| entry(name, &snapshot.contents()));
            let thread = thread::Builder::new().name("checksum".into()).spawn_scoped(scope, look);
            let thread = at("start a thread for", &path, thread)?;
            let written = self.write_contents(&path, &snapshot.contents());
            Ok::<_, SaveError>((thread.join().map_err(|_| SaveError::Panicked)?, written))
        })?;
        written.and(looked_at)
    }

    /// Makes a checkpoint of the files that all ranks have written, and removes the oldest ones.
    pub fn commit(&self, manifest: &Manifest) -> Result<(), SaveError> {
        let step = manifest.run.step;
        let (partial, name) = (self.partial(step), name_of(step));
        self.write_contents(&partial.join(MANIFEST), &[&manifest.to_text()?])?;
        at("sync", &partial, self.storage.sync_dir(&partial))?;
        if self.list()?.contains(&name) {
            // Only a damaged checkpoint is ever written again.
            self.rename(&self.dir.join(&name), &self.dir.join(format!(".{name}.replaced{PARTIAL}")))?;
        }
        self.rename(&partial, &self.dir.join(&name))?;
        self.sync_dir()?;
        self.point_to(&name)?;
        self.prune(step)
    }

    /// Removes what an attempt that failed has left, as far as that is possible.
    pub fn abandon(&self, step: u64) {
        // What stays is removed by the next commit or the next run.
        let _ = self.storage.remove(&self.partial(step));
    }

    /// Replaces the file that names the newest checkpoint.
    fn point_to(&self, name: &str) -> Result<(), SaveError> {
        let beside = self.dir.join(format!(".{LATEST}{PARTIAL}"));
        self.write_contents(&beside, &[format!("{name}\n").as_bytes()])?;
        self.rename(&beside, &self.dir.join(LATEST))?;
        self.sync_dir()
    }

    /// Removes all that is unfinished, and checkpoints before `newest` beyond those to keep, but never the best. Later ones
    /// were found damaged when the run was resumed; they go when they are written again.
    fn prune(&self, newest: u64) -> Result<(), SaveError> {
        let names = self.list()?;
        self.remove_partial(&names)?;
        let mut steps: Vec<u64> = names.iter().filter_map(|name| step_of(name)).collect();
        steps.retain(|&step| step <= newest);
        steps.sort_unstable();
        let best = Checkpoints::open(&self.dir).best(&steps);
        let old = &steps[..steps.len().saturating_sub(self.keep)];
        for &step in old.iter().filter(|&&step| best != Some(step)) {
            let partial = self.partial(step);
            self.rename(&self.dir.join(name_of(step)), &partial)?;
            at("remove", &partial, self.storage.remove(&partial))?;
        }
        Ok(())
    }

    fn remove_partial(&self, names: &[String]) -> Result<(), SaveError> {
        let partial = names.iter().filter(|name| name.starts_with('.') && name.ends_with(PARTIAL));
        partial
            .map(|name| self.dir.join(name))
            .try_for_each(|path| at("remove", &path, self.storage.remove(&path)))
    }

    /// Where a checkpoint is while it is not whole.
    fn partial(&self, step: u64) -> PathBuf {
        self.dir.join(format!(".{}{PARTIAL}", name_of(step)))
    }

    fn write_contents(&self, path: &Path, contents: &[&[u8]]) -> Result<(), SaveError> {
        let mut file = at("create", path, self.storage.create_file(path))?;
        for content in contents {
            at("write", path, self.write_all(&mut file, content))?;
        }
        at("sync", path, self.storage.sync_file(&file))
    }

    fn write_all(&self, file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.storage.write(file, &bytes[..bytes.len().min(CHUNK)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), SaveError> {
        at("rename", from, self.storage.rename(from, to))
    }

    fn sync_dir(&self) -> Result<(), SaveError> {
        at("sync", &self.dir, self.storage.sync_dir(&self.dir))
    }

    fn list(&self) -> Result<Vec<String>, SaveError> {
        at("list", &self.dir, self.storage.list(&self.dir))
    }
}

/// Length and checksum of a file that consists of `contents`.
fn entry(name: String, contents: &[&[u8]]) -> FileEntry {
    let (mut bytes, mut hasher) = (0, Xxh3::new());
    for content in contents {
        bytes += content.len() as u64;
        hasher.update(content);
    }
    FileEntry { name, bytes, xxh3: format!("{:032x}", hasher.digest128()) }
}

/// Names call and path in a failure.
fn at<T>(call: &'static str, path: &Path, result: io::Result<T>) -> Result<T, SaveError> {
    result.map_err(|source| SaveError::Storage { call, path: path.into(), source })
}
