//! An order found by the search, where transfers have lanes of their own.
//!
//! The search knows a transfer's time, but not that transfers share links; the simulation that judges its order does.

use phalanx_ir::tasks::{BufferId, TaskId, TaskOp};
use phalanx_ir::{Id, IdVec};

use super::{Given, Order};
use crate::search::{Effort, JobId, LaneKind, Problem, SearchBuffer, SearchJob, SearchLane};

/// The order; none if the search cannot take the graph. A device holds at most `memory` bytes, if any order is found
/// that keeps to it.
pub(crate) fn searched(
    given: &Given<'_>,
    memory: Option<u64>,
    effort: Effort,
    workspace: impl Fn(TaskId) -> u64,
) -> Option<Order> {
    let problem = Problem { effort, ..problem(given, memory, workspace) };
    let solution = problem.solve(&[]).ok()?;
    let mut jobs: Vec<(f64, JobId)> =
        solution.order.iter().map(|&job| (solution.times[job].0, job)).collect();
    // What starts together stays in the order found.
    jobs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let task = |job: JobId| TaskId::from_index(job.index());
    let mut order = Order {
        tasks: jobs.iter().map(|&(_, job)| task(job)).collect(),
        ticks: (0..jobs.len() as u32).collect(),
        ends: Vec::new(),
    };
    for &(_, job) in jobs.iter().filter(|(_, job)| given.index.is_beside(given.index.lane(task(*job)))) {
        let end = solution.times[job].1;
        let last = jobs.partition_point(|&(start, _)| start < end).max(1) - 1;
        order.ends.push((last as u32, task(job)));
    }
    // A transfer that takes no time ends where it starts.
    let mut at = vec![0; jobs.len()];
    order.tasks.iter().zip(0..).for_each(|(task, tick)| at[task.index()] = tick);
    order.ends.iter_mut().for_each(|(tick, task)| *tick = at[task.index()].max(*tick));
    Some(order)
}

fn problem(given: &Given<'_>, memory: Option<u64>, workspace: impl Fn(TaskId) -> u64) -> Problem {
    let &Given { tasks, index, predecessors, costs, parts } = given;
    let mut problem = Problem::default();
    let lanes: Vec<_> = (0..index.n_lanes())
        .map(|lane| {
            let kind = if index.is_beside(lane) { LaneKind::Transfers } else { LaneKind::Compute };
            problem.lanes.push(SearchLane { device: index.arena(lane), kind })
        })
        .collect();
    let travel = |task: TaskId| {
        let to = index.device(index.lane(task));
        let alone = costs.topology.as_ref().map(|topology| topology.alone(to, parts.of(task)));
        alone.unwrap_or_default().as_nanos() as u64
    };
    let mut buffers: IdVec<BufferId, SearchBuffer> =
        tasks.buffers.ids().map(|_| SearchBuffer::default()).collect();
    let mut workspaces = Vec::new();
    for (id, task) in tasks.tasks.iter() {
        let lane = index.lane(id);
        let unit = match task.op {
            TaskOp::Receive { movement } if index.is_beside(lane) => Some(movement as u32),
            _ => None,
        };
        let cost = (costs.tasks[id] + travel(id)) as f64;
        let after = predecessors[id].iter().map(|other| JobId::from_index(other.index())).collect();
        let job = problem.jobs.push(SearchJob { unit, after, ..SearchJob::new(lanes[lane], cost) });
        for &buffer in task.reads.iter().chain(&task.writes) {
            let touched = &mut buffers[index.root(buffer)].touched_by;
            if touched.last() != Some(&job) {
                touched.push(job);
            }
        }
        let bytes = workspace(id) as i64;
        if bytes > 0 {
            let (device, touched_by) = (index.arena(lane), vec![job]);
            workspaces.push(SearchBuffer {
                device,
                alloc: bytes,
                free: bytes,
                touched_by,
                ..SearchBuffer::default()
            });
        }
    }
    for (id, buffer) in buffers.iter_mut() {
        let source = &tasks.buffers[id];
        let bytes = if source.view_of.is_some() { 0 } else { source.ty.bytes() as i64 };
        (buffer.device, buffer.alloc, buffer.free) = (index.home(id), bytes, bytes);
        buffer.from_start = source.role.is_fed();
        buffer.to_end = source.role.is_kept() || buffer.from_start;
    }
    problem.buffers = buffers.into_iter().filter(|buffer| buffer.alloc > 0).chain(workspaces).collect();
    problem.limits = vec![memory.map(|bytes| bytes.min(i64::MAX as u64) as i64); index.devices.len()];
    problem
}
