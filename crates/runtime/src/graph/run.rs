//! Running a graph to its end: the thread that waits for it does a part of it.
//!
//! A thread that only waits needs a core twice a run, to start it and to hear of its end. Where each processor has one
//! core it takes them from a worker, and both are put to sleep and woken for that. So it serves a processor of the
//! graph in its worker's place, as a helper thread; then there are as many threads as processors and no thread is woken
//! at all.

use crate::fault::Outcome;
use crate::processor::{HelperThread, is_outside};

use super::{Graph, Launch, LaunchError};

impl Graph {
    /// Starts a run and waits until it is complete; what became of it.
    ///
    /// A thread that is none of the runtime's does the non-blocking tasks of the graph's first processor itself while
    /// that has nothing else to do. Where bodies care which thread they run on, use [`Graph::launch`] and
    /// [`crate::Runtime::wait`].
    pub fn run(&self, launch: Launch<'_>) -> Result<Outcome, LaunchError> {
        let mut helper = self.helper();
        // Before the launch, which then wakes one worker less.
        let serves = helper.as_mut().is_none_or(HelperThread::ask);
        let finish = self.launch(launch)?.finish;
        let is_over = || self.inner.events.outcome(finish).is_some();
        helper.iter_mut().for_each(|helper| helper.serve_until(is_over));
        drop(helper);
        let outcome = self.runtime.wait(finish);
        if !serves {
            // The worker that was asked may have woken this thread and lost its core to it before it could leave.
            std::thread::yield_now();
        }
        Ok(outcome)
    }

    /// The right to serve the first processor that has segments, for a thread that may.
    fn helper(&self) -> Option<HelperThread> {
        let first = self.inner.members.first().filter(|_| self.inner.nonblocking && is_outside())?;
        Some(HelperThread::new(&self.inner.processors[*first as usize]))
    }
}
