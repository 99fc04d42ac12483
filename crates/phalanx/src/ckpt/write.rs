//! Writing checkpoints so that a crash, a full disk or a failing one costs at most the checkpoint being written.
//!
//! Everything goes into a directory whose name marks it as unfinished. When all files and their names are safe, and those
//! that other ranks have written were read back, the directory gets its final name at once: that is the commit. Then `latest` is replaced in the same way, and only then
//! are old checkpoints removed, under an unfinished name first. So at any moment every directory with a final name is
//! whole, and the newest of them is not older than the last commit.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_mapping::Mapping;

use super::{
    Checkpoints, FORMAT, FileEntry, LATEST, MANIFEST, Manifest, ManifestError, RunState, Snapshot, Storage,
};
use super::{name_of, snapshot, step_of};
use crate::seal::checksum;
use crate::{Error, Session};

/// Ends the names of all that is unfinished.
const PARTIAL: &str = ".partial";

/// Bytes of a write.
const CHUNK: usize = 4 << 20;

/// How long a process that was killed may take to let go of its files.
const DYING: Duration = Duration::from_secs(2);

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
    /// What a rank has written is not where the first rank looks for it.
    #[error(
        "rank {rank} writes to another file system: {} is not there for rank 0 ({problem}); all ranks need one directory, on \
         a file system that they share", path.display()
    )]
    Unshared { rank: u32, path: PathBuf, problem: String },
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
        let probe = self.probe();
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
        let start = Instant::now();
        while self.claim.get().is_none() && matches!(dir.try_lock(), Err(TryLockError::WouldBlock)) {
            if start.elapsed() > DYING {
                return Err(SaveError::Claimed { dir: self.dir.clone() });
            }
            thread::park_timeout(DYING / 100);
        }
        self.claim.get_or_init(|| dir);
        Ok(())
    }

    /// What the file of a rank would be.
    pub fn describe(rank: u32, snapshot: &Snapshot) -> Result<FileEntry, SaveError> {
        snapshot.check_finite().map(|()| entry(file_name(rank), &snapshot.contents()))
    }

    /// A file of a checkpoint, to be written piece by piece.
    pub(super) fn begin_file(&self, step: u64, name: &str) -> PartialFile<'_> {
        let dir = self.partial(step);
        let path = dir.join(name);
        let made = at("create", &dir, self.storage.create_dir(&dir));
        let file = made.and_then(|()| at("create", &path, self.storage.create_file(&path)));
        PartialFile { writer: self, path, file }
    }

    /// Writes and syncs the file of one rank. Several ranks may do so at the same time.
    pub fn write_file(&self, step: u64, rank: u32, snapshot: &Snapshot) -> Result<FileEntry, SaveError> {
        let dir = self.partial(step);
        at("create", &dir, self.storage.create_dir(&dir))?;
        let path = dir.join(file_name(rank));
        // Another thread looks at the bytes meanwhile: this one mostly waits for the disk.
        let (looked_at, written) = thread::scope(|scope| {
            let look = || Writer::describe(rank, snapshot);
            let thread = thread::Builder::new().name("checksum".into()).spawn_scoped(scope, look);
            let thread = at("start a thread for", &path, thread)?;
            let written = self.write_contents(&path, &snapshot.contents());
            Ok::<_, SaveError>((thread.join().map_err(|_| SaveError::Panicked)?, written))
        })?;
        written.and(looked_at)
    }

    /// Leaves a file of this rank below the directory, which rank 0 has prepared, to see whether all ranks share it.
    pub fn leave_probe(&self, rank: u32) -> Result<(), SaveError> {
        let probe = self.probe();
        at("create", &probe, self.storage.create_dir(&probe))?;
        let path = probe.join(file_name(rank));
        at("create", &path, self.storage.create_file(&path)).map(|_| ())
    }

    /// Looks for the files that all ranks have left, and removes them.
    pub fn find_probes(&self, ranks: u32) -> Result<(), SaveError> {
        let probe = self.probe();
        for rank in 0..ranks {
            let path = probe.join(file_name(rank));
            File::open(&path).map_err(|error| SaveError::Unshared {
                rank,
                path,
                problem: error.to_string(),
            })?;
        }
        at("remove", &probe, self.storage.remove(&probe))
    }

    /// Reads the files of all ranks back, number r of which rank r has written: what is committed is what they wrote.
    pub fn read_back(&self, manifest: &Manifest) -> Result<(), SaveError> {
        let dir = self.partial(manifest.run.step);
        for (rank, file) in (0..).zip(&manifest.files) {
            let path = dir.join(&file.name);
            let problem = match Mapping::open(&path) {
                Err(error) => error.to_string(),
                Ok(bytes) if bytes.len() as u64 != file.bytes => {
                    format!("it has {} bytes there, the rank wrote {}", bytes.len(), file.bytes)
                }
                Ok(bytes) if checksum(&[&bytes]) != file.xxh3 => "it has other bytes there".into(),
                Ok(_) => continue,
            };
            return Err(SaveError::Unshared { rank, path, problem });
        }
        Ok(())
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

    /// Replaces the file that names the newest checkpoint and has the checksum of its manifest.
    fn point_to(&self, name: &str) -> Result<(), SaveError> {
        let beside = self.dir.join(format!(".{LATEST}{PARTIAL}"));
        let manifest = std::fs::read(self.dir.join(name).join(MANIFEST)).ok();
        let checksum = manifest.map_or(String::new(), |manifest| checksum(&[&manifest]) + "\n");
        self.write_contents(&beside, &[format!("{name}\n{checksum}").as_bytes()])?;
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

    /// Where files are made that only show what works.
    fn probe(&self) -> PathBuf {
        self.dir.join(format!(".probe{PARTIAL}"))
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

/// A file that is written piece by piece.
pub(super) struct PartialFile<'a> {
    writer: &'a Writer,
    path: PathBuf,
    file: Result<File, SaveError>,
}

impl PartialFile<'_> {
    /// Appends a piece. After a failure nothing more is written; [`PartialFile::finish`] tells it.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let Ok(file) = &mut self.file else { return };
        if let Err(error) = at("write", &self.path, self.writer.write_all(file, bytes)) {
            self.file = Err(error);
        }
    }

    /// Returns when all bytes are safe.
    pub(super) fn finish(self) -> Result<(), SaveError> {
        at("sync", &self.path, self.writer.storage.sync_file(&self.file?))
    }
}

/// The file that a rank writes.
fn file_name(rank: u32) -> String {
    format!("rank-{rank:04}.safetensors")
}

/// Length and checksum of a file that consists of `contents`.
fn entry(name: String, contents: &[&[u8]]) -> FileEntry {
    let bytes = contents.iter().map(|content| content.len() as u64).sum();
    FileEntry { name, bytes, xxh3: checksum(contents) }
}

/// Names call and path in a failure.
fn at<T>(call: &'static str, path: &Path, result: io::Result<T>) -> Result<T, SaveError> {
    result.map_err(|source| SaveError::Storage { call, path: path.into(), source })
}
