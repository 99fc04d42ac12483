//! Offsets for everything that needs memory, from the time it lives.
//!
//! Lifetimes are measured in the moments of the one order of all tasks ([`Order::ticks`]), but each lane counts only the
//! moments at which something touches its arena. So devices that do the same have equal packing problems, each of which
//! is solved once.

mod pack;
mod repack;
mod skyline;
mod sweep;

use std::collections::HashMap;

use phalanx_ir::Id;
use phalanx_ir::tasks::{TaskGraph, TaskId};

use crate::index::Index;
use crate::order::Order;
use crate::{ALIGNMENT, ArenaRange, Owner};

/// Some bytes that live from one moment of a lane to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Span {
    pub bytes: u64,
    pub first: u32,
    pub last: u32,
}

impl Span {
    fn meets(&self, other: &Span) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    fn duration(&self) -> u64 {
        u64::from(self.last - self.first) + 1
    }
}

/// Everything in one arena: buffers by id, then workspaces as their tasks run.
#[derive(Default)]
pub(crate) struct Lives {
    pub owners: Vec<Owner>,
    pub spans: Vec<Span>,
}

impl Lives {
    fn push(&mut self, owner: Owner, bytes: u64, (first, last): (u32, u32)) {
        self.owners.push(owner);
        self.spans.push(Span { bytes, first, last });
    }
}

/// Offsets of one lane's spans and the arena's size.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    pub offsets: Vec<u64>,
    pub peak: u64,
}

impl Layout {
    fn new(spans: &[Span], offsets: Vec<u64>) -> Self {
        let end = |(span, &offset): (&Span, &u64)| ArenaRange { offset, bytes: span.bytes }.end();
        let peak = spans.iter().zip(&offsets).map(end).max().unwrap_or(0);
        Layout { offsets, peak }
    }
}

/// The moments at which a lane's arena is touched.
#[derive(Clone, Copy, Default)]
struct Moments {
    /// How many there were.
    count: u32,
    /// The tick after that of the last one.
    after: u32,
}

impl Moments {
    /// The number of the moment at `tick`, which is the last one or a later one.
    fn at(&mut self, tick: u32) -> u32 {
        if self.after <= tick {
            self.count += 1;
            self.after = tick + 1;
        }
        self.count - 1
    }
}

/// Transfers may be late by this fraction of all moments before a task waits for their bytes: one in `SLACK`.
const SLACK: u32 = 32;

/// An arena may grow for that by this fraction of its bytes: one in `GROWTH`.
const GROWTH: u64 = 1024;

/// What lives when in each arena, and where.
///
/// What a transfer uses lives on for a while after it should be done, if arenas hardly grow by that: a device that is a
/// little ahead of its peer then takes other bytes, rather than wait for those that the peer has yet to read.
pub(crate) fn lay_out(
    tasks: &TaskGraph,
    index: &Index,
    order: &Order,
    workspace: impl Fn(TaskId) -> u64,
) -> (Vec<Lives>, Vec<Layout>) {
    let tight = lives(tasks, index, order, 0, &workspace);
    let layouts = assign(&tight);
    if order.ends.is_empty() {
        return (tight, layouts);
    }
    let slack = order.ticks.last().map_or(0, |last| last / SLACK);
    let loose = lives(tasks, index, order, slack, workspace);
    let roomy = assign(&loose);
    let grows = |(roomy, tight): (&Layout, &Layout)| roomy.peak > tight.peak + tight.peak / GROWTH;
    if roomy.iter().zip(&layouts).any(grows) { (tight, layouts) } else { (loose, roomy) }
}

/// The lifetimes of everything that needs memory, for each lane; transfers end `slack` moments later than they should.
pub(crate) fn lives(
    tasks: &TaskGraph,
    index: &Index,
    order: &Order,
    slack: u32,
    workspace: impl Fn(TaskId) -> u64,
) -> Vec<Lives> {
    let last = order.ticks.last().copied().unwrap_or(0);
    let late = |&(tick, task): &(u32, TaskId)| (tick.saturating_add(slack).min(last.max(tick)), task);
    let mut moments = vec![Moments::default(); index.devices.len()];
    let mut alive: Vec<Option<(u32, u32)>> = vec![None; tasks.buffers.len()];
    let mut works: Vec<(TaskId, u64, (u32, u32))> = Vec::new();
    // What a lane of transfers has in hand is in use until it is done.
    let mut touches: Vec<(u32, TaskId)> = order
        .ticks
        .iter()
        .copied()
        .zip(order.tasks.iter().copied())
        .chain(order.ends.iter().map(late))
        .collect();
    touches.sort_by_key(|&(tick, _)| tick);
    for (tick, id) in touches {
        let task = &tasks.tasks[id];
        let arena = index.arena(index.lane(id));
        let now = moments[arena].at(tick);
        let bytes = aligned(workspace(id));
        if bytes > 0 {
            // A task of a lane beside is met a second time when it ends; few of those need working memory.
            let known = match index.is_beside(index.lane(id)) {
                true => works.iter_mut().rev().find(|work| work.0 == id),
                false => None,
            };
            match known {
                Some((_, _, life)) => life.1 = now,
                None => works.push((id, bytes, (now, now))),
            }
        }
        for &buffer in task.reads.iter().chain(&task.writes) {
            let root = index.root(buffer);
            let now = moments[index.home(root)].at(tick);
            let life = alive[root.index()].get_or_insert((now, now));
            life.1 = now;
        }
    }
    let mut lanes: Vec<Lives> = index.devices.iter().map(|_| Lives::default()).collect();
    for (id, buffer) in tasks.buffers.iter().filter(|(_, buffer)| buffer.view_of.is_none()) {
        let lane = index.home(id);
        // After the last moment the host reads what is kept.
        let end = moments[lane].count;
        let life = match (buffer.role, alive[id.index()]) {
            (role, _) if role.is_fed() => (0, end),
            (_, None) => continue,
            (role, Some((first, last))) => (first, if role.is_kept() { end } else { last }),
        };
        lanes[lane].push(Owner::Buffer(id), aligned(buffer.ty.bytes() as u64), life);
    }
    for (task, bytes, life) in works {
        lanes[index.arena(index.lane(task))].push(Owner::Workspace(task), bytes, life);
    }
    lanes
}

fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

/// The most bytes alive at one moment.
pub(crate) fn most_live(spans: &[Span]) -> u64 {
    let end = spans.iter().map(|span| span.last as usize + 2).max().unwrap_or(0);
    let mut starts = vec![0; end];
    let mut ends = vec![0; end];
    for span in spans {
        starts[span.first as usize] += span.bytes;
        ends[span.last as usize + 1] += span.bytes;
    }
    let (mut live, mut most) = (0, 0);
    for (starting, ending) in starts.into_iter().zip(ends) {
        live = live + starting - ending;
        most = most.max(live);
    }
    most
}

/// A layout for every lane; equal problems are solved once.
pub(crate) fn assign(lanes: &[Lives]) -> Vec<Layout> {
    let mut numbers: HashMap<&[Span], usize> = HashMap::new();
    let mut problems: Vec<&[Span]> = Vec::new();
    let mut problem_of = Vec::with_capacity(lanes.len());
    for lane in lanes {
        let number = *numbers.entry(&lane.spans).or_insert(problems.len());
        if number == problems.len() {
            problems.push(&lane.spans);
        }
        problem_of.push(number);
    }
    let layouts: Vec<Layout> = problems.iter().map(|spans| pack::pack(spans, problems.len())).collect();
    problem_of.into_iter().map(|number| layouts[number].clone()).collect()
}
