//! Orders that a seed chooses: all legal ones, no others, and the same again for the same seed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use phalanx_ir::Id;
use phalanx_runtime::flow::{Builder, Flow, Mode, Patch, Task, TaskKind};
use phalanx_runtime::{Fault, LaunchError, Stepper, Visit};
use phalanx_testkit::Rng;

use crate::dag::{Dag, Recipe};
use crate::{blocking, nonblocking};

const MODES: [Mode; 5] = [
    Mode::Ordered,
    Mode::Serializable,
    Mode::Concurrent,
    Mode::Pipelined { depth: 1 },
    Mode::Pipelined { depth: 3 },
];
const RUNS: u64 = 5;

/// What runs of a flow do in the order of a seed, as (run, operation).
fn visits(flow: &Flow, seed: u64) -> Vec<(u64, usize)> {
    let visits = RefCell::new(Vec::new());
    let note = |visit: Visit<'_>| {
        visits.borrow_mut().push((visit.run, visit.op.index()));
        Ok(())
    };
    let mut stepper = Stepper::new(flow, vec![Box::new(note)], seed).expect("one function is enough");
    (0..RUNS).for_each(|run| assert_eq!(stepper.launch(&[]), Ok(run)));
    while stepper.step() {}
    (0..RUNS).for_each(|run| assert_eq!(stepper.outcome(run), Some(&Ok(()))));
    drop(stepper);
    visits.into_inner()
}

/// By run and operation: when it happened.
fn places(visits: &[(u64, usize)], n: usize) -> Vec<Vec<usize>> {
    let mut places = vec![vec![usize::MAX; n]; RUNS as usize];
    for (place, &(run, op)) in visits.iter().enumerate() {
        assert_eq!(places[run as usize][op], usize::MAX, "op {op} happens twice in run {run}");
        places[run as usize][op] = place;
    }
    assert_eq!(visits.len(), n * RUNS as usize);
    places
}

fn check_order(recipe: Recipe, seed: u64) {
    use TaskKind::{Async, Blocking, NonBlocking, Remote, StreamOrdered};
    let kinds = [Blocking, NonBlocking, NonBlocking, Async, StreamOrdered, StreamOrdered, Remote];
    let dag = Dag::of(recipe, &mut Rng::new(seed), &kinds);
    let visits = visits(&dag.flow(), seed);
    let places = places(&visits, dag.ops.len());
    for (run, places) in places.iter().enumerate() {
        for (op, before) in dag.before.iter().enumerate() {
            let late = before.iter().find(|&&before| places[before] > places[op]);
            assert_eq!(late, None, "before op {op} in run {run}, {recipe:?} seed {seed}");
        }
    }
    let follows = |run: usize, op: usize| places[run][op] > places[run - 1][op];
    let apart = |run: usize| places[run].iter().min() > places[run - 1].iter().max();
    let pairs = 1..RUNS as usize;
    match recipe.mode {
        Mode::Ordered | Mode::OneShot | Mode::Pipelined { depth: 1 } => {
            assert!(pairs.clone().all(apart), "{recipe:?}")
        }
        Mode::Serializable => {
            assert!(visits.chunk_by(|a, b| a.0 == b.0).count() == RUNS as usize, "{recipe:?}")
        }
        Mode::Pipelined { .. } => {
            assert!(
                pairs.clone().all(|run| (0..dag.ops.len()).all(|op| follows(run, op))),
                "{recipe:?} seed {seed}"
            );
        }
        Mode::Concurrent => {}
    }
}

#[test]
fn every_order_keeps_what_was_declared() {
    for seed in 0..300 {
        for mode in MODES {
            let (ops, processors) = (1 + seed as usize % 40, 1 + seed as u32 % 4);
            check_order(Recipe { ops, density: 1 + seed as usize % 20, processors, mode }, seed);
        }
    }
}

/// Two operations without an edge.
fn pair(mode: Mode) -> Flow {
    let mut builder = Builder::new("pair", 1);
    builder.mode(mode);
    nonblocking(&mut builder, 0, 0);
    blocking(&mut builder, 0, 0);
    builder.finish().expect("two operations")
}

#[test]
fn some_seed_takes_each_order_and_takes_it_again() {
    let flow = pair(Mode::Ordered);
    let orders: BTreeSet<_> = (0..64).map(|seed| visits(&flow, seed)[..2].to_vec()).collect();
    assert_eq!(orders.into_iter().collect::<Vec<_>>(), [[(0, 0), (0, 1)], [(0, 1), (0, 0)]]);
    (0..8).for_each(|seed| assert_eq!(visits(&flow, seed), visits(&flow, seed)));
}

#[test]
fn runs_overlap_as_far_as_the_mode_lets_them() {
    for (mode, farthest) in MODES.into_iter().zip([0, 0, RUNS - 1, 0, 2]) {
        let flow = pair(mode);
        // How far ahead of a run that has something left to do another one has done something.
        let ahead = |visits: &[(u64, usize)]| {
            let later = |place: usize| visits[place..].iter().map(|visit| visit.0).min();
            (0..visits.len()).filter_map(|place| visits[place].0.checked_sub(later(place)?)).max()
        };
        let most = (0..500).filter_map(|seed| ahead(&visits(&flow, seed))).max();
        match mode {
            // Runs begin in any order there, so being ahead says nothing.
            Mode::Serializable => {}
            _ => assert_eq!(most, Some(farthest), "{mode:?}"),
        }
    }
}

#[test]
fn a_failure_skips_exactly_what_follows() {
    for seed in 0..300 {
        let random = &mut Rng::new(seed);
        let mut dag = Dag::new(Recipe { ops: 30, density: 6, processors: 3, mode: Mode::Ordered }, random);
        (0..30).for_each(|op| {
            dag.builder.post("post", &[dag.ops[op]]);
        });
        let (flow, fails) = (dag.flow(), random.subset(30, 8));
        let called = RefCell::new(BTreeSet::new());
        let body = |visit: Visit<'_>| {
            called.borrow_mut().insert((visit.run, visit.op.index()));
            let fails = visit.run == 0 && fails.contains(&visit.op.index());
            if fails { Err(Fault::failed("body", "on purpose")) } else { Ok(()) }
        };
        let mut stepper = Stepper::new(&flow, vec![Box::new(body)], seed).expect("one function is enough");
        let both = [0, 1].map(|_| stepper.launch(&[]).expect("it takes launches"));
        while stepper.step() {}
        let bad = dag.reach(&fails);
        let skipped = |op: usize| dag.before[op].iter().any(|&before| bad[before]);
        assert_eq!(
            stepper.outcome(both[0]).expect("it has ended").is_err(),
            !fails.is_empty(),
            "seed {seed}"
        );
        assert_eq!(stepper.outcome(both[1]), Some(&Ok(())), "seed {seed}");
        let posts: Vec<_> = stepper.posts(0).expect("it has ended").iter().map(Result::is_err).collect();
        assert_eq!(posts, bad, "seed {seed}");
        drop(stepper);
        let called = called.into_inner();
        assert!((0..30).all(|op| called.contains(&(0, op)) != skipped(op)), "seed {seed}");
        assert_eq!(called.range((1, 0)..).count(), 30, "seed {seed}");
    }
}

#[test]
fn a_failure_in_a_pipeline_ends_when_the_pipeline_has_drained() {
    let flow = pair(Mode::Pipelined { depth: 2 });
    for seed in 0..50 {
        let calls = Cell::new(0);
        let body = |visit: Visit<'_>| {
            calls.set(calls.get() + 1);
            if visit.run == 0 { Err(Fault::failed("body", "on purpose")) } else { Ok(()) }
        };
        let mut stepper = Stepper::new(&flow, vec![Box::new(body)], seed).expect("one function is enough");
        stepper.launch(&[]).expect("it takes launches");
        while stepper.step() {}
        let clean = stepper.launch(&[]).expect("it takes launches");
        while stepper.step() {}
        assert_eq!(stepper.outcome(clean), Some(&Ok(())), "seed {seed}");
        drop(stepper);
        assert_eq!(calls.get(), 4, "seed {seed}");
    }
}

#[test]
fn operations_get_the_arguments_of_their_run() {
    let mut builder = Builder::new("args", 1);
    builder.mode(Mode::Concurrent).run_args(8);
    let args = &10_i64.to_ne_bytes();
    let op = builder.task(Task { name: "op", args, ..Task::default() });
    builder.interpolate(op, 0, 0..8, Patch::AddI64);
    let flow = builder.finish().expect("one operation");
    let sums = RefCell::new(vec![0; RUNS as usize]);
    let body = |visit: Visit<'_>| {
        let sum = i64::from_ne_bytes(visit.args.try_into().expect("eight bytes"));
        sums.borrow_mut()[visit.run as usize] = sum;
        Ok(())
    };
    let mut stepper = Stepper::new(&flow, vec![Box::new(body)], 1).expect("one function is enough");
    (0..RUNS as i64).for_each(|run| assert!(stepper.launch(&run.to_ne_bytes()).is_ok()));
    while stepper.step() {}
    drop(stepper);
    assert_eq!(sums.into_inner(), [10, 11, 12, 13, 14]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let flow = pair(Mode::OneShot);
    let missing = Stepper::new(&flow, vec![], 0).err().expect("there is no function");
    let message = "nonblocking of flow pair calls function 0, but the table has 0; add it to the table";
    assert_eq!(missing.to_string(), message);
    let mut stepper = Stepper::new(&flow, vec![Box::new(|_| Ok(()))], 0).expect("one function is enough");
    let args = LaunchError::Args { graph: "pair".into(), need: 0, given: 1 };
    assert_eq!(stepper.launch(&[1]), Err(args));
    assert_eq!(stepper.launch(&[]), Ok(0));
    assert_eq!(stepper.launch(&[]), Err(LaunchError::Again("pair".into())));
}
