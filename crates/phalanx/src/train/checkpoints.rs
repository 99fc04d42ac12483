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
use crate::ckpt::{
    self, Checkpoint, Checkpoints, CkptError, FORMAT, FileEntry, Manifest, RunState, SaveError, TensorEntry,
    name_of,
};
use crate::ckpt::{Disk, Faulty, Snapshot, Storage, Writer};
use crate::job::{Agreed, Drill, JobError, StepVote, shared};
use crate::pipeline::Settings;
use crate::{Error, Session};

/// How often a run saves if nothing is said.
const USUAL: Duration = Duration::from_secs(600);

/// How often a run saves.
#[derive(Clone, Copy)]
enum Interval {
    Steps(u64),
    Time(Duration),
}

/// Saves a run.
pub struct Checkpointer {
    writer: Writer,
    interval: Interval,
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

impl Checkpointer {
    /// What a run that has done `steps` steps needs, if it is to save. Allocates the memory for snapshots.
    pub fn new(
        config: &TrainConfig,
        settings: &Settings,
        session: &Session,
        steps: u64,
    ) -> Result<Option<Checkpointer>, Error> {
        let Some(dir) = &config.checkpoint else { return Ok(None) };
        let storage: Arc<dyn Storage> = match config.parse_drill()? {
            Some(Drill::Save(fault)) => Arc::new(Faulty::new(Some(fault))),
            _ => Arc::new(Disk),
        };
        let interval = match (config.every, config.every_minutes) {
            (Some(steps), _) => Interval::Steps(steps),
            (None, Some(minutes)) => Interval::Time(Duration::from_secs_f64(60.0 * minutes)),
            (None, None) => Interval::Time(USUAL),
        };
        Ok(Some(Checkpointer {
            writer: Writer::new(storage, dir, config.keep),
            interval,
            is_strict: config.strict,
            waits: config.sync_checkpoints,
            rank: session.rank(),
            tensors: ckpt::tensors(session),
            plan: settings.plan.to_text(),
            program: format!("{:032x}", session.program().hash()),
            snapshot: Some(Snapshot::of(session)?),
            writing: None,
            due: interval.next(steps),
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

    /// What this rank reports after a step.
    pub fn verdict(&self) -> StepVote {
        let is_time = match self.interval {
            // The clock of one rank counts.
            Interval::Time(most) => self.rank == 0 && self.last.1.elapsed() >= most,
            Interval::Steps(_) => false,
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
        (self.due, self.last) = (self.interval.next(step), (step, Instant::now()));
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

    /// Rank 0 commits and broadcasts why it could not, if so.
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

impl Drop for Checkpointer {
    /// What was begun alone is committed, however the run ends.
    fn drop(&mut self) {
        if let Some(writing) = self.writing.take().filter(|writing| writing.is_alone) {
            // Its result is not reported: the run has failed for another reason.
            let _ = writing.thread.join();
        }
    }
}

impl Interval {
    /// The steps after which a checkpoint is due, as far as steps decide.
    fn next(self, steps: u64) -> u64 {
        match self {
            Interval::Steps(every) => (steps / every + 1).saturating_mul(every),
            Interval::Time(_) => u64::MAX,
        }
    }
}

impl Run {
    /// Prepares to save, if that is asked for. Rank 0 prepares the directory for all.
    pub(super) fn prepare_to_save(&mut self) -> Result<(), Error> {
        self.checkpointer = Checkpointer::new(
            &self.config,
            &self.settings,
            self.trainer.session(),
            self.progress.earlier.steps,
        )?;
        let Some(checkpointer) = &self.checkpointer else { return Ok(()) };
        match &self.ranks {
            None => checkpointer.prepare()?,
            Some(ranks) => {
                let prepare = || Ok(checkpointer.prepare().map(|()| String::new())?);
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
        let (done, launched, is_done) = (self.progress.done(), self.trainer.steps(), self.is_done());
        let is_best =
            self.config.save_best && self.eval_losses().is_some_and(|losses| losses.best_step == done);
        let Some(checkpointer) = &mut self.checkpointer else { return Ok(()) };
        if agreed.save {
            checkpointer.due = checkpointer.due.min(launched);
        }
        if done != checkpointer.due && !is_done && !is_best || done == checkpointer.last.0 {
            return Ok(());
        }
        let waits = checkpointer.waits || is_done;
        self.settle_checkpoint()?;
        let run = self.state()?;
        if let (Some(checkpointer), Some(run)) = (&mut self.checkpointer, run) {
            checkpointer.start(self.trainer.session_mut(), run, self.ranks.is_none())?;
        }
        if waits { self.settle_checkpoint() } else { Ok(()) }
    }

    /// Waits for the checkpoint on its way. That it failed ends a strict run, and is a warning else.
    pub(super) fn settle_checkpoint(&mut self) -> Result<(), Error> {
        let Some(checkpointer) = &mut self.checkpointer else { return Ok(()) };
        let Some(writing) = checkpointer.writing.take() else { return Ok(()) };
        let name = name_of(writing.manifest.run.step);
        let network = self.ranks.as_ref().map(|ranks| &*ranks.network);
        match checkpointer.finish(writing, network)? {
            Ok(()) => Ok(()),
            Err(error) if checkpointer.is_strict => Err(error.into()),
            Err(error) => {
                let text = format!("{name} is not saved: {error}; training goes on");
                self.notices.push(Notice::Warning(text));
                Ok(())
            }
        }
    }

    /// The checkpoint whose weights are to be saved in place of the last ones, as rank 0 sees it: the one with the lowest
    /// loss on held-back data.
    pub(super) fn best_checkpoint(&self) -> Result<Option<Checkpoint>, Error> {
        let Some(dir) = self.config.checkpoint.as_ref().filter(|_| self.config.save_best) else {
            return Ok(None);
        };
        let checkpoints = Checkpoints::open(dir);
        let best = || Ok::<_, Error>(checkpoints.best(&checkpoints.list()?));
        let best = match &self.ranks {
            None => best()?,
            Some(ranks) => {
                let text = || Ok(best()?.map_or(String::new(), |step| step.to_string()));
                shared::of_first(&*ranks.network, "best checkpoint", text)?.parse().ok()
            }
        };
        Ok(best.map(|step| checkpoints.checkpoint(step)).transpose()?)
    }

    /// Everything besides tensors that the next step depends on, if the run is to save.
    fn state(&self) -> Result<Option<RunState>, Error> {
        let Some(checkpointer) = &self.checkpointer else { return Ok(None) };
        Ok(Some(RunState {
            step: self.progress.done(),
            tokens: self.progress.earlier.tokens + (self.losses().len() * self.tokens.len()) as u64,
            loss: self.progress.last_loss(),
            evaluations: self.eval_losses(),
            seed: self.settings.seed,
            learning_rate: self.config.learning_rate(),
            model: json(&self.model)?,
            config: json(&self.config)?,
            plan: checkpointer.plan.clone(),
            program: checkpointer.program.clone(),
        }))
    }
}
