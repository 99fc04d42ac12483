//! Profiles: one report for each thing that was asked about, with the times of a clock that counts.
#![allow(clippy::unwrap_used)]

/// A clock of its own that tells how often it has been asked.
macro_rules! counting_clock {
    () => {{
        fn clock() -> u64 {
            static TICKS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
            // Relaxed: what orders the reports orders the ticks.
            TICKS.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1
        }
        clock
    }};
}

mod graphs;
mod memories;
mod tasks;

use std::sync::mpsc::{Receiver, channel};

use phalanx_runtime::{Clock, Config, ProcessorId, Profile, Report, Runtime};

const P0: ProcessorId = ProcessorId(0);
const P1: ProcessorId = ProcessorId(1);

fn runtime(processors: u32, clock: Clock) -> Runtime {
    Runtime::new(Config { clock, ..Config::new(processors, 0) })
}

/// A request and where its reports arrive.
fn profile() -> (Profile, Receiver<Report>) {
    let (send, reports) = channel();
    (Profile::new(move |report| send.send(report).expect("the test listens")), reports)
}
