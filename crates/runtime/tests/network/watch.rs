//! A watching thread sees how far every lane is, messages included.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use phalanx_program::Program;
use phalanx_runtime::{Args, Kernels, LaneState, Watch};

use crate::programs::{Mix, ring};
use crate::{in_turn, job, parts};

/// Mixes. In one of its calls it says so and waits for an answer first.
struct Halting {
    call: u64,
    calls: Mutex<u64>,
    halts: Sender<()>,
    goes_on: Mutex<Receiver<()>>,
}

impl Kernels for Halting {
    fn execute(&self, kernel: usize, args: Args<'_>) {
        let mut calls = self.calls.lock().expect("no thread panics with it");
        *calls += 1;
        if *calls == self.call {
            self.halts.send(()).expect("the test waits for it");
            self.goes_on.lock().expect("no thread panics with it").recv().expect("the test answers");
        }
        Mix.execute(kernel, args);
    }
}

/// What a lane is at: the kernel of its next operation, how many are done in which run, and whether it runs.
type Standing = (String, u64, u64, bool);

fn is(kernel: &str, done: u64, run: u64, running: bool) -> Standing {
    (kernel.into(), done, run, running)
}

/// Looks until lanes stand as expected. It never returns if they do not.
pub fn until(program: &Program, watch: &Watch, expected: &[Standing]) {
    let standing = |(lane, state): (_, LaneState)| {
        let next = &program.operations_of(lane)[state.done as usize];
        is(program.kernel(next), state.done, state.run, state.running)
    };
    while !program.lanes().iter().zip(watch.lanes()).map(standing).eq(expected.iter().cloned()) {
        std::thread::yield_now();
    }
}

/// Where rank 0 of a ring of two stands whose other device halts in round 1 of `run`: its own message and the other's
/// of that round are under way, and those of round 0 are complete.
pub fn waiting(run: u64) -> [Standing; 7] {
    [
        is("receive", 3, run, false),
        is("arrive", 0, run + 1, false),
        is("send", 0, run + 1, false),
        is("arrive", 0, run, true),
        is("send", 0, run, true),
        is("arrive", 0, run, false),
        is("send", 0, run, false),
    ]
}

/// Where rank 1 stands then.
fn halted(run: u64) -> [Standing; 7] {
    [
        is("mix", 2, run, true),
        is("send", 0, run + 1, false),
        is("arrive", 0, run + 1, false),
        is("send", 0, run, false),
        is("arrive", 0, run, false),
        is("send", 0, run, false),
        is("arrive", 0, run, false),
    ]
}

pub const ROUNDS: u32 = 3;

#[test]
fn lanes_that_wait_for_a_halted_one_are_seen_where_they_are() {
    let parts = parts(&ring(2, ROUNDS), &in_turn(2, 2));
    let n = parts[0].operations().len() as u64;
    let (other, (halts, halting), (go_on, goes_on)) = (parts[1].clone(), channel(), channel());
    let (watch_of, watches) = channel();
    let (call, calls, goes_on) = (u64::from(ROUNDS) + 2, Mutex::new(0), Mutex::new(goes_on));
    let kernels = Mutex::new(Some(Halting { call, calls, halts, goes_on }));
    let others_side = Mutex::new(Some((watch_of, kernels)));
    let own_side = Mutex::new(Some((watches, halting, go_on)));
    job(parts, |rank| match rank.network.rank() {
        1 => {
            let (watch_of, kernels) = others_side.lock().expect("free").take().expect("one rank halts");
            let mut replay = rank.replay(|_| kernels.lock().expect("free").take().expect("one device"));
            watch_of.send(replay.watch()).expect("the test watches");
            (0..3).for_each(|_| assert_eq!(replay.run(), Ok(())));
        }
        _ => {
            let (watches, halting, go_on) = own_side.lock().expect("free").take().expect("one rank watches");
            let mut replay = rank.replay(|_| Mix);
            let (watch, others) = (replay.watch(), watches.recv().expect("the other rank is watched"));
            assert_eq!(watch.completed(), 0);
            replay.launch();
            replay.launch();
            halting.recv().expect("the other rank halts");
            until(&rank.part, &watch, &waiting(1));
            until(&other, &others, &halted(1));
            // A run has six operations of the device and as many messages.
            assert_eq!((watch.completed(), others.completed()), (n + 5, n + 4));
            go_on.send(()).expect("the other rank waits");
            assert_eq!((replay.wait(1), watch.clone().completed()), (Ok(()), 2 * n));
            assert_eq!(replay.run(), Ok(()));
            assert!(watch.lanes().iter().all(|lane| *lane == LaneState { done: 0, run: 3, running: false }));
        }
    });
}
