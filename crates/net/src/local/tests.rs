use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::*;
use crate::{Region, Way};

/// Runs every rank on a thread of its own.
fn ranks<T: Send>(size: u32, rank: impl Fn(Local) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = Local::job(size).into_iter().map(|local| scope.spawn(|| rank(local))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn message(way: Way, peer: u32, tag: u32, region: Region) -> Message {
    Message { way, peer, tag, region }
}

fn whole(bytes: &mut [u8]) -> Region {
    Region::new(bytes.as_mut_ptr(), bytes.len(), &[])
}

/// How many batches are complete; driving waits for that.
#[derive(Default)]
struct Tally(AtomicUsize);

impl Tally {
    fn done(self: &Arc<Self>) -> Done {
        let tally = self.clone();
        Arc::new(move |_, result| {
            assert_eq!(result, Ok(()));
            tally.0.fetch_add(1, Ordering::SeqCst);
        })
    }

    fn await_on(&self, network: &dyn Network, count: usize) {
        network.drive(&|| self.0.load(Ordering::SeqCst) >= count);
    }
}

/// Sends `from` to `to` in a job of two and returns what the receiver's memory is then.
fn send(from: impl Fn(&mut [u8]) -> Region + Sync, to: impl Fn(&mut [u8]) -> Region + Sync) -> Vec<u8> {
    let received = ranks(2, |local| {
        let mut memory: Vec<u8> = if local.rank() == 0 { (0..=255).collect() } else { vec![0; 256] };
        let (way, region) = match local.rank() {
            0 => (Way::Send, from(&mut memory)),
            _ => (Way::Receive, to(&mut memory)),
        };
        let tally = Arc::new(Tally::default());
        let batches = vec![vec![message(way, 1 - local.rank(), 7, region)]];
        // SAFETY: the memory outlives the transfers.
        let transfers = unsafe { local.connect(batches, tally.done()) }.unwrap();
        // SAFETY: the memory is not touched until the batch is complete.
        unsafe { transfers.start(0) };
        tally.await_on(&local, 1);
        drop(transfers);
        memory
    });
    received.into_iter().nth(1).unwrap()
}

#[test]
fn runs_of_one_grid_go_into_runs_of_another() {
    // 2 x 3 runs of 4 bytes: 0.., 10.., 20.., 100.., 110.., 120..
    let from = |memory: &mut [u8]| Region::new(memory.as_mut_ptr(), 4, &[(2, 100), (3, 10)]);
    let values: Vec<u8> = [0, 10, 20, 100, 110, 120].iter().flat_map(|run| *run..*run + 4).collect();
    let contiguous = send(from, |memory| whole(&mut memory[5..29]));
    assert_eq!(contiguous[5..29], values);
    assert_eq!(contiguous.iter().filter(|byte| **byte != 0).count(), 23, "nothing else is written");
    // 4 runs of 6 bytes, 50 apart: cut differently, neither a multiple of the other.
    let strided = send(from, |memory| Region::new(memory.as_mut_ptr(), 6, &[(4, 50)]));
    let landed: Vec<u8> = (0..4).flat_map(|run| strided[50 * run..50 * run + 6].to_vec()).collect();
    assert_eq!(landed, values);
    assert_eq!(strided[6..50], [0; 44], "nothing else is written");
}

#[test]
fn a_message_may_be_empty() {
    let none = |memory: &mut [u8]| Region::new(memory.as_mut_ptr(), 4, &[(0, 8), (3, 1)]);
    assert_eq!(send(none, none), [0; 256]);
}

#[test]
fn a_ring_runs_many_rounds() {
    const SIZE: u32 = 3;
    let ends = ranks(SIZE, |local| {
        let rank = local.rank();
        let (mut out, mut into) = ([0u8; 8], [0u8; 8]);
        let batches = vec![vec![
            message(Way::Send, (rank + 1) % SIZE, 0, whole(&mut out)),
            message(Way::Receive, (rank + SIZE - 1) % SIZE, 0, whole(&mut into)),
        ]];
        let (sent, got) =
            (batches[0][0].region.start().cast::<u64>(), batches[0][1].region.start().cast::<u64>());
        let tally = Arc::new(Tally::default());
        // SAFETY: the memory outlives the transfers.
        let transfers = unsafe { local.connect(batches, tally.done()) }.unwrap();
        let mut value = u64::from(rank);
        for round in 1..=50 {
            // SAFETY: `out` is live, and no batch is under way.
            unsafe { sent.write_unaligned(value) };
            // SAFETY: the memory is not touched until the batch is complete.
            unsafe { transfers.start(0) };
            tally.await_on(&local, round);
            // SAFETY: `into` is live, and no batch is under way.
            value = unsafe { got.read_unaligned() } + 10;
        }
        value
    });
    // 50 rounds on, the value of rank r is that of rank r - 50 mod 3, and 10 more for every round.
    assert_eq!(ends, [501, 502, 500]);
}

#[test]
fn many_messages_of_one_batch_all_arrive() {
    const COUNT: usize = 500;
    let landed = ranks(2, |local| {
        let mut memory: Vec<u8> =
            (0..4 * COUNT).map(|i| if local.rank() == 0 { i as u8 } else { 0 }).collect();
        let peer = 1 - local.rank();
        let way = if local.rank() == 0 { Way::Send } else { Way::Receive };
        let mut batch: Vec<_> = memory
            .chunks_mut(4)
            .enumerate()
            .map(|(tag, chunk)| message(way, peer, tag as u32, whole(chunk)))
            .collect();
        if local.rank() == 1 {
            batch.reverse();
        }
        let tally = Arc::new(Tally::default());
        // SAFETY: the memory outlives the transfers.
        let transfers = unsafe { local.connect(vec![batch], tally.done()) }.unwrap();
        // SAFETY: the memory is not touched until the batch is complete.
        unsafe { transfers.start(0) };
        tally.await_on(&local, 1);
        drop(transfers);
        memory
    });
    assert_eq!(landed[0], landed[1]);
}

#[test]
fn a_batch_is_complete_when_its_last_message_is() {
    let mut locals = Local::job(2);
    let (one, zero) = (locals.pop().unwrap(), locals.pop().unwrap());
    let (mut out, mut into) = (vec![1u8, 2], vec![0u8, 0]);
    let sends = out.chunks_mut(1).enumerate();
    let sends = sends.map(|(tag, byte)| vec![message(Way::Send, 1, tag as u32, whole(byte))]).collect();
    let receives = into.chunks_mut(1).enumerate();
    let receives = receives.map(|(tag, byte)| message(Way::Receive, 0, tag as u32, whole(byte))).collect();
    let (sent, got) = (Arc::new(Tally::default()), Arc::new(Tally::default()));
    let (sender, receiver) = thread::scope(|scope| {
        // SAFETY: the memory outlives the transfers.
        let sender = scope.spawn(|| unsafe { zero.connect(sends, sent.done()) }.unwrap());
        // SAFETY: as above.
        let receiver = unsafe { one.connect(vec![receives], got.done()) }.unwrap();
        (sender.join().unwrap(), receiver)
    });
    let counts = || (sent.0.load(Ordering::SeqCst), got.0.load(Ordering::SeqCst));
    // SAFETY: the memory is not touched until the batches are complete.
    unsafe { receiver.start(0) };
    assert_eq!(counts(), (0, 0));
    // SAFETY: as above.
    unsafe { sender.start(1) };
    assert_eq!(counts(), (1, 0));
    // SAFETY: as above.
    unsafe { sender.start(0) };
    assert_eq!(counts(), (2, 1));
    assert_eq!(into, [1, 2]);
}

/// Two ranks start each batch again from within `Done`, so often that no stack would hold the calls one inside the
/// other.
#[test]
fn batches_start_from_inside_done() {
    const ANSWERS: usize = 200_000;
    type Answering = OnceLock<Box<dyn Transfers>>;
    let answers = ranks(2, |local| {
        let mut bytes = [0u8; 2];
        let (out, into) = bytes.split_at_mut(1);
        let peer = 1 - local.rank();
        let batches = vec![
            vec![message(Way::Send, peer, 0, whole(out))],
            vec![message(Way::Receive, peer, 0, whole(into))],
        ];
        let (transfers, rounds) = (Arc::new(Answering::new()), Arc::new([const { AtomicUsize::new(0) }; 2]));
        let (again, count) = (transfers.clone(), rounds.clone());
        let done: Done = Arc::new(move |batch, result| {
            assert_eq!(result, Ok(()));
            if count[batch].fetch_add(1, Ordering::SeqCst) + 1 < ANSWERS {
                // SAFETY: the bytes are not touched before the end.
                unsafe { again.get().unwrap().start(batch) };
            }
        });
        // SAFETY: the bytes outlive the transfers.
        let connected = unsafe { local.connect(batches, done) }.unwrap();
        assert!(transfers.set(connected).is_ok());
        local.barrier().unwrap();
        // SAFETY: the bytes are not touched before the end.
        unsafe { transfers.get().unwrap().start(0) };
        // SAFETY: as above.
        unsafe { transfers.get().unwrap().start(1) };
        local.drive(&|| rounds.iter().all(|rounds| rounds.load(Ordering::SeqCst) == ANSWERS));
        local.barrier().unwrap();
        [0, 1].map(|batch| rounds[batch].load(Ordering::SeqCst))
    });
    assert_eq!(answers, [[ANSWERS; 2]; 2]);
}

#[test]
fn ends_of_different_lengths_fail_on_both_sides() {
    let errors = ranks(2, |local| {
        let mut bytes = vec![0u8; 3 + local.rank() as usize];
        let way = if local.rank() == 0 { Way::Send } else { Way::Receive };
        let batches = vec![vec![message(way, 1 - local.rank(), 5, whole(&mut bytes))]];
        let error = Arc::new(Mutex::new(None));
        let told = error.clone();
        let done: Done = Arc::new(move |_, result| *told.lock().unwrap() = result.err());
        // SAFETY: the bytes outlive the transfers.
        let transfers = unsafe { local.connect(batches, done) }.unwrap();
        // SAFETY: the bytes are not touched.
        unsafe { transfers.start(0) };
        local.drive(&|| error.lock().unwrap().is_some());
        error.lock().unwrap().clone().unwrap().to_string()
    });
    let problem = "message 5 from rank 0 to rank 1 has 3 bytes and room for 4";
    assert_eq!(errors, [format!("rank 0: {problem}"), format!("rank 1: {problem}")]);
}

#[test]
fn messages_that_cannot_meet_are_refused() {
    let local = Local::alone();
    let mut bytes = [0u8];
    let mut end = |peer, tag| message(Way::Send, peer, tag, whole(&mut bytes));
    let cases = [
        (vec![end(1, 3)], "rank 0: message 3 has rank 1 at its other end, of 1"),
        (vec![end(0, 3), end(0, 3)], "rank 0: two messages with rank 0 have tag 3, the same way"),
    ];
    for (batch, problem) in cases {
        // SAFETY: nothing is started.
        let refused = unsafe { local.connect(vec![batch], Arc::new(|_, _| ())) };
        assert_eq!(refused.err().unwrap().to_string(), problem);
    }
}

#[test]
fn agreements_and_transfers_go_on_at_the_same_time() {
    let sums = ranks(2, |local| {
        let mut bytes = [local.rank() as u8 + 1, 0];
        let (out, into) = bytes.split_at_mut(1);
        let peer = 1 - local.rank();
        let batch =
            vec![message(Way::Send, peer, 0, whole(out)), message(Way::Receive, peer, 0, whole(into))];
        let tally = Arc::new(Tally::default());
        // SAFETY: the bytes outlive the transfers.
        let transfers = unsafe { local.connect(vec![batch], tally.done()) }.unwrap();
        let sum: usize = thread::scope(|scope| {
            let agreeing = scope.spawn(|| {
                let lengths = |round: usize| {
                    let mine = vec![1; round * (1 + local.rank() as usize)];
                    local.all_gather(&mine).unwrap().iter().map(Vec::len).sum::<usize>()
                };
                (0..100).map(lengths).sum()
            });
            for round in 1..=100 {
                // SAFETY: the bytes are not touched while it runs.
                unsafe { transfers.start(0) };
                tally.await_on(&local, round);
            }
            agreeing.join().unwrap()
        });
        drop(transfers);
        (sum, bytes[1])
    });
    // 3 bytes a round for round 0 to 99.
    assert_eq!(sums, [(3 * 4950, 2), (3 * 4950, 1)]);
}

#[test]
fn agreements_give_everyone_the_same() {
    let results = ranks(4, |local| {
        let rank = local.rank();
        local.barrier().unwrap();
        let gathered = local.all_gather(&vec![rank as u8; rank as usize]).unwrap();
        let mut text = format!("from {rank}").into_bytes();
        local.broadcast(2, &mut text).unwrap();
        let mut carried = vec![rank as u8; 3];
        if rank == 1 || rank == 3 {
            local.carry(3, 1, &mut carried).unwrap();
        }
        (gathered, String::from_utf8(text).unwrap(), carried)
    });
    for (rank, (gathered, text, carried)) in results.into_iter().enumerate() {
        assert_eq!(gathered, [vec![], vec![1], vec![2; 2], vec![3; 3]]);
        assert_eq!(text, "from 2");
        assert_eq!(carried, [if rank == 1 { 3 } else { rank as u8 }; 3]);
    }
}

#[test]
fn carried_bytes_must_fit() {
    let results = ranks(2, |local| local.carry(0, 1, &mut vec![0; 1 + local.rank() as usize]));
    assert_eq!(results[0], Ok(()));
    let error = results[1].clone().unwrap_err();
    assert_eq!(error.to_string(), "rank 1: rank 0 brings 1 bytes where 2 are expected");
    let bystander = ranks(1, |local| local.carry(0, 1, &mut [])).remove(0);
    assert_eq!(bystander.unwrap_err().to_string(), "rank 0: it has no part in bytes from rank 0 to 1 of 1");
}

#[test]
fn whoever_waits_for_a_rank_that_has_left_is_told() {
    let results = ranks(3, |local| match local.rank() {
        1 => String::new(),
        _ => local.barrier().unwrap_err().to_string(),
    });
    for rank in [0, 2] {
        let expected = format!("rank {rank}: rank 1 has left the job and does not come to barrier");
        assert_eq!(results[rank], expected);
    }
    let carrying = ranks(2, |local| match local.rank() {
        1 => String::new(),
        _ => local.carry(0, 1, &mut [1]).unwrap_err().to_string(),
    });
    assert_eq!(carrying[0], "rank 0: rank 1 has left the job and takes no bytes");
}

#[test]
fn ranks_that_meet_for_different_things_are_told() {
    let errors = ranks(2, |local| match local.rank() {
        0 => local.barrier().unwrap_err(),
        _ => local.broadcast(0, &mut vec![]).unwrap_err(),
    });
    let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
    let either = [
        "rank 0 calls barrier where others call broadcast from rank 0",
        "rank 1 calls broadcast from rank 0 where others call barrier",
    ];
    let problem = either.iter().find(|either| texts[0].ends_with(*either)).unwrap();
    assert_eq!(texts, [format!("rank 0: {problem}"), format!("rank 1: {problem}")]);
}

#[test]
fn alerts_reach_all_others_early_or_late() {
    let heard = ranks(3, |local| {
        let heard = Arc::new(Mutex::new(vec![]));
        let listen = |heard: &Arc<Mutex<Vec<_>>>| {
            let heard = heard.clone();
            local.on_alert(Box::new(move |from, text| heard.lock().unwrap().push(format!("{from}: {text}"))));
        };
        if local.rank() == 1 {
            listen(&heard);
        }
        local.barrier().unwrap();
        if local.rank() == 0 {
            local.alert("fire");
        }
        local.barrier().unwrap();
        listen(&heard);
        heard.lock().unwrap().clone()
    });
    assert_eq!(heard, [vec![], vec!["0: fire".to_string()], vec!["0: fire".to_string()]]);
}

#[test]
fn one_rank_alone_agrees_with_itself() {
    let local = Local::alone();
    assert_eq!((local.rank(), local.size(), local.carrier().as_str()), (0, 1, "threads"));
    local.barrier().unwrap();
    assert_eq!(local.all_gather(b"me").unwrap(), [b"me"]);
    let mut bytes = b"mine".to_vec();
    local.broadcast(0, &mut bytes).unwrap();
    assert_eq!(bytes, b"mine");
    let asked = AtomicBool::new(false);
    local.drive(&|| asked.swap(true, Ordering::SeqCst));
    assert!(asked.into_inner());
}
