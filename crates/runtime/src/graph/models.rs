//! Models of a run state's life: the last one to complete finds everything written, and the next run finds the run
//! state clean.

use loom::cell::UnsafeCell;
use loom::model;
use loom::sync::Arc;
use loom::thread::spawn;

use crate::event::Event;
use crate::fault::Fault;
use crate::flow::{Builder, Direct, Flow, Task, TaskKind};
use crate::sync::{AtomicU32, Mutex, Ordering::Relaxed, lock};

use super::gate::Arrival;
use super::run_state::RunState;
use super::serial;

const SEGMENTS: usize = 2;

/// A chain over two processors: two segments, the second after the first, and a post that both are part of.
fn chain() -> Flow {
    let mut builder = Builder::new("chain", SEGMENTS as u32);
    let task = |processor| Task { processor, kind: TaskKind::NonBlocking, ..Task::default() };
    let ops: Vec<_> = (0..SEGMENTS as u32).map(|processor| builder.task(task(processor))).collect();
    builder.edge(ops[0], ops[1]);
    builder.post("both", &ops);
    builder.finish().expect("a chain")
}

/// The run state of the first run of `flow`.
fn state(flow: &Flow) -> RunState {
    RunState::new(flow, &serial::arrivals(flow, &serial::processors(flow)), 0, true)
}

struct Pool {
    state: RunState,
    free: Mutex<bool>,
    /// By unit of work: what was written for it. The writes themselves order nothing.
    written: [AtomicU32; SEGMENTS + 1],
}

impl Pool {
    fn new() -> Pool {
        Pool {
            state: state(&chain()),
            free: Mutex::new(false),
            written: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// Completes a unit of work; the last one gives the run state back. Whether it was.
    fn complete(&self, unit: usize) -> bool {
        self.written[unit].store(1, Relaxed);
        let last = self.state.complete(1);
        if last {
            assert!(self.written.iter().all(|written| written.load(Relaxed) == 1));
            self.state.reset(&[SEGMENTS as u32]);
            *lock(&self.free) = true;
        }
        last
    }
}

/// Whether a run on the run state would find it as a new one.
fn is_clean(state: &RunState) -> bool {
    let gates = state.gates.iter().all(|gate| gate.arrive() == Arrival::Last);
    let queues = state.slots.iter().all(|slot| slot.get().is_none());
    state.tails[0].push(&state.slots, 0);
    let tails = state.slots[0].get() == Some(0);
    let poison = (0..SEGMENTS as u32).any(|segment| state.is_poisoned(segment)) || state.outcome().is_err();
    let posts = [0; SEGMENTS].map(|_| state.arrive_at_post(0, false).is_some());
    gates && queues && tails && !poison && posts == [false, true] && !state.complete(2) && state.complete(1)
}

#[test]
fn the_last_to_complete_sees_all_and_gives_back_a_clean_block() {
    model(|| {
        let pool = Arc::new(Pool::new());
        pool.state.claim(0, Event::NONE, 0, &[Event::NONE]);
        // Each runs a segment: takes the start's or the other's arrival, is queued, and one of them fails.
        let others = [0, 1].map(|segment| {
            let pool = Arc::clone(&pool);
            spawn(move || {
                let Pool { state, .. } = &*pool;
                assert_eq!(state.gates[segment].arrive(), Arrival::Last);
                state.tails[segment].push(&state.slots[segment..=segment], segment as u32);
                if segment == 0 {
                    state.keep(&Fault::refused("model", "on purpose"));
                    state.poison(1);
                }
                assert!(state.arrive_at_post(0, segment == 0).is_none_or(|(_, outcome)| outcome.is_err()));
                pool.complete(segment)
            })
        });
        let first = pool.complete(SEGMENTS);
        // The next run, as soon as it may.
        if *lock(&pool.free) {
            assert!(is_clean(&pool.state));
        }
        let lasts = others.map(|other| other.join().expect("it does not panic"));
        assert_eq!(lasts.into_iter().chain([first]).filter(|&last| last).count(), 1);
    });
}

/// A remote step and a non-blocking one after it.
fn remote() -> Flow {
    let mut builder = Builder::new("remote", 1);
    let first = builder.remote(Direct::default());
    let after = builder.task(Task { kind: TaskKind::NonBlocking, ..Task::default() });
    builder.edge(first, after);
    builder.finish().expect("a chain")
}

/// The body of a remote step reads the run's arguments and returns while another thread reports that the step is
/// complete, and does what follows. The later one finds the run state deserted and writes the arguments of the next
/// run.
#[test]
fn a_run_ends_when_a_remote_step_is_told_and_its_body_has_returned() {
    model(|| {
        let state = Arc::new(state(&remote()));
        let args = Arc::new(UnsafeCell::new(7));
        let complete = |state: &RunState, args: &UnsafeCell<u32>, units| {
            let last = state.complete(units);
            if last {
                // SAFETY: loom reports a thread that still reads.
                args.with_mut(|args| unsafe { *args = 8 });
            }
            last
        };
        assert!(!state.complete(1), "the start");
        let told = {
            let (state, args) = (Arc::clone(&state), Arc::clone(&args));
            // The non-blocking step, which is laid out first, opens and is complete as well.
            spawn(move || state.gates[0].arrive() == Arrival::Last && complete(&state, &args, 2))
        };
        // SAFETY: loom reports a thread that writes already.
        args.with(|args| assert_eq!(unsafe { *args }, 7));
        let returned = complete(&state, &args, 1);
        assert_ne!(returned, told.join().expect("it does not panic"), "one of the two is last");
    });
}
