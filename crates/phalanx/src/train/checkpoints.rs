//! When a run saves its state, and how the ranks of a job do it together.
//!
//! A checkpoint is due at a step; no later one is launched until its state has been copied. A thread writes the copy while
//! training goes on; the next checkpoint waits for it. Alone, the thread commits, too. In a job it only writes the file of
//! its rank: at the end of a later step, when all ranks have written theirs, a thread of rank 0 reads them back and
//! commits, and at the end of one more step all learn what became of it. Where ranks share no file system, rank 0 writes
//! for all: they send it their state at the end of that later step, and training waits for it. All ranks meet the same calls in the same order,
//! so that is known to all or to none.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use phalanx_net::Network;

use super::Run;
use super::report::CommittedCheckpoint;
use super::resume::{Notice, json};
use crate::ckpt::{
    self, Checkpoint, Checkpoints, CkptError, FORMAT, FileEntry, Manifest, RunState, SaveError, TensorEntry,
    name_of,
};
use crate::ckpt::{Disk, Faulty, Snapshot, Storage, Writer};
use crate::job::{Agreed, Drill, JobError, StepVote, shared};
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
    /// Whether there are no other ranks.
    is_alone: bool,
    /// Whether rank 0 writes for all.
    gathers: bool,
    tensors: Vec<TensorEntry>,
    plan: String,
    program: String,
    /// Not here while it is written.
    snapshot: Option<Snapshot>,
    writing: Option<Writing>,
    /// The steps after which the next checkpoint is due.
    due: u64,
    /// The steps and the time of the last one that was begun.
    last: (u64, Instant),
    /// The steps of the last one that was committed.
    saved: Option<u64>,
    /// Why the one that was begun after it is not.
    problem: Option<String>,
    /// Those that were committed and not yet reported.
    committed: Vec<CommittedCheckpoint>,
}

/// A checkpoint on its way.
struct Writing {
    manifest: Manifest,
    phase: Phase,
}

/// What is done for a checkpoint.
enum Phase {
    /// A thread writes the file of this rank; a run that is alone commits, too.
    Files(JoinHandle<(Snapshot, Result<FileEntry, SaveError>)>),
    /// A thread of rank 0 reads all files back and commits; other ranks have none.
    Commit(Result<Option<JoinHandle<Result<(), SaveError>>>, SaveError>),
}

impl Phase {
    /// Whether this rank has done its part.
    fn is_finished(&self) -> bool {
        match self {
            Phase::Files(thread) => thread.is_finished(),
            Phase::Commit(Ok(Some(thread))) => thread.is_finished(),
            Phase::Commit(_) => true,
        }
    }
}

impl Checkpointer {
    /// What a run needs, if it is to save. Allocates the memory for snapshots.
    fn of(run: &Run) -> Result<Option<Checkpointer>, Error> {
        let Run { config, settings, trainer, progress, .. } = run;
        let (session, steps) = (trainer.session(), progress.earlier.steps);
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
            is_alone: run.ranks.is_none(),
            gathers: run.ranks.is_some() && config.gather_checkpoints,
            tensors: ckpt::tensors(session),
            plan: settings.plan.to_text(),
            program: format!("{:032x}", session.program().hash()),
            snapshot: Some(Snapshot::of(session)?),
            writing: None,
            due: interval.next(steps),
            last: (steps, Instant::now()),
            saved: progress.earlier.loss.map(|_| steps),
            problem: None,
            committed: Vec::new(),
        }))
    }

    fn prepare(&self) -> Result<(), CkptError> {
        self.writer.prepare().map_err(|error| CkptError::Directory(Box::new(error)))
    }

    /// Rank 0 prepares the directory, and finds out whether all ranks see the same one.
    fn prepare_together(&self, network: &dyn Network) -> Result<(), JobError> {
        let what = "directory for checkpoints";
        shared::of_first(network, what, || Ok(self.prepare().map(|()| String::new())?))?;
        if self.gathers {
            return Ok(());
        }
        let mine =
            self.writer.leave_probe(self.rank).err().map(|error| error.to_string()).unwrap_or_default();
        let problems = network.all_gather(mine.as_bytes())?;
        shared::of_first(network, what, || {
            let problem = (0..).zip(&problems).find(|(_, problem)| !problem.is_empty());
            match problem.map(|(rank, text)| (rank, String::from_utf8_lossy(text).into_owned())) {
                Some((rank, problem)) => Err(SaveError::Rank { rank, problem }.into()),
                None => Ok(self.writer.find_probes(network.size()).map(|()| String::new())?),
            }
        })?;
        Ok(())
    }

    /// The steps of the last checkpoint that was committed, and why the one after it is not.
    pub fn outcome(&self) -> (Option<u64>, Option<&str>) {
        (self.saved, self.problem.as_deref())
    }

    /// The checkpoints that were committed since the last call.
    pub fn take_committed(&mut self) -> Vec<CommittedCheckpoint> {
        std::mem::take(&mut self.committed)
    }

    /// Notes that the checkpoint after `step` is complete.
    fn note_commit(&mut self, step: u64) {
        (self.saved, self.problem) = (Some(step), None);
        let (bytes, seconds) = (self.snapshot_bytes() as u64, self.last.1.elapsed().as_secs_f64());
        self.committed.push(CommittedCheckpoint { step, bytes, seconds });
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
        let written = self.writing.as_ref().is_some_and(|writing| writing.phase.is_finished());
        StepVote { stop: false, save: is_time, written }
    }

    /// Copies the state and lets a thread write it.
    fn start(&mut self, session: &mut Session, run: RunState) -> Result<(), Error> {
        let mut snapshot = match self.snapshot.take() {
            Some(snapshot) => snapshot,
            None => Snapshot::of(session)?,
        };
        snapshot.take(session)?;
        let step = run.step;
        let manifest = Manifest { format: FORMAT, run, tensors: self.tensors.clone(), files: Vec::new() };
        let (writer, rank, is_alone, own) = (self.writer.clone(), self.rank, self.is_alone, manifest.clone());
        let sends = self.gathers && rank > 0;
        let write = move || {
            let written = match sends {
                true => Writer::describe(rank, &snapshot),
                false => writer.write_file(step, rank, &snapshot),
            };
            let written = written.and_then(|file| match is_alone {
                true => writer.commit(&Manifest { files: vec![file.clone()], ..own }).map(|()| file),
                false => Ok(file),
            });
            if is_alone && written.is_err() {
                writer.abandon(step);
            }
            (snapshot, written)
        };
        let thread = self.spawn(write)?;
        self.writing = Some(Writing { manifest, phase: Phase::Files(thread) });
        (self.due, self.last) = (self.interval.next(step), (step, Instant::now()));
        Ok(())
    }

    /// A thread that works on a checkpoint.
    fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, SaveError> {
        thread::Builder::new().name("checkpoint".into()).spawn(work).map_err(|source| SaveError::Storage {
            call: "start a thread for",
            path: self.writer.dir().into(),
            source,
        })
    }

    /// Waits for the end of a checkpoint's phase; what became of the checkpoint, unless another phase follows.
    fn advance(
        &mut self,
        Writing { manifest, phase }: Writing,
        network: Option<&dyn Network>,
    ) -> Result<Option<Result<(), SaveError>>, JobError> {
        let step = manifest.run.step;
        let ended = match (phase, network) {
            (Phase::Files(thread), None) => self.written(thread).map(|_| ()),
            (Phase::Files(thread), Some(network)) => {
                let written = self.written(thread);
                match gather_files(network, manifest, written)? {
                    Err(error) => Err(error),
                    Ok(manifest) => {
                        let gathered = match self.gathers {
                            true => self.writer.gather(network, &manifest, self.snapshot.as_ref())?,
                            false => Ok(()),
                        };
                        self.begin_commit(manifest, gathered);
                        return Ok(None);
                    }
                }
            }
            (Phase::Commit(thread), network) => {
                let join = |thread: JoinHandle<_>| thread.join().unwrap_or(Err(SaveError::Panicked));
                let committed = thread.and_then(|thread| thread.map_or(Ok(()), join));
                network.map_or(Ok(Ok(())), |network| verdict_of_first(network, committed))?
            }
        };
        if ended.is_err() && self.rank == 0 && network.is_some() {
            self.writer.abandon(step);
        }
        Ok(Some(ended))
    }

    /// What a thread has written, whose snapshot is free again.
    fn written(
        &mut self,
        thread: JoinHandle<(Snapshot, Result<FileEntry, SaveError>)>,
    ) -> Result<FileEntry, SaveError> {
        let (snapshot, written) = thread.join().map_err(|_| SaveError::Panicked)?;
        self.snapshot = Some(snapshot);
        written
    }

    /// Lets a thread of rank 0 read back what all ranks have written, and commit it, if it has `gathered` what it is to.
    fn begin_commit(&mut self, manifest: Manifest, gathered: Result<(), SaveError>) {
        let (writer, files) = (self.writer.clone(), manifest.clone());
        let commit = move || writer.read_back(&files).and_then(|()| writer.commit(&files));
        let thread = match self.rank {
            0 => gathered.and_then(|()| self.spawn(commit)).map(Some),
            _ => Ok(None),
        };
        self.writing = Some(Writing { manifest, phase: Phase::Commit(thread) });
    }
}

/// The manifest with the files of all ranks, or the first problem that one of them had.
fn gather_files(
    network: &dyn Network,
    mut manifest: Manifest,
    written: Result<FileEntry, SaveError>,
) -> Result<Result<Manifest, SaveError>, JobError> {
    let mine = serde_json::to_vec(&written.map_err(|error| error.to_string())).unwrap_or_default();
    let mut first_problem = None;
    for (rank, bytes) in (0..).zip(network.all_gather(&mine)?) {
        let read: Result<Result<FileEntry, String>, _> = serde_json::from_slice(&bytes);
        match read.map_err(|_| JobError::Garbled { rank, what: "file of a checkpoint" })? {
            Ok(file) => manifest.files.push(file),
            Err(problem) => first_problem = first_problem.or(Some(SaveError::Rank { rank, problem })),
        }
    }
    Ok(first_problem.map_or(Ok(manifest), Err))
}

/// Writes a checkpoint and waits for it; in a job all ranks write their parts and the first one commits.
pub fn save_now(
    writer: &Writer,
    session: &mut Session,
    run: RunState,
    network: Option<&dyn Network>,
) -> Result<(), Error> {
    let Some(network) = network else { return ckpt::write(writer, session, run) };
    let (rank, step) = (session.rank(), run.step);
    let mut snapshot = Snapshot::of(session)?;
    snapshot.take(session)?;
    let written = writer.write_file(step, rank, &snapshot);
    let manifest = Manifest { format: FORMAT, run, tensors: ckpt::tensors(session), files: Vec::new() };
    let manifest = gather_files(network, manifest, written)?;
    let committed = manifest.and_then(|manifest| match rank {
        0 => writer.read_back(&manifest).and_then(|()| writer.commit(&manifest)),
        _ => Ok(()),
    });
    let ended = verdict_of_first(network, committed)?;
    if ended.is_err() && rank == 0 {
        writer.abandon(step);
    }
    Ok(ended?)
}

/// What became of the commit on rank 0.
fn verdict_of_first(
    network: &dyn Network,
    committed: Result<(), SaveError>,
) -> Result<Result<(), SaveError>, JobError> {
    let mut problem = committed.err().map(|error| error.to_string()).unwrap_or_default().into_bytes();
    network.broadcast(0, &mut problem)?;
    let problem = String::from_utf8_lossy(&problem).into_owned();
    Ok(if problem.is_empty() { Ok(()) } else { Err(SaveError::Rank { rank: 0, problem }) })
}

impl Drop for Checkpointer {
    /// What was begun is finished as far as this process can do it alone, however the run ends.
    fn drop(&mut self) {
        // Results are not reported: the run has failed for another reason.
        match self.writing.take().map(|writing| writing.phase) {
            Some(Phase::Files(thread)) if self.is_alone => _ = thread.join(),
            Some(Phase::Commit(Ok(Some(thread)))) => _ = thread.join(),
            _ => {}
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
        self.checkpointer = Checkpointer::of(self)?;
        let Some(checkpointer) = &self.checkpointer else { return Ok(()) };
        match &self.ranks {
            None => checkpointer.prepare()?,
            Some(ranks) => checkpointer.prepare_together(&*ranks.network)?,
        }
        Ok(())
    }

    /// Saves after a step, if it is time to, and notes what became of the last checkpoint.
    pub(super) fn save_if_due(&mut self, agreed: Agreed) -> Result<(), Error> {
        if agreed.written {
            self.advance_checkpoint()?;
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
            checkpointer.start(self.trainer.session_mut(), run)?;
        }
        if waits { self.settle_checkpoint() } else { Ok(()) }
    }

    /// Waits for the checkpoint on its way.
    pub(super) fn settle_checkpoint(&mut self) -> Result<(), Error> {
        while self.checkpointer.as_ref().is_some_and(|checkpointer| checkpointer.writing.is_some()) {
            self.advance_checkpoint()?;
        }
        Ok(())
    }

    /// Waits for a phase of the checkpoint on its way. That it failed ends a strict run, and is a warning else.
    fn advance_checkpoint(&mut self) -> Result<(), Error> {
        let Some(checkpointer) = &mut self.checkpointer else { return Ok(()) };
        let Some(writing) = checkpointer.writing.take() else { return Ok(()) };
        let step = writing.manifest.run.step;
        let network = self.ranks.as_ref().map(|ranks| &*ranks.network);
        match checkpointer.advance(writing, network)? {
            None => Ok(()),
            Some(Ok(())) => {
                checkpointer.note_commit(step);
                Ok(())
            }
            Some(Err(error)) if checkpointer.is_strict => Err(error.into()),
            Some(Err(error)) => {
                let problem = format!("{} is not saved: {error}", name_of(step));
                self.notices.push(Notice::Warning(format!("{problem}; training goes on")));
                checkpointer.problem = Some(problem);
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
            data: self.identity.clone(),
            seed: self.settings.seed,
            learning_rate: self.config.learning_rate(),
            model: json(&self.model)?,
            config: json(&self.config)?,
            plan: checkpointer.plan.clone(),
            program: checkpointer.program.clone(),
        }))
    }
}
