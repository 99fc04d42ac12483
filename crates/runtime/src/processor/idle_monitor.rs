//! Which processors are idle, for the thread that drives a network on their cores: polling for messages all the time is
//! worth a core that no processor computes on, and only that.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::Processor;

/// Counts which of some processors are idle.
pub(crate) struct IdleMonitor {
    /// How many are idle; 1 if no processors are watched.
    idle: AtomicUsize,
    on_idle: Box<dyn Fn() + Send + Sync>,
}

impl IdleMonitor {
    /// Watches `processors` from their next pause on; `on_idle` is called whenever one of them runs out of work. A
    /// processor can be watched once.
    pub(crate) fn of<'a>(
        processors: impl ExactSizeIterator<Item = &'a Arc<Processor>>,
        on_idle: impl Fn() + Send + Sync + 'static,
    ) -> Arc<IdleMonitor> {
        let idle = AtomicUsize::new(usize::from(processors.len() == 0));
        let idle_monitor = Arc::new(IdleMonitor { idle, on_idle: Box::new(on_idle) });
        for processor in processors {
            let was_free = processor.idle_monitor.set(Arc::clone(&idle_monitor)).is_ok();
            assert!(was_free, "processor {} is watched already", processor.number);
        }
        idle_monitor
    }

    /// Whether one of them has nothing to do, or none exists that could have.
    pub(crate) fn any_idle(&self) -> bool {
        // Relaxed, here and below: a hint, about nothing else.
        self.idle.load(Relaxed) > 0
    }

    /// A processor sleeps.
    pub(super) fn during<R>(&self, sleep: impl FnOnce() -> R) -> R {
        self.idle.fetch_add(1, Relaxed);
        (self.on_idle)();
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
    fn any_is_idle_while_a_processor_has_nothing_to_do() {
        let runtime = Runtime::new(Config::new(1, 1));
        let (tell, told) = channel();
        let idle_monitor = runtime.idle_monitor(&[ProcessorId(0)], move || _ = tell.send(()));
        for _ in 0..3 {
            let watched = idle_monitor.clone();
            let (say, said) = channel();
            runtime.spawn(ProcessorId(0), Options::default(), move |_| {
                say.send(watched.any_idle()).expect("the test listens");
            });
            assert_eq!(said.recv(), Ok(false), "it runs a task");
            told.recv().expect("it runs out of work");
            assert!(idle_monitor.any_idle());
        }
        assert!(runtime.idle_monitor(&[], || {}).any_idle());
    }
}
