//! What ranks do together, with values that only the right bytes in the right places give.

use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;

use phalanx_net::mpi::Mpi;
use phalanx_net::{Done, Message, NetError, Network, Region, Transfers, Way};

pub fn run(mpi: &Mpi, ranks: u32, exercise: &str) {
    assert_eq!(mpi.size(), ranks, "{}", mpi.carrier());
    match exercise {
        "everything" => everything(mpi),
        "abort" => abort(mpi),
        _ => panic!("there is no exercise {exercise}"),
    }
    println!("rank {} of {ranks} is done ({})", mpi.rank(), mpi.carrier());
}

fn everything(mpi: &Mpi) {
    ring(mpi);
    grids(mpi);
    many_small(mpi);
    one_large(mpi);
    agreements(mpi);
    alerts(mpi);
    two_threads(mpi);
    chain(mpi);
    own_thread(mpi);
    refusals(mpi);
    raw(mpi);
}

fn abort(mpi: &Mpi) {
    if mpi.rank() + 1 < mpi.size() {
        return mpi.drive(&|| false);
    }
    thread::scope(|scope| {
        scope.spawn(|| mpi.drive(&|| false));
        scope.spawn(|| mpi.abort(7));
    });
}

/// The neighbors in the ring: the one that sends to this rank and the one it sends to.
fn neighbors(mpi: &Mpi) -> (u32, u32) {
    ((mpi.rank() + mpi.size() - 1) % mpi.size(), (mpi.rank() + 1) % mpi.size())
}

fn message(way: Way, peer: u32, tag: u32, bytes: &mut [u8], grid: &[(usize, usize)], run: usize) -> Message {
    let reach: usize = grid.iter().map(|(count, stride)| (count - 1) * stride).sum();
    assert!(reach + run <= bytes.len(), "the region ends inside its memory");
    Message { way, peer, tag, region: Region::new(bytes.as_mut_ptr(), run, grid) }
}

fn whole(way: Way, peer: u32, tag: u32, bytes: &mut [u8]) -> Message {
    let run = bytes.len();
    message(way, peer, tag, bytes, &[], run)
}

/// One batch that counts how often it is complete.
struct Batch {
    transfers: Box<dyn Transfers>,
    complete: Arc<AtomicUsize>,
}

impl Batch {
    fn new(mpi: &Mpi, messages: Vec<Message>) -> Batch {
        let complete: Arc<AtomicUsize> = Arc::default();
        let counter = complete.clone();
        let done: Done = Arc::new(move |_, result| {
            result.unwrap();
            counter.fetch_add(1, AcqRel);
        });
        // SAFETY: the exercises keep their buffers longer than their batches.
        Batch { transfers: unsafe { mpi.connect(vec![messages], done) }.unwrap(), complete }
    }

    fn run(&self, mpi: &Mpi) {
        let before = self.complete.load(Acquire);
        // SAFETY: the buffers are left alone until `drive` returns.
        unsafe { self.transfers.start(0) };
        mpi.drive(&|| self.complete.load(Acquire) > before);
        assert_eq!(self.complete.load(Acquire), before + 1);
    }
}

/// What rank `rank` sends in round `round`.
fn pattern(rank: u32, round: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + round * 31 + rank as usize * 101) as u8).collect()
}

fn ring(mpi: &Mpi) {
    ring_rounds(mpi, 10_000, 50, 0);
}

fn ring_rounds(mpi: &Mpi, len: usize, rounds: usize, tag: u32) {
    let (left, right) = neighbors(mpi);
    let (mut sent, mut received) = (vec![0; len], vec![0; len]);
    let batch = Batch::new(
        mpi,
        vec![whole(Way::Send, right, tag, &mut sent), whole(Way::Receive, left, tag, &mut received)],
    );
    for round in 0..rounds {
        sent.copy_from_slice(&pattern(mpi.rank(), round, len));
        batch.run(mpi);
        assert!(received == pattern(left, round, len), "round {round} on rank {}", mpi.rank());
    }
}

/// The bytes of a region in order.
fn places(grid: &[(usize, usize)], run: usize) -> Vec<usize> {
    let mut starts = vec![0];
    for &(count, stride) in grid {
        starts = starts.iter().flat_map(|start| (0..count).map(move |i| start + i * stride)).collect();
    }
    starts.iter().flat_map(|start| *start..start + run).collect()
}

fn grids(mpi: &Mpi) {
    type Grid = (&'static [(usize, usize)], usize);
    let pairs: [(Grid, Grid); 4] = [
        ((&[(6, 32)], 10), (&[], 60)),
        ((&[], 60), (&[(2, 90), (5, 17)], 6)),
        ((&[(2, 100), (3, 20)], 10), (&[(5, 30), (2, 13)], 6)),
        ((&[(2, 90), (2, 40), (3, 12), (1, 5)], 5), (&[(3, 40), (2, 10)], 10)),
    ];
    let (left, right) = neighbors(mpi);
    for ((from, from_run), (to, to_run)) in pairs {
        let mut sent = pattern(mpi.rank(), 3, 200);
        let mut received = vec![0xee; 200];
        let batch = Batch::new(
            mpi,
            vec![
                message(Way::Send, right, 5, &mut sent, from, from_run),
                message(Way::Receive, left, 5, &mut received, to, to_run),
            ],
        );
        batch.run(mpi);
        let (theirs, mut expected) = (pattern(left, 3, 200), vec![0xee; 200]);
        for (source, target) in places(from, from_run).into_iter().zip(places(to, to_run)) {
            expected[target] = theirs[source];
        }
        assert_eq!(received, expected, "{from:?} to {to:?}");
    }
}

fn many_small(mpi: &Mpi) {
    const N: usize = 500;
    let len = |i: usize| i * 13 % 700;
    let (left, right) = neighbors(mpi);
    let mut sent: Vec<_> = (0..N).map(|i| pattern(mpi.rank(), i, len(i))).collect();
    let mut received: Vec<_> = (0..N).map(|i| vec![0; len(i)]).collect();
    let mut messages = Vec::new();
    for (i, bytes) in sent.iter_mut().enumerate() {
        messages.push(whole(Way::Send, right, i as u32, bytes));
    }
    // In another order than they are sent.
    for (i, bytes) in received.iter_mut().enumerate().rev() {
        messages.push(whole(Way::Receive, left, i as u32, bytes));
    }
    let batch = Batch::new(mpi, messages);
    batch.run(mpi);
    batch.run(mpi);
    for (i, bytes) in received.iter().enumerate() {
        assert_eq!(*bytes, pattern(left, i, len(i)), "message {i}");
    }
}

fn one_large(mpi: &Mpi) {
    ring_rounds(mpi, 64 << 20, 1, 1);
}

fn agreements(mpi: &Mpi) {
    let (rank, size) = (mpi.rank(), mpi.size());
    mpi.barrier().unwrap();
    let all = mpi.all_gather(&pattern(rank, 1, rank as usize * 1000)).unwrap();
    let expected: Vec<_> = (0..size).map(|rank| pattern(rank, 1, rank as usize * 1000)).collect();
    assert_eq!(all, expected);
    // The first rank brings more than goes in one piece.
    let long = |rank| pattern(rank, 2, if rank == 0 { (16 << 20) + 17 } else { rank as usize });
    let all = mpi.all_gather(&long(rank)).unwrap();
    assert!((0..size).all(|rank| all[rank as usize] == long(rank)));
    for root in 0..size {
        let mut bytes = pattern(rank, 4, 10 + rank as usize * 5);
        mpi.broadcast(root, &mut bytes).unwrap();
        assert_eq!(bytes, pattern(root, 4, 10 + root as usize * 5));
    }
    let mut bytes = pattern(rank, 5, 100_000);
    mpi.carry(size - 1, 0, &mut bytes).unwrap();
    assert!(bytes == pattern(if rank == 0 { size - 1 } else { rank }, 5, 100_000));
    let error = mpi.carry(0, size, &mut bytes).unwrap_err();
    assert!(error.to_string().ends_with(&format!("there is no rank {size} in a job of {size}")), "{error}");
}

fn alerts(mpi: &Mpi) {
    // The first one's is too long.
    let text = |rank: u32| if rank == 0 { "ä".repeat(50_000) } else { format!("rank {rank} is tired") };
    let heard: Arc<Mutex<Vec<(u32, String)>>> = Arc::default();
    mpi.alert(&text(mpi.rank()));
    let list = heard.clone();
    mpi.on_alert(Box::new(move |from, text| list.lock().unwrap().push((from, text.into()))));
    mpi.drive(&|| heard.lock().unwrap().len() + 1 == mpi.size() as usize);
    let mut heard = std::mem::take(&mut *heard.lock().unwrap());
    heard.sort();
    let others = (0..mpi.size()).filter(|rank| *rank != mpi.rank());
    let cut =
        |text: String| text.chars().take(if text.len() > 65_536 { 32_768 } else { text.len() }).collect();
    let expected: Vec<(u32, String)> = others.map(|rank| (rank, cut(text(rank)))).collect();
    assert!(heard == expected, "rank {} heard {} alerts", mpi.rank(), heard.len());
}

/// Agreements and transfers at the same time.
fn two_threads(mpi: &Mpi) {
    let (left, right) = neighbors(mpi);
    let (mut sent, mut received) = (vec![0; 30_000], vec![0; 30_000]);
    let messages = vec![whole(Way::Send, right, 0, &mut sent), whole(Way::Receive, left, 0, &mut received)];
    let batch = Batch::new(mpi, messages);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..100usize {
                let all = mpi.all_gather(&[mpi.rank() as u8, round as u8]).unwrap();
                let expected: Vec<_> = (0..mpi.size()).map(|rank| vec![rank as u8, round as u8]).collect();
                assert_eq!(all, expected);
            }
        });
        for round in 0..100 {
            sent.copy_from_slice(&pattern(mpi.rank(), round, 30_000));
            batch.run(mpi);
            assert!(received == pattern(left, round, 30_000), "round {round}");
        }
    });
}

/// A batch that starts itself again when it is complete; the ranks' counters go around the ring.
fn chain(mpi: &Mpi) {
    const ROUNDS: usize = 200;
    let (left, right) = neighbors(mpi);
    let (mut sent, mut received) = (vec![mpi.rank() as u8; 64], vec![0; 64]);
    let messages = vec![whole(Way::Send, right, 0, &mut sent), whole(Way::Receive, left, 0, &mut received)];
    let transfers: Arc<OnceLock<Box<dyn Transfers>>> = Arc::default();
    let complete: Arc<AtomicUsize> = Arc::default();
    let done: Done = {
        let (transfers, complete) = (transfers.clone(), complete.clone());
        Arc::new(move |batch, result| {
            result.unwrap();
            if complete.fetch_add(1, AcqRel) + 1 < ROUNDS {
                // SAFETY: the buffers are not touched before the last round.
                unsafe { transfers.get().unwrap().start(batch) };
            }
        })
    };
    // SAFETY: the buffers live longer than anything is under way.
    let connected = unsafe { mpi.connect(vec![messages], done) }.unwrap();
    // SAFETY: as above.
    unsafe { transfers.get_or_init(|| connected).start(0) };
    mpi.drive(&|| complete.load(Acquire) == ROUNDS);
    assert_eq!(received, [left as u8; 64]);
}

/// No thread drives but the network's own; two batches are under way at once.
fn own_thread(mpi: &Mpi) {
    let (left, right) = neighbors(mpi);
    let (mut sent, mut received) = (vec![0; 200_000], vec![0; 200_000]);
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let done: Done = Arc::new(move |batch, result| tell.lock().unwrap().send((batch, result)).unwrap());
    let batches =
        vec![vec![whole(Way::Receive, left, 0, &mut received)], vec![whole(Way::Send, right, 0, &mut sent)]];
    // SAFETY: the buffers live longer than the transfers.
    let transfers = unsafe { mpi.connect(batches, done) }.unwrap();
    for round in 0..20 {
        sent.copy_from_slice(&pattern(mpi.rank(), round, 200_000));
        for batch in [0, 1] {
            // SAFETY: the buffers are left alone until both are complete.
            unsafe { transfers.start(batch) };
        }
        let mut complete = [told.recv().unwrap(), told.recv().unwrap()];
        complete.sort_by_key(|(batch, _)| *batch);
        assert_eq!(complete, [(0, Ok(())), (1, Ok(()))]);
        assert!(received == pattern(left, round, 200_000), "round {round}");
    }
}

/// What one rank gets wrong, all are told.
fn refusals(mpi: &Mpi) {
    let (left, right) = neighbors(mpi);
    let mut bytes = [0; 100];
    let mut refused = |send: usize, peer: u32| -> NetError {
        let messages = vec![
            whole(Way::Send, right, 3, &mut bytes[..send]),
            whole(Way::Receive, if peer > 0 { peer } else { left }, 3, &mut bytes[..50]),
        ];
        // SAFETY: nothing is started.
        let connected = unsafe { mpi.connect(vec![messages], Arc::new(|_, _| {})) };
        connected.err().expect("the messages do not fit")
    };
    let first = mpi.rank() == 0;
    let error = refused(if first { 51 } else { 50 }, 0).to_string();
    let expected = format!("rank 0 sends 1 messages of 51 bytes to rank {}", 1 % mpi.size());
    assert!(error.contains(&expected), "{error}");
    let error = refused(50, if first { 1000 } else { 0 }).to_string();
    let expected =
        if first { "a message has peer 1000, and the job" } else { "rank 0 could not set up its messages" };
    assert!(error.contains(expected), "{error}");
}

fn raw(mpi: &Mpi) {
    let (rank, size) = (mpi.rank(), mpi.size());
    let raw = mpi.raw();
    let mut numbers = vec![rank as f32 + 0.5; 1000];
    raw.all_reduce(&mut numbers).unwrap();
    assert_eq!(numbers, vec![(0..size).map(|rank| rank as f32 + 0.5).sum::<f32>(); 1000]);
    let mine: Vec<u8> = (0..size).flat_map(|to| [rank as u8, to as u8]).collect();
    let mut all = vec![0; mine.len()];
    raw.all_to_all(&mine, &mut all).unwrap();
    assert_eq!(all, (0..size).flat_map(|from| [from as u8, rank as u8]).collect::<Vec<_>>());
    let mut bytes = pattern(rank, 9, 1000);
    if rank == 0 && size > 1 {
        raw.send(1, &bytes).unwrap();
    } else if rank == 1 {
        raw.receive(0, &mut bytes).unwrap();
        assert_eq!(bytes, pattern(0, 9, 1000));
    }
}
