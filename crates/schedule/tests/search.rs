//! The search on random problems, small enough to try every order, and on training steps of many devices.

use std::collections::BTreeMap;

use crate::steps::{ACTIVATION, Step, WEIGHTS, data_parallel, fully_sharded};
use phalanx_ir::{Id, IdVec};
use phalanx_schedule::search::{
    JobId, LaneId, LaneKind, Problem, ProblemError, SearchBuffer, SearchBufferId, SearchJob, SearchLane,
    Solution,
};
use phalanx_schedule::verdict::Limit;
use phalanx_testkit::Rng;

fn job(number: usize) -> JobId {
    JobId::from_index(number)
}

fn lane(number: usize) -> LaneId {
    LaneId::from_index(number)
}

/// Lanes `2 d` and `2 d + 1` compute and transfer on device `d`.
fn lanes(devices: usize) -> Problem {
    let mut problem = Problem::default();
    for device in 0..devices {
        problem.lanes.push(SearchLane { device, kind: LaneKind::Compute });
        problem.lanes.push(SearchLane { device, kind: LaneKind::Transfers });
    }
    problem
}

/// Jobs with a few dependencies each; every job writes a buffer that some later jobs of its device read.
fn random(rng: &mut Rng, devices: usize, jobs: usize) -> Problem {
    let mut problem = Problem { issued_in_order: rng.once_in(2), ..lanes(devices) };
    for number in 0..jobs {
        let mut next = SearchJob::new(lane(rng.below(2 * devices)), rng.below(10) as f64);
        for _ in 0..rng.below(3).min(number) {
            next.after.push(job(rng.below(number)));
        }
        if number > 0 && rng.once_in(8) {
            next.behind.push(job(rng.below(number)));
        }
        next.blocks = rng.once_in(8);
        problem.jobs.push(next);
    }
    for number in 0..jobs {
        let device = problem.jobs[job(number)].lane.index() / 2;
        let bytes = rng.below(100) as i64;
        let reads =
            |other: &SearchJob| other.after.contains(&job(number)) && other.lane.index() / 2 == device;
        let readers = problem.jobs.iter().filter(|(_, other)| reads(other)).map(|(id, _)| id);
        let touched_by = [job(number)].into_iter().chain(readers).collect();
        let to_end = rng.once_in(6);
        let from_start = rng.once_in(10);
        problem.buffers.push(SearchBuffer {
            device,
            alloc: bytes,
            free: bytes,
            from_start,
            to_end,
            touched_by,
        });
    }
    problem
}

/// The most bytes of each device if buffers live from the first to the last job of `order` that touches them.
fn peaks(problem: &Problem, order: &[JobId]) -> Vec<i64> {
    let at: BTreeMap<JobId, usize> = order.iter().enumerate().map(|(at, &job)| (job, at)).collect();
    let life = |buffer: &SearchBuffer| {
        let places = buffer.touched_by.iter().map(|job| at[job]);
        let first = if buffer.from_start { 0 } else { places.clone().min().unwrap_or(usize::MAX) };
        let last = if buffer.to_end { usize::MAX } else { places.max().unwrap_or(0) };
        (first, last)
    };
    let mut peaks = vec![0; problem.lanes.len() / 2];
    for step in 0..order.len() {
        let mut live = vec![0; peaks.len()];
        for (_, buffer) in problem.buffers.iter() {
            let (first, last) = life(buffer);
            live[buffer.device] += if (first..=last).contains(&step) { buffer.alloc } else { 0 };
        }
        peaks.iter_mut().zip(live).for_each(|(peak, live)| *peak = live.max(*peak));
    }
    peaks
}

/// The most bytes of each device if buffers live from the start of the first to the end of the last job in time.
fn peaks_in_time(problem: &Problem, solution: &Solution) -> Vec<i64> {
    let mut events: Vec<(f64, bool, i64, usize)> = Vec::new();
    for (_, buffer) in problem.buffers.iter().filter(|(_, buffer)| !buffer.touched_by.is_empty()) {
        let times = || buffer.touched_by.iter().map(|&job| solution.times[job]);
        let start = times().map(|(start, _)| start).fold(f64::INFINITY, f64::min);
        let end = times().map(|(_, end)| end).fold(0.0, f64::max);
        events.push((if buffer.from_start { 0.0 } else { start }, true, buffer.alloc, buffer.device));
        if !buffer.to_end {
            events.push((end, false, -buffer.free, buffer.device));
        }
    }
    events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut live = vec![0; problem.lanes.len() / 2];
    let mut peaks = live.clone();
    for (_, _, bytes, device) in events {
        live[device] += bytes;
        peaks[device] = peaks[device].max(live[device]);
    }
    peaks
}

fn check(problem: &Problem, solution: &Solution) {
    let mut done = vec![false; problem.jobs.len()];
    let mut free = vec![0.0_f64; problem.lanes.len()];
    for &id in &solution.order {
        let next = &problem.jobs[id];
        let (start, end) = solution.times[id];
        assert!(
            next.after.iter().chain(&next.behind).all(|other| done[other.index()]),
            "{id} comes too early"
        );
        assert!(next.after.iter().all(|&other| solution.times[other].1 <= start), "{id} starts too early");
        assert!(free[next.lane.index()] <= start, "{id} starts before its lane is free");
        assert_eq!(end, start + next.cost);
        free[next.lane.index()] = end;
        assert!(!std::mem::replace(&mut done[id.index()], true), "{id} runs twice");
    }
    assert!(done.iter().all(|&done| done));
    assert!(solution.lower_bound <= solution.makespan + 1e-9);
    assert_eq!(solution.peaks, peaks(problem, &solution.order));
    let excess = |(&peak, limit): (&i64, &Option<i64>)| limit.map_or(0, |limit| (peak - limit).max(0));
    assert_eq!(solution.excess, solution.peaks.iter().zip(&problem.limits).map(excess).sum::<i64>());
}

#[test]
fn random_orders_are_legal_and_never_above_a_limit_that_the_listed_order_keeps() {
    let mut rng = Rng::new(7);
    for _ in 0..150 {
        let devices = 1 + rng.below(3);
        let jobs = 2 + rng.below(40);
        let problem = random(&mut rng, devices, jobs);
        let listed: Vec<JobId> = problem.jobs.ids().collect();
        let slack = rng.below(60) as i64;
        let limits = peaks(&problem, &listed).iter().map(|peak| Some(peak + slack)).collect();
        let problem = Problem { limits, ..problem };
        let solution = problem.solve(&[]).unwrap();
        check(&problem, &solution);
        assert_eq!(solution.excess, 0);
        if !problem.issued_in_order {
            let over = |(peak, limit): (&i64, &Option<i64>)| limit.is_some_and(|limit| *peak > limit);
            assert!(!peaks_in_time(&problem, &solution).iter().zip(&problem.limits).any(over));
        }
        assert_eq!(solution, problem.solve(&[]).unwrap());
    }
}

/// All orders of the jobs that are legal.
fn all_orders(problem: &Problem, order: &mut Vec<JobId>, visit: &mut impl FnMut(&[JobId])) {
    if order.len() == problem.jobs.len() {
        return visit(order);
    }
    for (id, next) in problem.jobs.iter() {
        let is_ready = next.after.iter().chain(&next.behind).all(|other| order.contains(other));
        if is_ready && !order.contains(&id) {
            order.push(id);
            all_orders(problem, order, visit);
            order.pop();
        }
    }
}

/// When the last job of `order` is done, where all transfers are issued in order.
fn makespan(problem: &Problem, order: &[JobId]) -> f64 {
    let mut free = vec![0.0_f64; problem.lanes.len()];
    let mut ends = vec![0.0_f64; problem.jobs.len()];
    for &id in order {
        let next = &problem.jobs[id];
        let at = next.lane.index();
        let start =
            next.after.iter().map(|other| ends[other.index()]).fold(free[at].max(free[at & !1]), f64::max);
        ends[id.index()] = start + next.cost;
        free[at] = ends[id.index()];
        if next.blocks {
            free[at & !1] = ends[id.index()];
        }
    }
    free.into_iter().fold(0.0, f64::max)
}

#[test]
fn no_order_of_a_small_problem_is_better() {
    let mut rng = Rng::new(11);
    for _ in 0..60 {
        let jobs = 2 + rng.below(5);
        let problem = Problem { issued_in_order: true, ..random(&mut rng, 1, jobs) };
        let least = |order: &[JobId]| peaks(&problem, order)[0];
        let mut least_peak = i64::MAX;
        all_orders(&problem, &mut Vec::new(), &mut |order| least_peak = least_peak.min(least(order)));
        for limit in [least_peak, least_peak + 40] {
            let mut best = f64::INFINITY;
            all_orders(&problem, &mut Vec::new(), &mut |order| {
                if least(order) <= limit {
                    best = best.min(makespan(&problem, order));
                }
            });
            let problem = Problem { limits: vec![Some(limit)], ..problem.clone() };
            let solution = problem.solve(&[]).unwrap();
            check(&problem, &solution);
            assert_eq!((solution.excess, solution.makespan), (0, best));
            assert_eq!(makespan(&problem, &solution.order), best);
        }
    }
}

/// Units stay whole, and movements of all devices are in one sequence.
fn check_units(problem: &Problem, solution: &Solution) {
    let mut units: Vec<u32> = solution.order.iter().filter_map(|&id| problem.jobs[id].unit).collect();
    units.dedup();
    let count = units.len();
    units.sort_unstable();
    units.dedup();
    assert_eq!(units.len(), count, "a movement is torn apart");
}

#[test]
fn with_enough_memory_a_step_takes_little_longer_than_the_bound() {
    for devices in [2, 8, 64] {
        for transfer in [300.0, 900.0, 2500.0] {
            let step = Step { devices, layers: 6, compute: 1000.0, transfer };
            for problem in [data_parallel(step), fully_sharded(step)] {
                let solution = problem.solve(&[]).unwrap();
                check_units(&problem, &solution);
                assert!(solution.makespan <= 1.01 * solution.lower_bound, "{devices} {transfer}");
            }
        }
    }
}

#[test]
fn a_tight_limit_is_kept_at_a_price() {
    for devices in [2, 16] {
        let step = Step { devices, layers: 8, compute: 1000.0, transfer: 900.0 };
        let mut last = f64::INFINITY;
        // All activations, and the weights and gradients of one, two and three layers.
        for layers in [2, 3, 4] {
            let limit = 8 * ACTIVATION + layers * WEIGHTS;
            let problem = Problem { limits: vec![Some(limit); devices], ..fully_sharded(step) };
            let solution = problem.solve(&[]).unwrap();
            check_units(&problem, &solution);
            assert_eq!(solution.excess, 0);
            assert!(peaks_in_time(&problem, &solution).iter().all(|&peak| peak <= limit));
            assert!(solution.makespan <= last, "more memory takes no longer");
            last = solution.makespan;
            let short = solution.verdicts.iter().filter(|verdict| verdict.limit == Limit::Memory);
            assert_eq!(short.count() > 0, layers == 2);
        }
        assert!(last <= 1.1 * fully_sharded(step).solve(&[]).unwrap().makespan);
    }
}

#[test]
fn verdicts_say_what_limits_a_transfer() {
    let mut problem = Problem { issued_in_order: true, ..lanes(1) };
    let first = problem.jobs.push(SearchJob::new(lane(0), 4.0));
    let sum = problem.jobs.push(SearchJob { after: vec![first], ..SearchJob::new(lane(1), 8.0) });
    let hidden = problem.jobs.push(SearchJob::new(lane(1), 3.0));
    problem.jobs.push(SearchJob { after: vec![sum, hidden], ..SearchJob::new(lane(0), 1.0) });
    let solution = problem.solve(&[]).unwrap();
    assert_eq!(solution.order, [hidden, first, sum, job(3)]);
    assert_eq!((solution.makespan, solution.lower_bound), (13.0, 13.0));
    let [beside, exposed] = solution.verdicts[..] else { panic!("two transfers") };
    assert_eq!((beside.transfer, beside.hidden_share(), beside.moves), (hidden, 1.0, 2));
    assert_eq!(beside.limit, Limit::NothingLeft);
    assert_eq!((exposed.start, exposed.end, exposed.hidden_share()), (4.0, 12.0, 0.0));
    assert_eq!(exposed.limit, Limit::DataDependency);

    problem.jobs[hidden].after.push(first);
    let solution = problem.solve(&[]).unwrap();
    assert!(solution.verdicts.iter().all(|verdict| verdict.limit == Limit::Bandwidth));
}

#[test]
fn a_transfer_behind_another_is_limited_by_order() {
    let mut problem = lanes(1);
    let long = problem.jobs.push(SearchJob::new(lane(1), 10.0));
    let short = problem.jobs.push(SearchJob { behind: vec![long], ..SearchJob::new(lane(1), 2.0) });
    let user = problem.jobs.push(SearchJob { after: vec![short], ..SearchJob::new(lane(0), 5.0) });
    problem.jobs.push(SearchJob { after: vec![user], ..SearchJob::new(lane(1), 1.0) });
    let solution = problem.solve(&[]).unwrap();
    let factors: Vec<Limit> = solution.verdicts.iter().map(|verdict| verdict.limit).collect();
    assert_eq!(factors, [Limit::DataDependency, Limit::Order, Limit::DataDependency]);
}

#[test]
fn what_cannot_be_solved_is_named() {
    let error_of = |problem: &Problem| problem.solve(&[]).unwrap_err();
    let mut problem = lanes(1);
    problem.jobs.push(SearchJob { after: vec![job(1)], ..SearchJob::new(lane(0), 1.0) });
    problem.jobs.push(SearchJob { behind: vec![job(0)], ..SearchJob::new(lane(1), 1.0) });
    assert!(matches!(error_of(&problem), ProblemError::Cycle { .. }));

    let mut problem = lanes(1);
    let unit = Some(3);
    problem.jobs.push(SearchJob { unit, ..SearchJob::new(lane(1), 1.0) });
    problem.jobs.push(SearchJob { after: vec![job(0)], ..SearchJob::new(lane(0), 1.0) });
    problem.jobs.push(SearchJob { unit, after: vec![job(1)], ..SearchJob::new(lane(1), 1.0) });
    assert!(matches!(error_of(&problem), ProblemError::Cycle { .. }));

    let mut problem = lanes(1);
    problem.jobs.push(SearchJob::new(lane(5), 1.0));
    let error = ProblemError::UnknownLane { job: job(0), lane: lane(5), lanes: 2 };
    assert_eq!(error_of(&problem), error);
    problem.jobs[job(0)] = SearchJob::new(lane(0), f64::NAN);
    assert!(matches!(error_of(&problem), ProblemError::Cost { .. }));
    problem.jobs[job(0)] = SearchJob::new(lane(0), 1.0);
    problem.buffers.push(SearchBuffer { touched_by: vec![job(9)], ..SearchBuffer::default() });
    let error =
        ProblemError::UnknownJob { by: SearchBufferId::from_index(0).to_string(), job: job(9), jobs: 1 };
    assert_eq!(error_of(&problem), error);
    problem.buffers = [SearchBuffer { device: 1, ..SearchBuffer::default() }].into_iter().collect();
    let error =
        ProblemError::UnknownDevice { by: SearchBufferId::from_index(0).to_string(), device: 1, devices: 1 };
    assert_eq!(error_of(&problem), error);
    problem.buffers = [SearchBuffer { alloc: -1, ..SearchBuffer::default() }].into_iter().collect();
    assert_eq!(
        error_of(&problem),
        ProblemError::Bytes { buffer: SearchBufferId::from_index(0), alloc: -1, free: 0 }
    );
    problem.buffers = IdVec::new();
    let seeds = [vec![job(0)], vec![job(0), job(0)]];
    assert_eq!(problem.solve(&seeds).unwrap_err(), ProblemError::Seed { seed: 1, jobs: 1 });
    assert_eq!(problem.solve(&seeds[..1]).unwrap().makespan, 1.0);
    problem.lanes.push(SearchLane { device: 0, kind: LaneKind::Compute });
    assert!(matches!(error_of(&problem), ProblemError::TwoCompute { .. }));
    assert_eq!(Problem::default().solve(&[]).unwrap().order, []);
}
