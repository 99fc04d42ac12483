//! Two ranks throw messages back and forth, once through the engine and once with the library's own calls.
//!
//! `mpirun -n 2 target/release/examples/pingpong open-mpi`, or `mpiexec -n 2 … mpich`; a library's file may follow.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::time::Instant;

use phalanx_net::mpi::{Launcher, Mpi, Options};
use phalanx_net::{Done, Message, NetError, Network, Region, Way};

/// Messages of a measurement, there and back; the best of `REPEATS` measurements counts.
const SIZES: [(usize, usize); 3] = [(8, 2000), (64 << 10, 500), (4 << 20, 40)];
const REPEATS: usize = 15;

fn main() -> Result<(), NetError> {
    let mut args = std::env::args().skip(1);
    let launcher = match args.next().as_deref() {
        Some("open-mpi") => Launcher::OpenMpi,
        Some("mpich") => Launcher::Mpich,
        _ => Launcher::Unknown,
    };
    let mpi = Mpi::start(Options { library: args.next().map(Into::into), launcher })?;
    if mpi.size() != 2 {
        println!("pingpong needs 2 ranks, and there are {}", mpi.size());
        return Ok(());
    }
    for (bytes, rounds) in SIZES {
        let (mut own, mut raw) = (Vec::new(), Vec::new());
        for _ in 0..REPEATS {
            own.push(through_transfers(&mpi, bytes, rounds)?);
            raw.push(through_library(&mpi, bytes, rounds)?);
        }
        if mpi.rank() == 0 {
            report(&mpi, bytes, &mut own, &mut raw);
        }
    }
    Ok(())
}

/// One way, best and median, in microseconds.
fn report(mpi: &Mpi, bytes: usize, own: &mut [f64], raw: &mut [f64]) {
    own.sort_by(f64::total_cmp);
    raw.sort_by(f64::total_cmp);
    let (middle, carrier) = (REPEATS / 2, mpi.carrier());
    println!(
        "{bytes:>8} bytes one way: transfers best {:8.2} us, median {:8.2}; library best {:8.2} us, median {:8.2}; \
         best {:.2} times, median {:.2} times ({:.2} GB/s) ({carrier})",
        own[0],
        own[middle],
        raw[0],
        raw[middle],
        own[0] / raw[0],
        own[middle] / raw[middle],
        bytes as f64 / own[0] / 1e3,
    );
}

/// Batch 0 receives and batch 1 sends.
fn through_transfers(mpi: &Mpi, bytes: usize, rounds: usize) -> Result<f64, NetError> {
    let peer = 1 - mpi.rank();
    let (mut sent, mut received) = (vec![1u8; bytes], vec![0u8; bytes]);
    let message = |way, buffer: &mut Vec<u8>| {
        vec![Message { way, peer, tag: 0, region: Region::new(buffer.as_mut_ptr(), bytes, &[]) }]
    };
    let batches = vec![message(Way::Receive, &mut received), message(Way::Send, &mut sent)];
    let complete: Arc<[AtomicUsize; 2]> = Arc::default();
    let counts = complete.clone();
    let done: Done = Arc::new(move |batch, result| {
        result.expect("a transfer works");
        counts[batch].fetch_add(1, AcqRel);
    });
    // SAFETY: the buffers live until the end of this function, longer than the transfers.
    let transfers = unsafe { mpi.connect(batches, done) }?;
    mpi.barrier()?;
    let start = Instant::now();
    let started = [Cell::new(0), Cell::new(0)];
    mpi.drive(&|| {
        let [received, sent] = [0, 1].map(|batch| complete[batch].load(Acquire));
        // Rank 0 serves; each answers as often as it received.
        for (batch, complete, allowed) in [(1, sent, received + peer as usize), (0, received, received + 1)] {
            if started[batch].get() == complete && complete < allowed.min(rounds) {
                started[batch].set(complete + 1);
                // SAFETY: nothing else touches the buffers, and the batch is complete.
                unsafe { transfers.start(batch) };
            }
        }
        received == rounds && sent == rounds
    });
    Ok(start.elapsed().as_secs_f64() * 1e6 / rounds as f64 / 2.0)
}

fn through_library(mpi: &Mpi, bytes: usize, rounds: usize) -> Result<f64, NetError> {
    let peer = 1 - mpi.rank();
    let (sent, mut received) = (vec![1u8; bytes], vec![0u8; bytes]);
    mpi.barrier()?;
    let raw = mpi.raw();
    let start = Instant::now();
    for _ in 0..rounds {
        if peer == 1 {
            raw.send(peer, &sent)?;
            raw.receive(peer, &mut received)?;
        } else {
            raw.receive(peer, &mut received)?;
            raw.send(peer, &sent)?;
        }
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / rounds as f64 / 2.0)
}
