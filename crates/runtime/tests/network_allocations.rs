//! Runs of parts allocate nothing once they are warm, whichever thread reports that a message is complete.
//!
//! A binary of its own, and one test: the allocator counts for the whole process.

#[path = "network/programs.rs"]
mod programs;

use std::sync::{Arc, Barrier};
use std::thread;

use phalanx_net::Network;
use phalanx_net::local::Local;
use phalanx_program::{Placement, Program};
use phalanx_runtime::Replay;
use phalanx_testkit::allocations::{self, Counting};

use programs::{Blend, Mix, exchange, ring};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs with one more in flight.
fn runs<K: phalanx_runtime::Kernels + Send + Sync + 'static>(replay: &mut Replay<K>, count: u64) {
    let mut last = replay.launch();
    for _ in 1..count {
        let next = replay.launch();
        assert_eq!(replay.wait(last), Ok(()));
        last = next;
    }
    assert_eq!(replay.wait(last), Ok(()));
}

/// Allocations of all ranks in some runs after a warm-up.
fn growth<K: phalanx_runtime::Kernels + Send + Sync + 'static>(whole: &Program, kernel: fn() -> K) -> u64 {
    let placement = Placement { ranks: 2, of_device: vec![0, 1, 0] };
    let (parts, meeting) = (whole.parts(&placement).expect("programs can be cut"), Barrier::new(2));
    let rank = |(part, network): (Program, Local)| {
        let (network, devices): (Arc<dyn Network>, _) = (Arc::new(network), part.homes().count());
        let kernels = (0..devices).map(|_| kernel()).collect();
        let mut replay = Replay::on_network(part, kernels, 0, &network).expect("ranks fit together");
        // Which thread completes what changes from run to run, and each has lists of its own to warm up.
        runs(&mut replay, 2000);
        meeting.wait();
        let before = allocations::count();
        meeting.wait();
        runs(&mut replay, 200);
        meeting.wait();
        let after = allocations::count();
        meeting.wait();
        after - before
    };
    thread::scope(|scope| {
        let ranks: Vec<_> =
            parts.into_iter().zip(Local::job(2)).map(|rank_of| scope.spawn(|| rank(rank_of))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank does not panic")).max().unwrap_or(0)
    })
}

#[test]
fn runs_of_parts_allocate_nothing() {
    assert_eq!(growth(&ring(3, 4), || Mix), 0, "a ring");
    assert_eq!(growth(&exchange(3, 2, true), || Blend), 0, "an exchange");
    assert!(allocations::count() > 0, "the allocator counts");
}
