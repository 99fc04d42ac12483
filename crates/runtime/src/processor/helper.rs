//! Threads outside that serve a processor while they wait for what it does.
//!
//! Waking a worker takes longer than many a non-blocking task. A thread that waits, and is the first to know when there
//! is work, does it itself: it takes the worker core while the processor has nothing to do (see `sleep`), and gives it
//! back before it does anything else that takes long. It runs non-blocking tasks of graphs and nothing else: those
//! never wait. All other work is left to the worker.

use std::sync::Arc;

use crate::graph::Executor;
use crate::sync::{Ordering, spin_loop};

use super::worker_core::WorkerCore;
use super::{BUDGET, Processor};

/// A thread's right to serve a processor. Dropping it gives the worker core back.
pub(crate) struct HelperThread {
    processor: Arc<Processor>,
    core: Option<Box<WorkerCore>>,
}

impl HelperThread {
    /// Without the worker core for now.
    pub(crate) fn new(processor: &Arc<Processor>) -> HelperThread {
        HelperThread { processor: Arc::clone(processor), core: None }
    }

    /// Takes the worker core if no thread holds it.
    pub(crate) fn take(&mut self) {
        if self.core.is_none() {
            self.core = self.processor.sleep.take();
        }
    }

    /// Takes the worker core if no thread holds it; whether it did. If not, the worker leaves it as soon as it has
    /// nothing to do, for next time.
    pub(crate) fn ask(&mut self) -> bool {
        self.take();
        // Relaxed: a hint.
        self.processor.asked_for.store(self.core.is_none(), Ordering::Relaxed);
        self.core.is_some()
    }

    /// Takes the worker core if no thread holds it; whether there are non-blocking tasks to run. If there may be other
    /// work it is the worker's.
    pub(crate) fn poll_ready(&mut self) -> bool {
        self.take();
        let Some(core) = &mut self.core else { return false };
        core.refresh(&self.processor);
        if core.needs_worker(&self.processor) {
            self.leave();
            return false;
        }
        core.executor.peek().is_some()
    }

    /// Runs some non-blocking tasks, if it has the worker core.
    pub(crate) fn work(&mut self) {
        if let Some(core) = self.core.take() {
            self.core = Executor::run(core, &self.processor, BUDGET);
        }
    }

    /// If it has the worker core, runs non-blocking tasks until `over`; gives it back if there are none for as long as
    /// a worker would look.
    pub(crate) fn serve_until(&mut self, mut over: impl FnMut() -> bool) {
        let mut polls = 0;
        while self.core.is_some() && !over() {
            if self.poll_ready() {
                self.work();
                polls = 0;
            } else if polls == self.processor.polls() {
                self.leave();
            } else {
                spin_loop();
                polls += 1;
            }
        }
    }

    /// Gives the worker core back; whether the processor has nothing to do, as far as it was the helper thread's to
    /// know.
    pub(crate) fn leave(&mut self) -> bool {
        let processor = &*self.processor;
        let give = |core: Box<WorkerCore>| processor.sleep.give(core, |core| core.has_work(processor));
        self.core.take().is_none_or(give)
    }
}

impl Drop for HelperThread {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use crate::flow::{Builder, Task, TaskKind};

    use crate::graph::Launch;
    use crate::processor::{Context, Options};
    use crate::{Config, ProcessorId, Runtime};

    const ON: ProcessorId = ProcessorId(0);

    #[test]
    fn a_helper_runs_nonblocking_tasks_itself_and_leaves_tasks_to_the_worker() {
        let runtime = Runtime::new(Config::new(1, 1));
        let (tell, told) = channel();
        let mut builder = Builder::new("one", 1);
        builder.task(Task { processor: 0, kind: TaskKind::NonBlocking, ..Task::default() });
        let flow = builder.finish().expect("one task is a flow");
        let tells = tell.clone();
        let body = move |_: &Context<'_>| tells.send(thread::current().id()).expect("the test listens");
        let graph = runtime.graph(flow, vec![Box::new(body)], &[ON]).expect("it calls one function");
        let mut helper = runtime.helper(ON);
        while helper.core.is_none() {
            helper.take();
            thread::yield_now();
        }
        let run = graph.launch(Launch::default()).expect("it takes no arguments");
        assert!(helper.poll_ready());
        helper.work();
        assert_eq!(told.recv(), Ok(thread::current().id()));
        runtime.wait(run.finish).expect("the task does not fail");
        assert!(!helper.poll_ready());

        runtime.spawn(ON, Options::default(), move |_| {
            tell.send(thread::current().id()).expect("the test listens");
        });
        assert!(!helper.poll_ready(), "a task may wait");
        assert_ne!(told.recv(), Ok(thread::current().id()));
    }
}
