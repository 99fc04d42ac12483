//! Tasks that exclude each other by reservations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use phalanx_immediate::{Mode, Reservation};
use phalanx_runtime::{Config, Event, Options, ProcessorId, Runtime};

const P0: ProcessorId = ProcessorId(0);

fn runtime(processors: u32) -> Runtime {
    Runtime::new(Config::new(processors, 0))
}

/// A counter that loses counts unless the threads that count exclude each other.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicU64>);

impl Counter {
    fn count(&self) {
        // Relaxed, and two steps on purpose: what orders them is under test.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn tasks_in_random_chains_exclude_each_other_by_a_reservation() {
    const TASKS: usize = 2000;
    let (runtime, counter) = (runtime(3), Counter::default());
    let lock = Reservation::new(runtime.events());
    let mut finish = vec![Event::NONE];
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..TASKS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let after = finish[(random >> 33) as usize % finish.len()];
        let granted = lock.acquire(Mode::Exclusive, after);
        let counter = counter.clone();
        let options = Options { after: granted, ..Options::default() };
        let task = runtime.spawn(ProcessorId((random >> 20) as u32 % 3), options, move |_| counter.count());
        lock.release(task.finish()).expect("it is acquired");
        finish.push(task.finish());
    }
    finish.iter().for_each(|&finish| runtime.wait(finish).expect("no task fails"));
    assert_eq!(counter.get(), TASKS as u64);
}

#[test]
fn four_tasks_of_one_processor_take_turns_a_hundred_thousand_times() {
    const ROUNDS: u64 = 25_000;
    let (runtime, counter) = (runtime(1), Counter::default());
    let turns: Arc<[Reservation]> = (0..4).map(|_| Reservation::new(runtime.events())).collect();
    for turn in turns.iter() {
        runtime.wait(turn.acquire(Mode::Exclusive, Event::NONE)).expect("it is not held");
    }
    let spawn = |number: usize| {
        let (turns, counter) = (Arc::clone(&turns), counter.clone());
        runtime.spawn(P0, Options::default(), move |context| {
            for round in 0..ROUNDS {
                context.wait(turns[number].acquire(Mode::Exclusive, Event::NONE)).expect("it is granted");
                assert_eq!(counter.get(), round * 4 + number as u64);
                counter.count();
                turns[(number + 1) % 4].release(Event::NONE).expect("it is held");
            }
        })
    };
    let tasks: Vec<_> = (0..4).map(spawn).collect();
    turns[0].release(Event::NONE).expect("the test holds it");
    tasks.iter().for_each(|task| runtime.wait(task.finish()).expect("no task fails"));
    assert_eq!(counter.get(), 4 * ROUNDS);
}
