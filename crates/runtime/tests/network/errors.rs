//! What fails on one rank is told there, and a rank that waits for it in vain can be let go.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use phalanx_runtime::{Args, Kernels, Replay};

use crate::programs::{Blend, Mix, exchange, ring};
use crate::watch::{ROUNDS, until, waiting};
use crate::{in_turn, job, parts};

/// Mixes; one of its calls panics.
struct Breaking {
    call: u64,
    calls: AtomicU64,
}

impl Kernels for Breaking {
    fn execute(&self, kernel: usize, args: Args<'_>) {
        if self.calls.fetch_add(1, Relaxed) + 1 == self.call {
            resume_unwind(Box::new("this device breaks"));
        }
        Mix.execute(kernel, args);
    }
}

#[test]
fn a_rank_that_fails_stays_failed_and_the_other_is_let_go() {
    job(parts(&ring(2, ROUNDS), &in_turn(2, 2)), |rank| {
        // The second round of the second run.
        let call = if rank.network.rank() == 1 { u64::from(ROUNDS) + 2 } else { 0 };
        let mut replay = rank.replay(|_| Breaking { call, calls: AtomicU64::new(0) });
        assert_eq!(replay.run(), Ok(()));
        if rank.network.rank() == 0 {
            replay.launch();
            until(&rank.part, &replay.watch(), &waiting(1));
            return replay.abandon();
        }
        let fault = replay.run().expect_err("the device breaks");
        assert_eq!(fault.to_string(), "mix of own (op2 of ring): failed: this device breaks");
        // The other rank still waits for a message of the run that failed. It must not get one of another run.
        for _ in 0..3 {
            assert_eq!(replay.run(), Err(fault.clone()));
        }
        assert_eq!(replay.kernels()[0].calls.load(Relaxed), call, "what follows is skipped");
    });
}

/// Device 1 asks, device 0 answers, device 1 takes the answer in: that message is under way from the start.
const ECHO: &str = "program @echo {
  lane dev0 arena 128
    run receive [0 at 0 = 0 at 0 run 64] 1/0+64 -> 0+64 scratch 0+0 of \"question\" after 1/0
    run mix [] 0+64 -> 64+64 scratch 0+0 of \"answer\" carried 1/1
  lane dev1 arena 128
    run mix [] -> 0+64 scratch 0+0 of \"ask\" carried 0/0
    run receive [0 at 0 = 0 at 0 run 64] 0/64+64 -> 64+64 scratch 0+0 of \"reply\" after 0/1
}";

/// Panics if it asks.
struct Asks;

impl Kernels for Asks {
    fn execute(&self, _kernel: usize, args: Args<'_>) {
        if args.reads.is_empty() {
            resume_unwind(Box::new("no question"));
        }
    }
}

#[test]
fn a_fault_is_told_although_a_message_of_its_run_never_arrives() {
    let whole: phalanx_program::Program = ECHO.parse().expect("a program");
    job(parts(&whole, &in_turn(2, 2)), |rank| {
        let mut replay = rank.replay(|_| Asks);
        if rank.network.rank() == 0 {
            replay.launch();
            rank.network.barrier().expect("both ranks come");
            return replay.abandon();
        }
        let (tell, told) = std::sync::mpsc::channel();
        replay.watch().on_failure(move |failure| _ = tell.send(failure.clone()));
        let fault = replay.run().expect_err("the question fails");
        assert_eq!(fault.to_string(), "mix of ask (op0 of echo): failed: no question");
        assert_eq!(told.recv().map(|failure| (failure.run, failure.fault)), Ok((0, fault.clone())));
        // What is in flight stays so; nothing else is launched, and its memory is not touched.
        assert_eq!(replay.run(), Err(fault));
        rank.network.barrier().expect("both ranks come");
    });
}

#[test]
fn messages_that_do_not_fit_fail_with_their_operation_and_peer() {
    // The first messages have as many bytes by chance, the second ones do not.
    let programs = [ring(2, ROUNDS), exchange(2, 1, false)];
    let parts = (0..2).map(|rank| parts(&programs[rank], &in_turn(2, 2)).swap_remove(rank)).collect();
    let faults = job(parts, |rank| match rank.network.rank() {
        0 => rank.replay(|_| Mix).run().expect_err("sizes differ"),
        _ => rank.replay(|_| Blend).run().expect_err("sizes differ"),
    });
    let found = [faults[0].to_string(), faults[1].to_string()];
    let way = |rank: u32, this: &str, other: &str| {
        format!("message 1 from rank {rank} to rank {} has {this} bytes and room for {other}", 1 - rank)
    };
    let expected = |rank: u32, names: [&str; 2], sizes: [&str; 2]| {
        let sent = format!(
            "{}, to rank {}: failed: rank {rank}: {}",
            names[0],
            1 - rank,
            way(rank, sizes[0], sizes[1])
        );
        let got = format!(
            "{}, from rank {}: failed: rank {rank}: {}",
            names[1],
            1 - rank,
            way(1 - rank, sizes[1], sizes[0])
        );
        [sent, got]
    };
    let of_ring = ["send of neighbour (op9 of ring)", "arrive of neighbour (op8 of ring)"];
    let of_exchange = ["send of all (op4 of exchange)", "arrive of all (op5 of exchange)"];
    assert!(expected(0, of_ring, ["64", "320"]).contains(&found[0]), "{found:?}");
    assert!(expected(1, of_exchange, ["320", "64"]).contains(&found[1]), "{found:?}");
}

#[test]
fn a_part_needs_its_network() {
    let three = parts(&ring(3, 2), &in_turn(3, 3));
    let part = three[0].clone();
    let alone = catch_unwind(AssertUnwindSafe(|| Replay::new(part, vec![Mix], 0)));
    assert!(alone.is_err(), "there is no rank to talk to");
    let found = job(three[..2].to_vec(), |rank| {
        let error = Replay::on_network(rank.part.clone(), vec![Mix], 0, &rank.network).err();
        error.expect("rank 2 is missing").to_string()
    });
    for (rank, found) in found.into_iter().enumerate() {
        assert_eq!(found, format!("rank {rank}: message 0 has rank 2 at its other end, of 2"));
    }
}
