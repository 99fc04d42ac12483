//! The thread of a training. It owns the run and does what it is told, one command after the other, so that a thread of
//! Python that waits for it can look at signals, and a command goes on when the waiting thread is interrupted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use phalanx::Error as PhalanxError;
use phalanx::nn::TrainingRun;
use pyo3::prelude::*;

use crate::errors::{Error, raised};

/// How long a thread waits before it looks at signals.
const SLICE: Duration = Duration::from_millis(50);

/// What is raised after a panic.
const PANICKED: &str = "the trainer has panicked: this is a bug; see the message on standard error";

type Run = TrainingRun<'static>;
type Command = Box<dyn FnOnce(&mut Run) + Send>;

/// A training in a thread of its own.
pub struct Worker {
    /// Nothing once it is closed.
    state: Mutex<Option<(Sender<Command>, JoinHandle<()>)>>,
    /// Whether a command has panicked: nothing is known of the run then.
    has_panicked: Arc<AtomicBool>,
}

impl Worker {
    /// Starts a thread with the run that `build` makes, and waits for it.
    pub fn start(
        py: Python<'_>,
        build: impl FnOnce() -> Result<Run, PhalanxError> + Send + 'static,
    ) -> PyResult<Worker> {
        let (commands, inbox) = channel::<Command>();
        let (started, outcome) = sync_channel(1);
        let work = move || {
            let built = build();
            let (run, answer) = match built {
                Ok(run) => (Some(run), Ok(())),
                Err(error) => (None, Err(error)),
            };
            // A thread that was interrupted does not wait any more.
            let is_wanted = started.send(answer).is_ok();
            let Some(mut run) = run.filter(|_| is_wanted) else { return };
            for command in inbox {
                command(&mut run);
            }
        };
        let thread = thread::Builder::new().name("phalanx-trainer".into()).spawn(work);
        let thread = thread.map_err(|error| Error::new_err(format!("cannot start a thread: {error}")))?;
        wait(py, outcome, true)?.map_err(|error| raised(&error))?;
        Ok(Worker { state: Mutex::new(Some((commands, thread))), has_panicked: Arc::default() })
    }

    /// Does something with the run and waits for it; a signal ends the wait, not the work.
    pub fn call<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Run) -> Result<T, PhalanxError> + Send + 'static,
    ) -> PyResult<T> {
        wait(py, self.send(work)?, true)?.map_err(|error| raised(&error))
    }

    /// The same for work that reads memory of the caller: it has ended when this returns, also after a signal.
    pub fn call_reading<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Run) -> Result<T, PhalanxError> + Send + 'static,
    ) -> PyResult<T> {
        wait(py, self.send(work)?, false)?.map_err(|error| raised(&error))
    }

    fn send<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Run) -> Result<T, PhalanxError> + Send + 'static,
    ) -> PyResult<Receiver<Result<T, PhalanxError>>> {
        // Relaxed: only a thread that waited for the command must see it.
        if self.has_panicked.load(Relaxed) {
            return Err(Error::new_err(PANICKED));
        }
        let (done, outcome) = sync_channel(1);
        let has_panicked = Arc::clone(&self.has_panicked);
        let command: Command = Box::new(move |run| {
            let result = catch_unwind(AssertUnwindSafe(|| work(run)));
            match result {
                // A thread that was interrupted does not wait any more.
                Ok(result) => drop(done.send(result)),
                Err(_) => {
                    run.fail(PANICKED);
                    has_panicked.store(true, Relaxed);
                }
            }
        });
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (commands, _) = state.as_ref().ok_or_else(|| Error::new_err("the trainer is closed"))?;
        commands.send(command).map_err(|_| Error::new_err("the trainer has failed"))?;
        Ok(outcome)
    }

    /// Ends the training: waits for what it does, saves what options ask for and leaves its job. Nothing happens the second
    /// time.
    pub fn close(&self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((commands, thread)) = state {
            drop(commands);
            // It has ended with a panic, which was reported.
            drop(thread.join());
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The thread never needs the interpreter, so it may end while this one has its lock.
        self.close();
    }
}

/// Waits for an answer without the interpreter's lock. A signal whose handler raises ends the wait at once, or after the
/// answer.
fn wait<T: Send>(py: Python<'_>, mut answer: Receiver<T>, at_once: bool) -> PyResult<T> {
    let mut interrupted = Ok(());
    loop {
        let (received, kept) = py.detach(move || (answer.recv_timeout(SLICE), answer));
        answer = kept;
        if interrupted.is_ok() {
            interrupted = py.check_signals();
        }
        match (received, at_once) {
            (Ok(value), _) => return interrupted.map(|()| value),
            (Err(RecvTimeoutError::Disconnected), _) => {
                return Err(Error::new_err(PANICKED));
            }
            (Err(RecvTimeoutError::Timeout), true) => std::mem::replace(&mut interrupted, Ok(()))?,
            (Err(RecvTimeoutError::Timeout), false) => {}
        }
    }
}
