//! When a run saves its state, and how the ranks of a job do it together.
//!
//! A checkpoint is due at a step; no later one is launched until its state has been copied. A thread writes the copy while
//! training goes on; the next checkpoint waits for it. Alone, the thread commits, too. In a job it only writes the file of
//! its rank: at the end of a later step, when all ranks have written theirs, rank 0 commits. All ranks meet the same
//! calls in the same order, so what becomes of a checkpoint is known to all or to none.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use phalanx_net::Network;

use super::resume::{Notice, json};
use super::{Run, TrainConfig};
use crate::ckpt::{self, CkptError, FORMAT, FileEntry, Manifest, RunState, SaveError, TensorEntry, name_of};
use crate::ckpt::{Disk, Faulty, Snapshot, Storage, Writer};
use crate::job::{Agreed, Drill, JobError, StepVote, shared};
use crate::pipeline::Settings;
use crate::{Error, Session};

/// How often a run saves if nothing is said.
const USUAL: Duration = Duration::from_secs(600);

/// How often a run saves.
#[derive(Clone, Copy)]
enum Rhythm {
    Steps(u64),
    Time(Duration),
}

/// Saves a run.
pub struct Saver {
    writer: Writer,
    rhythm: Rhythm,
    is_strict: bool,
    waits: bool,
    rank: u32,
    tensors: Vec<TensorEntry>,
    plan: String,
    program: String,
    /// Not here while it is written.
    snapshot: Option<Snapshot>,
    writing: Option<Writing>,
    /// The steps after which the next checkpoint is due.
    due: u64,
    /// The steps and the time of the last one.
    last: (u64, Instant),
}

/// A checkpoint on its way.
struct Writing {
    manifest: Manifest,
    thread: JoinHandle<(Snapshot, Result<FileEntry, SaveError>)>,
    /// Whether the thread commits.
    is_alone: bool,
}

impl Saver {
    /// What a run that has done `steps` steps needs, if it is to save. Allocates the memory for snapshots.
    pub fn new(
        config: &TrainConfig,
        settings: &Settings,
        session: &Session,
        steps: u64,
    ) -> Result<Option<Saver>, Error> {
        let Some(dir) = &config.checkpoint else { return Ok(None) };
        let storage: Arc<dyn Storage> = match config.drill()? {
            Some(Drill::Save(fault)) => Arc::new(Faulty::new(Some(fault))),
            _ => Arc::new(Disk),
        };
        let rhythm = match (config.every, config.every_minutes) {
            (Some(steps), _) => Rhythm::Steps(steps),
            (None, Some(minutes)) => Rhythm::Time(Duration::from_secs_f64(60.0 * minutes)),
            (None, None) => Rhythm::Time(USUAL),
        };
        Ok(Some(Saver {
            writer: Writer::new(storage, dir, config.keep),
            rhythm,
            is_strict: config.strict,
            waits: config.sync_checkpoints,
            rank: session.rank(),
            tensors: ckpt::tensors(session),
            plan: settings.plan.to_text(),
            program: format!("{:032x}", session.program().hash()),
            snapshot: Some(Snapshot::of(session)?),
            writing: None,
            due: rhythm.next(steps),
            last: (steps, Instant::now()),
        }))
    }

    fn prepare(&self) -> Result<(), CkptError> {
        self.writer.prepare().map_err(|error| CkptError::Directory(Box::new(error)))
    }

    /// Bytes of the snapshots of all ranks.
    pub fn snapshot_bytes(&self) -> usize {
        self.tensors.iter().map(TensorEntry::bytes).sum()
    }

    /// The last step that may be launched before the next snapshot.
    pub fn due(&self) -> u64 {
        self.due
    }

    /// What this rank has to say after a step.
    pub fn verdict(&self) -> StepVote {
        let is_time = match self.rhythm {
            // The clock of one rank counts.
            Rhythm::Time(most) => self.rank == 0 && self.last.1.elapsed() >= most,
            Rhythm::Steps(_) => false,
        };
        let written = self.writing.as_ref().is_some_and(|writing| writing.thread.is_finished());
        StepVote { stop: false, save: is_time, written }
    }

    /// Copies the state and lets a thread write it.
    fn start(&mut self, session: &mut Session, run: RunState, is_alone: bool) -> Result<(), Error> {
        let mut snapshot = match self.snapshot.take() {
            Some(snapshot) => snapshot,
            None => Snapshot::of(session)?,
        };
        snapshot.take(session)?;
        let step = run.step;
        let manifest = Manifest { format: FORMAT, run, tensors: self.tensors.clone(), files: Vec::new() };
        let (writer, rank, own) = (self.writer.clone(), self.rank, manifest.clone());
        let write = move || {
            let written = writer.write_file(step, rank, &snapshot).and_then(|file| match is_alone {
                true => writer.commit(&Manifest { files: vec![file.clone()], ..own }).map(|()| file),
                false => Ok(file),
            });
            if is_alone && written.is_err() {
                writer.abandon(step);
            }
            (snapshot, written)
        };
        let thread = thread::Builder::new().name("checkpoint".into()).spawn(write).map_err(|source| {
            SaveError::Storage { call: "start a thread for", path: self.writer.dir().into(), source }
        })?;
        self.writing = Some(Writing { manifest, thread, is_alone });
        (self.due, self.last) = (self.rhythm.next(step), (step, Instant::now()));
        Ok(())
    }

    /// Waits until a checkpoint is written, which in a job is committed now; what became of it.
    fn finish(
        &mut self,
        Writing { manifest, thread, .. }: Writing,
        network: Option<&dyn Network>,
    ) -> Result<Result<(), SaveError>, JobError> {
        let written = match thread.join() {
            Ok((snapshot, written)) => {
                self.snapshot = Some(snapshot);
                written
            }
            Err(_) => Err(SaveError::Panicked),
        };
        match network {
            None => Ok(written.map(|_| ())),
            Some(network) => self.commit_together(network, manifest, written),
        }
    }

    /// What became of a checkpoint, after rank 0 has committed it if every rank has written its file.
    fn commit_together(
        &self,
        network: &dyn Network,
        mut manifest: Manifest,
        written: Result<FileEntry, SaveError>,
    ) -> Result<Result<(), SaveError>, JobError> {
        let mine = serde_json::to_vec(&written.map_err(|error| error.to_string())).unwrap_or_default();
        let mut problem = None;
        for (rank, bytes) in (0..).zip(network.all_gather(&mine)?) {
            let read: Result<Result<FileEntry, String>, _> = serde_json::from_slice(&bytes);
            match read.map_err(|_| JobError::Garbled { rank, what: "file of a checkpoint" })? {
                Ok(file) => manifest.files.push(file),
                Err(text) => problem = problem.or(Some((rank, text))),
            }
        }
        if problem.is_none() {
            problem = self.commit_for_all(network, &manifest)?.map(|text| (0, text));
        }
        let Some((rank, problem)) = problem else { return Ok(Ok(())) };
        if self.rank == 0 {
            self.writer.abandon(manifest.run.step);
        }
        Ok(Err(SaveError::Rank { rank, problem }))
    }

    /// Rank 0 commits; all hear why it could not.
    fn commit_for_all(&self, network: &dyn Network, manifest: &Manifest) -> Result<Option<String>, JobError> {
        let mut problem = match self.rank {
            0 => self.writer.commit(manifest).err().map(|error| error.to_string()).unwrap_or_default(),
            _ => String::new(),
        }
        .into_bytes();
        network.broadcast(0, &mut problem)?;
        Ok((!problem.is_empty()).then(|| String::from_utf8_lossy(&problem).into_owned()))
    }
}

impl Drop for Saver {
    /// What was begun alone is committed, however the run ends.
    fn drop(&mut self) {
        if let Some(writing) = self.writing.take().filter(|writing| writing.is_alone) {
            // Whether it worked is told to nobody: the run has failed for another reason.
            let _ = writing.thread.join();
        }
    }
}

impl Rhythm {
    /// The steps after which a checkpoint is due, as far as steps decide.
    fn next(self, steps: u64) -> u64 {
        match self {
            Rhythm::Steps(every) => (steps / every + 1).saturating_mul(every),
            Rhythm::Time(_) => u64::MAX,
        }
    }
}

impl Run {
    /// Gets ready to save, if that is asked for. Rank 0 prepares the directory for all.
    pub(super) fn prepare_to_save(&mut self) -> Result<(), Error> {
        self.saver = Saver::new(&self.config, &self.settings, self.trainer.session(), self.past.steps)?;
        let Some(saver) = &self.saver else { return Ok(()) };
        match &self.ranks {
            None => saver.prepare()?,
            Some(ranks) => {
                let prepare = || Ok(saver.prepare().map(|()| String::new())?);
                shared::of_first(&*ranks.network, "directory for checkpoints", prepare)?;
            }
        }
        Ok(())
    }

    /// Saves after a step, if it is time to, and notes what became of the last checkpoint.
    pub(super) fn save_if_due(&mut self, agreed: Agreed) -> Result<(), Error> {
        if agreed.written {
            self.settle_checkpoint()?;
        }
        let (done, launched, is_done) = (self.done(), self.trainer.steps(), self.is_done());
        let Some(saver) = &mut self.saver else { return Ok(()) };
        if agreed.save {
            saver.due = saver.due.min(launched);
        }
        if done != saver.due && !is_done || done == saver.last.0 {
            return Ok(());
        }
        let waits = saver.waits || is_done;
        self.settle_checkpoint()?;
        let run = self.state()?;
        if let (Some(saver), Some(run)) = (&mut self.saver, run) {
            saver.start(self.trainer.session_mut(), run, self.ranks.is_none())?;
        }
        if waits { self.settle_checkpoint() } else { Ok(()) }
    }

    /// Waits for the checkpoint on its way. That it failed ends a strict run, and is a warning else.
    pub(super) fn settle_checkpoint(&mut self) -> Result<(), Error> {
        let Some(saver) = &mut self.saver else { return Ok(()) };
        let Some(writing) = saver.writing.take() else { return Ok(()) };
        let name = name_of(writing.manifest.run.step);
        let network = self.ranks.as_ref().map(|ranks| &*ranks.network);
        match saver.finish(writing, network)? {
            Ok(()) => Ok(()),
            Err(error) if saver.is_strict => Err(error.into()),
            Err(error) => {
                let text = format!("{name} is not saved: {error}; training goes on");
                self.notices.push(Notice::Warning(text));
                Ok(())
            }
        }
    }

    /// Everything besides tensors that the next step depends on, if the run is to save.
    fn state(&self) -> Result<Option<RunState>, Error> {
        let Some(saver) = &self.saver else { return Ok(None) };
        Ok(Some(RunState {
            step: self.done(),
            tokens: self.past.tokens + (self.losses.len() * self.tokens.len()) as u64,
            loss: self.losses.last().copied().or(self.past.loss).unwrap_or_default(),
            seed: self.settings.seed,
            learning_rate: self.rate,
            model: json(&self.model)?,
            config: json(&self.config)?,
            plan: saver.plan.clone(),
            program: saver.program.clone(),
        }))
    }
}
