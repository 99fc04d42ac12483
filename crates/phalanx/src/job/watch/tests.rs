use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use phalanx_net::Network;
use phalanx_net::local::Local;
use phalanx_program::Placement;
use phalanx_runtime::{Args, Kernels, Replay};
use phalanx_testkit::programs::ECHO;

use super::*;

/// Device 0 makes a tile, device 1 gets and uses it.
const WHOLE: &str = "program @pair {
  lane dev0 arena 64
    run make [] -> 0+64 scratch 0+0 of \"a\" carried 1/0
  lane dev1 arena 128
    run receive [0 at 0 = 0 at 0 run 64] 0/0+64 -> 0+64 scratch 0+0 of \"b\" after 0/0
    run use [] 0+64 -> 64+64 scratch 0+0 of \"c\"
}";

fn parts() -> Vec<Program> {
    let placement = Placement { ranks: 2, of_device: vec![0, 1] };
    WHOLE.parse::<Program>().unwrap().parts(&placement).unwrap()
}

/// Does nothing; with a gate it first says that it is there, and waits until it may go on.
struct Gated(Option<Mutex<(Sender<()>, Receiver<()>)>>);

impl Kernels for Gated {
    fn execute(&self, _kernel: usize, _args: Args<'_>) {
        if let Some(gate) = &self.0 {
            let (comes, goes_on) = &*gate.lock().unwrap();
            comes.send(()).unwrap();
            // Nothing lets it go on if the test has failed: then it ends, too.
            let _ = goes_on.recv();
        }
    }
}

/// The watch of a program that does not run.
fn idle_watch() -> Watch {
    Replay::new(WHOLE.parse().unwrap(), vec![Gated(None), Gated(None)], 0).watch()
}

fn watched(watch: Watch) -> Watched {
    let names = vec!["low, process 7".into(), "high, process 8".into()];
    let (parts, limit) = (Box::new(parts), Duration::from_secs(60));
    Watched { watch, between: None, parts, limit, names, say: Arc::new(|_| ()) }
}

const HEAD: &str = "no operation was completed for 60 s (--stall-seconds); chain of waits:";

#[test]
fn an_operation_that_blocks_real_runs_is_named() {
    thread::scope(|scope| {
        let (comes, coming) = channel();
        let (go_on, goes_on) = channel();
        let gates = [Some(Mutex::new((comes, goes_on))), None];
        let (show, shown) = channel();
        for ((local, part), gate) in Local::job(2).into_iter().zip(parts()).zip(gates) {
            let show = show.clone();
            scope.spawn(move || {
                let network: Arc<dyn Network> = Arc::new(local);
                let mut replay = Replay::on_network(part, vec![Gated(gate)], 0, &network).unwrap();
                show.send((network.rank(), replay.watch())).unwrap();
                assert_eq!(replay.run(), Ok(()));
            });
        }
        drop(show);
        let watches: BTreeMap<u32, Watch> = shown.iter().take(2).collect();
        coming.recv().unwrap();
        while watches.values().any(|watch| watch.launched() == 0) {
            thread::yield_now();
        }
        let still = |rank: u32| Duration::from_millis(61_900 + 3000 * u64::from(rank));
        let reports = watches.iter().map(|(&rank, watch)| (rank, report(watch, still(rank)))).collect();
        let text = explain(&watched(watches[&0].clone()), 0, 2, reports);
        go_on.send(()).unwrap();
        let expected = format!(
            "{HEAD}
  rank 1, device 1: receive of b of step 1 waits for
  rank 1, device 1: arrive of b of step 1 waits for
  rank 0, device 0: send of b of step 1 waits for
  rank 0, device 0: make of a of step 1 is being executed
  it stands at rank 0 (low, process 7), where nothing moves since 61 s"
        );
        assert_eq!(text, expected);
    });
}

/// Rank 0 has ended its step and waits for rank 1 to end its own, so it stands still for longer.
#[test]
fn a_rank_that_has_ended_its_step_is_not_blamed() {
    let ended = LaneProgress { run: 1, done: 0, running: false };
    let lanes = vec![LaneProgress { run: 0, done: 1, running: true }, ended];
    let reports = [
        (0, ProgressReport { launched: 1, seconds: 65, lanes: vec![ended; 2] }),
        (1, ProgressReport { launched: 1, seconds: 60, lanes }),
    ];
    let expected = format!(
        "{HEAD}
  rank 1, device 1: use of c of step 1 is being executed
  it stands at rank 1 (high, process 8), where nothing moves since 60 s"
    );
    assert_eq!(explain(&watched(idle_watch()), 0, 2, BTreeMap::from(reports)), expected);
}

#[test]
fn of_a_rank_that_says_nothing_no_more_is_known_than_its_name() {
    let lanes = vec![
        LaneProgress { run: 1, done: 0, running: false },
        LaneProgress { run: 0, done: 0, running: true },
    ];
    let reports = BTreeMap::from([(0, ProgressReport { launched: 2, seconds: 60, lanes })]);
    let expected = format!(
        "{HEAD}
  rank 0, device 0: send of b of step 1 waits for
  rank 1 does not answer: it is stopped, dead or cut off
  it stands at rank 1 (high, process 8)"
    );
    assert_eq!(explain(&watched(idle_watch()), 0, 2, reports), expected);
}

#[test]
fn a_watchdog_says_nothing_while_it_is_not_active_and_another_may_follow() {
    let network: Arc<dyn Network> = Arc::new(Local::alone());
    let alerts = Alerts::listen(&network);
    for _ in 0..2 {
        let watched = Watched { say: Arc::new(|text| panic!("{text}")), ..watched(idle_watch()) };
        let watchdog = Watchdog::start(&alerts, watched);
        assert!(!alerts.heard().over);
        drop(watchdog);
        assert!(alerts.heard().over && alerts.heard().alarm.is_none());
    }
}

/// Panics if it makes something of nothing.
struct Fails;

impl Kernels for Fails {
    fn execute(&self, _kernel: usize, args: Args<'_>) {
        if args.reads.is_empty() {
            std::panic::resume_unwind(Box::new("nothing to ask"));
        }
    }
}

#[test]
fn a_fault_is_heard_on_all_ranks_although_its_run_never_ends() {
    let placement = Placement { ranks: 2, of_device: vec![0, 1] };
    let parts = ECHO.parse::<Program>().unwrap().parts(&placement).unwrap();
    thread::scope(|scope| {
        for (local, part) in Local::job(2).into_iter().zip(parts) {
            scope.spawn(move || {
                let network: Arc<dyn Network> = Arc::new(local);
                let alerts = Alerts::listen(&network);
                let mut replay = Replay::on_network(part, vec![Fails], 0, &network).unwrap();
                let watchdog = Watchdog::start(&alerts, watched(replay.watch()));
                let run = replay.launch();
                let mut heard = alerts.heard();
                while heard.failure().is_none() {
                    heard = alerts.wait(heard, Duration::from_secs(600));
                }
                let failure = heard.failure().map(|(rank, why, _)| (rank, why.to_string()));
                drop(heard);
                let why = "rank 1: mix of ask (op0 of echo): failed: nothing to ask";
                assert_eq!(failure, Some((1, why.to_string())));
                if network.rank() == 1 {
                    let fault = replay.wait(run).unwrap_err();
                    assert_eq!(format!("rank 1: {fault}"), why);
                }
                // Both are done with each other before one leaves.
                network.barrier().unwrap();
                drop(watchdog);
                replay.abandon();
            });
        }
    });
}
