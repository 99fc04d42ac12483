use std::sync::Arc;
use std::thread;
use std::time::Duration;

use phalanx_net::local::Local;

use super::*;
use crate::Plan;
use crate::costs::{CostTable, Machine, Signature};

/// Runs every rank on a thread of its own.
fn ranks<T: Send>(size: u32, rank: impl Fn(Local) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = Local::job(size).into_iter().map(|local| scope.spawn(|| rank(local))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A text of so many lines, of which `odd` has another word.
fn source(lines: usize, odd: Option<usize>) -> String {
    let line = |index: usize| {
        let word = if odd == Some(index) { 7 } else { 1 };
        format!("value [{}{word}] of \"t{index}\"\n", "4, ".repeat(60))
    };
    (0..lines).map(line).collect()
}

#[test]
fn equal_sources_agree() {
    let all = ranks(3, |local| same_source(&local, &source(3, None)).is_ok());
    assert_eq!(all, [true; 3]);
}

#[test]
fn the_first_line_that_differs_is_found_in_any_block() {
    for odd in [0, 999, 1000, 1001, 2500] {
        let errors = ranks(4, |local| {
            let odd = (local.rank() >= 2).then_some(odd);
            same_source(&local, &source(3000, odd)).unwrap_err().to_string()
        });
        let fours = "4, ".repeat(20);
        let line = |word| format!("…{fours}{word}] of \"t{odd}\"");
        let expected = format!(
            "rank 2 compiles something else than rank 0: line {} of its model and settings is\n  {}\nbut on rank 0\n  \
             {}\ngive all ranks the same options and files",
            odd + 1,
            line(7),
            line(1)
        );
        assert_eq!(errors, [(); 4].map(|()| expected.clone()), "{odd}");
    }
}

#[test]
fn a_source_that_ends_early_differs_where_it_ends() {
    for (of_first, of_other) in [(1500, 1200), (1200, 1000)] {
        let errors = ranks(2, |local| {
            let lines = if local.rank() == 0 { of_first } else { of_other };
            let Err(JobError::Source { rank, line, text, .. }) = same_source(&local, &source(lines, None))
            else {
                panic!("they differ")
            };
            (rank, line, text)
        });
        let expected = (1, of_other + 1, "(the end)".to_string());
        assert_eq!(errors, [expected.clone(), expected]);
    }
}

#[test]
fn rank_0_decides_plan_costs_and_seed() {
    let text =
        "name = \"mine\"\nmicrobatches = 1\n[mesh]\ndp = 2\n[[rule]]\nmatch = \"*\"\nshard.0 = \"dp\"\n";
    let plan = Plan::parse(text).unwrap();
    let mut cost_table = CostTable::new(Machine { cpu: "c".into(), isa: "i".into(), version: "v".into() });
    let signature =
        Signature { kernel: "copy".into(), words: vec![1], reads: vec![2], writes: vec![3], cores: 1 };
    cost_table.set(signature, 42);
    let shared = ranks(3, |local| {
        let first = local.rank() == 0;
        let made =
            shared::plan(&local, || if first { Ok(plan.clone()) } else { panic!("only rank 0 decides") });
        let costs =
            shared::costs(&local, || if first { Ok(Some(Arc::new(cost_table.clone()))) } else { Ok(None) });
        let none = shared::costs(&local, || Ok(None)).unwrap();
        let seed = shared::seed(&local, u64::MAX - u64::from(local.rank())).unwrap();
        (made.unwrap(), costs.unwrap().unwrap().to_text(), none, seed)
    });
    let expected = (plan.clone(), cost_table.to_text(), None, u64::MAX);
    assert_eq!(shared, [expected.clone(), expected.clone(), expected]);
}

#[test]
fn all_ranks_are_told_why_rank_0_cannot_decide() {
    let errors =
        ranks(2, |local| shared::plan(&local, || Err(Error::NoStep { steps: 3 })).unwrap_err().to_string());
    let expected = "on rank 0, which decides for all: all 3 steps are done; ask for more with --steps";
    assert_eq!(errors, [expected; 2]);
}

#[test]
fn the_program_of_rank_0_is_that_of_all_ranks() {
    let text = "program @p {\n  lane dev0 arena 64\n    run noop [1] -> 0+64 scratch 0+0 of \"t\"\n}";
    let program: Program = text.parse().unwrap();
    let found = ranks(3, |local| {
        let make = || if local.rank() == 0 { Ok(program.clone()) } else { panic!("only rank 0 compiles") };
        shared::program(&local, make).unwrap()
    });
    assert_eq!(found, [(); 3].map(|()| program.clone()));
    let errors = ranks(2, |local| {
        let refuse = || Err(Error::NoStep { steps: 3 });
        shared::program(&local, refuse).unwrap_err().to_string()
    });
    let why = "all 3 steps are done; ask for more with --steps";
    assert_eq!(errors, [why.to_string(), format!("on rank 0, which decides for all: {why}")]);
}

#[test]
fn verdicts_come_together() {
    let [stop, save, written] =
        [0, 1, 2].map(|flag| StepVote { stop: flag == 0, save: flag == 1, written: flag == 2 });
    for (verdicts, expected) in [
        ([written, written], Agreed { stop: false, save: false, written: true }),
        ([stop, written], Agreed { stop: true, save: false, written: false }),
        ([save, StepVote { written: true, ..stop }], Agreed { stop: true, save: true, written: false }),
    ] {
        let agreed = ranks(2, |local| verdicts[local.rank() as usize].exchange(&local).unwrap());
        assert_eq!(agreed, [expected; 2], "{verdicts:?}");
    }
}

#[test]
fn ranks_with_different_options_do_not_start() {
    let errors = ranks(2, |local| {
        let shared = [("batch".to_string(), (8 + local.rank()).into())].into();
        let options = RankOptions { shared, ..RankOptions::default() };
        let connection = Connection::new(Arc::new(local), Duration::from_secs(60), Arc::new(|_| ()));
        Job::start(&connection, options).err().unwrap().to_string()
    });
    let host = Hello::of_this_process(0, RankOptions::default()).unwrap().host;
    let expected = format!("`batch` is 9 on rank 1 ({host}), but 8 on rank 0: give all ranks the same");
    assert_eq!(errors, [expected.clone(), expected]);
}

#[test]
fn the_first_rank_of_each_host_works_before_the_others() {
    let order = std::sync::Mutex::new(Vec::new());
    let hosts = ["a", "b", "a", "b", "a"];
    let all = ranks(5, |local| {
        let rank = local.rank();
        let connection = Connection::new(Arc::new(local), Duration::from_secs(600), Arc::new(|_| ()));
        let mut job = Job::start(&connection, RankOptions::default()).unwrap();
        let own = job.hellos[rank as usize].clone();
        job.hellos = hosts.map(|host| Hello { host: host.into(), ..own.clone() }).into();
        job.first_of_host_first(|| {
            order.lock().unwrap().push(rank);
            rank
        })
        .unwrap()
    });
    assert_eq!(all, [0, 1, 2, 3, 4]);
    let mut order = order.into_inner().unwrap();
    order[..2].sort_unstable();
    order[2..].sort_unstable();
    assert_eq!(order, [0, 1, 2, 3, 4]);
}
