//! Parts of programs on ranks that are threads: together they leave the bytes that the whole program leaves alone.

mod errors;
mod programs;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use phalanx_net::Network;
use phalanx_net::local::Local;
use phalanx_program::{Placement, Program};
use phalanx_runtime::{Config, Kernels, Options, ProcessorId, Replay, Runtime};

use programs::{Blend, exchange, ring};

/// Devices in turn on ranks.
fn in_turn(devices: u32, ranks: u32) -> Placement {
    Placement { ranks, of_device: (0..devices).map(|device| device % ranks).collect() }
}

/// Devices in blocks on ranks, some of which have one more.
fn in_blocks(devices: u32, ranks: u32) -> Placement {
    Placement { ranks, of_device: (0..devices).map(|device| device * ranks / devices).collect() }
}

/// The rank of a job that a thread is.
struct Rank {
    network: Arc<dyn Network>,
    part: Program,
}

impl Rank {
    fn replay<K: Kernels + Send + Sync + 'static>(&self, kernels: impl Fn(u32) -> K) -> Replay<K> {
        let kernels = self.part.homes().map(|lane| kernels(lane.device)).collect();
        Replay::on_network(self.part.clone(), kernels, 0, &self.network).expect("ranks fit together")
    }
}

/// Does `work` on a thread for each rank; what they give, in rank order.
fn job<R: Send>(parts: Vec<Program>, work: impl Fn(&Rank) -> R + Sync) -> Vec<R> {
    let networks = Local::job(parts.len() as u32);
    let ranks = networks.into_iter().map(|network| Arc::new(network) as Arc<dyn Network>);
    let ranks: Vec<_> = ranks.zip(parts).map(|(network, part)| Rank { network, part }).collect();
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| work(&{ rank }))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank does not panic")).collect()
    })
}

fn parts(whole: &Program, placement: &Placement) -> Vec<Program> {
    whole.parts(placement).expect("programs can be cut")
}

/// Rows of a tensor, each with its number.
type Rows = Vec<(usize, Vec<u8>)>;

/// The rows that this replay has of a tensor with one for each device.
fn rows<K: Kernels>(replay: &Replay<K>, name: &str) -> Rows {
    let port = replay.port(name).expect("the port is there");
    let bytes = replay.read(name).expect("the port is there");
    let size = bytes.len() / port.ty.shape.dims()[0];
    let row = |row: usize| (row, bytes[row * size..][..size].to_vec());
    port.tiles.iter().map(|tile| row(tile.origin[0])).collect()
}

/// What the input is in a run.
fn input(run: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64 / 4).flat_map(|i| ((run * 31 + i * 7) as f32 % 13.0 - 6.0).to_ne_bytes()).collect()
}

const RUNS: u64 = 200;

/// Overlapping runs with other inputs each: the rows of `out` after each run, and those of `own` at the end.
fn outputs(replay: &mut Replay<Blend>) -> Vec<Rows> {
    let bytes = replay.port("x").expect("the port is there").ty.bytes();
    let mut outputs = Vec::new();
    for run in 0..RUNS {
        replay.write("x", &input(run, bytes)).expect("the port is there");
        assert_eq!(replay.launch(), run);
        if run > 0 {
            assert_eq!(replay.wait(run - 1), Ok(()));
            outputs.push(rows(replay, "out"));
        }
    }
    assert_eq!(replay.wait(RUNS - 1), Ok(()));
    outputs.extend([rows(replay, "out"), rows(replay, "own")]);
    outputs
}

/// Puts the rows of all ranks together.
fn joined(ranks: Vec<Vec<Rows>>) -> Vec<Rows> {
    let reads = ranks[0].len();
    let all = |read: usize| {
        let mut rows: Vec<_> = ranks.iter().flat_map(|rank| rank[read].clone()).collect();
        rows.sort_unstable();
        rows
    };
    (0..reads).map(all).collect()
}

#[test]
fn ranks_that_exchange_and_sum_leave_what_one_process_leaves() {
    for (devices, beside) in [(2, false), (3, true), (4, false), (4, true)] {
        let whole = exchange(devices, 3, beside);
        let mut alone = Replay::new(whole.clone(), (0..devices).map(|_| Blend).collect(), 0);
        let expected = joined(vec![outputs(&mut alone)]);
        assert!(expected.windows(2).all(|pair| pair[0] != pair[1]), "every run is another one");
        for ranks in 1..=devices {
            for placement in [in_turn(devices, ranks), in_blocks(devices, ranks)] {
                let found = job(parts(&whole, &placement), |rank| outputs(&mut rank.replay(|_| Blend)));
                assert_eq!(joined(found), expected, "{placement:?}, beside: {beside}");
            }
        }
    }
}

#[test]
fn a_ring_of_ranks_passes_on_what_one_process_passes_on() {
    let run = |replay: &mut Replay<programs::Mix>| {
        let bytes = replay.port("own").expect("the port is there").ty.bytes();
        replay.write("own", &(0..bytes).map(|i| i as u8).collect::<Vec<_>>()).expect("the port is there");
        (0..RUNS).for_each(|run| {
            replay.launch();
            (run > 0).then(|| assert_eq!(replay.wait(run - 1), Ok(())));
        });
        assert_eq!(replay.wait(RUNS - 1), Ok(()));
        vec![rows(replay, "own")]
    };
    for devices in [2, 3, 5] {
        let whole = ring(devices, 7);
        let kernels = (0..devices).map(|_| programs::Mix).collect();
        let expected = joined(vec![run(&mut Replay::new(whole.clone(), kernels, 0))]);
        for ranks in 2..=devices {
            let parts = parts(&whole, &in_turn(devices, ranks));
            let found = job(parts, |rank| run(&mut rank.replay(|_| programs::Mix)));
            assert_eq!(joined(found), expected, "{devices} devices on {ranks} ranks");
        }
    }
}

#[test]
fn messages_are_held_back_to_the_link() {
    let (devices, rounds, runs) = (2, 3, 2);
    let start = std::time::Instant::now();
    let found = job(parts(&ring(devices, rounds), &in_turn(devices, 2)), |rank| {
        let mut replay = rank.replay(|_| programs::Mix);
        replay.throttle("2ms,1GB".parse().expect("a link"));
        (0..runs).for_each(|_| assert_eq!(replay.run(), Ok(())));
        replay.watch().completed()
    });
    // One message after the other takes the latency of each.
    assert!(start.elapsed().as_millis() >= 2 * u128::from(rounds * runs), "{:?}", start.elapsed());
    // In every round a rank mixes, sends, and gets what arrives to where it belongs.
    assert_eq!(found, [u64::from(4 * rounds * runs); 2]);
}

/// What happens on one rank lets a task of another one run: a task waits for the word of it, and its end is the event there.
/// Poison crosses over, too.
#[test]
fn an_event_of_another_rank_is_a_precondition() {
    for fails in [false, true] {
        let happened = AtomicBool::new(false);
        let networks = Local::job(2).into_iter().map(|network| Arc::new(network) as Arc<dyn Network>);
        let networks: Vec<_> = networks.collect();
        thread::scope(|scope| {
            let (told, hears) = (Arc::clone(&networks[0]), Arc::clone(&networks[1]));
            let happened = &happened;
            scope.spawn(move || {
                let runtime = Runtime::new(Config::new(1, 0));
                let event = runtime.events().user();
                let on = ProcessorId(0);
                let after = Options { after: event.event(), ..Options::default() };
                let work = runtime.spawn(on, after, move |_| assert!(!fails, "out of paper"));
                let events = Arc::clone(runtime.events());
                happened.store(true, Ordering::Release);
                events.trigger(event).expect("it happens once");
                let word = u8::from(runtime.wait(work.finish()).is_ok());
                told.carry(0, 1, &mut [word]).expect("rank 1 is there");
            });
            scope.spawn(move || {
                let runtime = Runtime::new(Config::new(1, 1));
                let arrives = runtime.spawn(ProcessorId(0), Options::default(), move |_| {
                    let mut word = [0];
                    hears.carry(0, 1, &mut word).expect("rank 0 is there");
                    assert_eq!(word, [1], "it failed on rank 0");
                });
                let seen = Arc::new(AtomicBool::new(false));
                let sees = Arc::clone(&seen);
                let after = Options { after: arrives.finish(), ..Options::default() };
                let task = runtime.spawn(ProcessorId(0), after, move |_| sees.store(true, Ordering::Release));
                assert_eq!(runtime.wait(task.finish()).is_err(), fails, "poison crosses over");
                assert!(happened.load(Ordering::Acquire), "not before it happened on rank 0");
                assert_eq!(seen.load(Ordering::Acquire), !fails);
            });
        });
    }
}
