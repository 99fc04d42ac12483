//! Times when processors have nothing to do, for whoever drives a network on their cores: looking for messages all the
//! time is worth a core that nobody computes on, and only that.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::Processor;

/// Which of some processors have nothing to do.
pub(crate) struct Lull {
    /// How many; one more if there are none at all.
    idle: AtomicUsize,
    tell: Box<dyn Fn() + Send + Sync>,
}

impl Lull {
    /// Watches `processors` from their next pause on; `tell` is called whenever one of them runs out of work. A
    /// processor can be watched once.
    pub(crate) fn of<'a>(
        processors: impl ExactSizeIterator<Item = &'a Arc<Processor>>,
        tell: impl Fn() + Send + Sync + 'static,
    ) -> Arc<Lull> {
        let idle = AtomicUsize::new(usize::from(processors.len() == 0));
        let lull = Arc::new(Lull { idle, tell: Box::new(tell) });
        for processor in processors {
            let was_free = processor.lull.set(Arc::clone(&lull)).is_ok();
            assert!(was_free, "processor {} is watched already", processor.number);
        }
        lull
    }

    /// Whether one of them has nothing to do, or none exists that could have.
    pub(crate) fn is_there(&self) -> bool {
        // Relaxed, here and below: a hint, about nothing else.
        self.idle.load(Relaxed) > 0
    }

    /// A processor sleeps.
    pub(super) fn during<R>(&self, sleep: impl FnOnce() -> R) -> R {
        self.idle.fetch_add(1, Relaxed);
        (self.tell)();
        let woken = sleep();
        self.idle.fetch_sub(1, Relaxed);
        woken
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc::channel;

    use crate::processor::Options;
    use crate::{Config, ProcessorId, Runtime};

    #[test]
    fn it_is_there_while_a_processor_has_nothing_to_do() {
        let runtime = Runtime::new(Config::new(1, 1));
        let (tell, told) = channel();
        let lull = runtime.lull(&[ProcessorId(0)], move || _ = tell.send(()));
        for _ in 0..3 {
            let watched = lull.clone();
            let (say, said) = channel();
            runtime.spawn(ProcessorId(0), Options::default(), move |_| {
                say.send(watched.is_there()).expect("the test listens");
            });
            assert_eq!(said.recv(), Ok(false), "it runs a task");
            told.recv().expect("it runs out of work");
            assert!(lull.is_there());
        }
        assert!(runtime.lull(&[], || {}).is_there());
    }
}
