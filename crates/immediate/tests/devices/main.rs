//! The software device: order within lanes and between them, tokens, poison, leases, and lanes that share queues.
//!
//! Most devices here are stepped, so that a test sees every moment of one, and each order comes from a seed.

mod order;
mod poison;
mod random;
mod thread;
mod tokens;

use std::num::NonZeroU32;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use phalanx_immediate::{DrainMode, QueueOrder, Software, SoftwareConfig};
use phalanx_runtime::{Device, Fault, Lane, Outcome, Token};

/// A device that does nothing until stepped; no queues means that every lane has its own.
fn stepped(n_queues: u32, seed: u64) -> Arc<Software> {
    let (queues, order) = (NonZeroU32::new(n_queues), QueueOrder::Seeded(seed));
    Software::new(SoftwareConfig { queues, order, drain: DrainMode::Stepped })
}

/// Steps until nothing is left to do; says how many steps that took.
fn finish(device: &Software) -> usize {
    std::iter::from_fn(|| device.step().then_some(())).count()
}

/// What works have written, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<&'static str>>>);

impl Log {
    fn write(&self, device: &Software, lane: Lane, name: &'static str) {
        let log = self.clone();
        device.enqueue(
            lane,
            Box::new(move || log.0.lock().expect("no thread panics with the lock").push(name)),
        );
    }

    fn read(&self) -> Vec<&'static str> {
        self.0.lock().expect("no thread panics with the lock").clone()
    }
}

/// Everything that a callback for `token` is told.
fn told(device: &Software, token: Token) -> Receiver<Outcome> {
    let (send, received) = channel();
    device.when_fired(token, Box::new(move |outcome| send.send(outcome).expect("the test listens")));
    received
}

/// What is said of a token that has fired.
fn outcome(device: &Software, token: Token) -> Outcome {
    let told: Vec<Outcome> = told(device, token).try_iter().collect();
    let [outcome] = &told[..] else { panic!("{token:?} has not fired once: {told:?}") };
    outcome.clone()
}

fn fault(device: &Software, token: Token) -> Fault {
    outcome(device, token).expect_err("the token is poisoned")
}
