//! Offsets for everything that needs memory, from the time it lives.
//!
//! Packing rectangles (time × bytes) without overlap is hard in general; placing the largest first at the lowest free
//! offset comes close to the lower bound. Several orders are tried and the smallest arena wins, ties to the first.

use phalanx_ir::Id;
use phalanx_ir::tasks::{BufferId, Role, TaskGraph, TaskId};

use crate::{ALIGNMENT, Place, Schedule};

/// Whose memory an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A buffer that owns its bytes.
    Buffer(BufferId),
    /// What a task needs while it runs.
    Workspace(TaskId),
}

/// Some bytes that live from one position of the order to another, both included.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    pub owner: Owner,
    pub bytes: u64,
    pub first: usize,
    pub last: usize,
}

impl Item {
    fn meets(&self, other: &Item) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    fn duration(&self) -> u64 {
        (self.last - self.first + 1) as u64
    }
}

/// Everything that needs memory, with its lifetime in `order`.
pub fn items(tasks: &TaskGraph, order: &[TaskId], workspace: impl Fn(TaskId) -> u64) -> Vec<Item> {
    let end = order.len();
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; tasks.buffers.len()];
    for (id, buffer) in tasks.buffers.iter().filter(|(_, buffer)| buffer.role.is_fed()) {
        debug_assert!(
            buffer.view_of.is_none() || buffer.role != Role::Temp,
            "fed buffers keep their role in views"
        );
        lives[tasks.root(id).index()] = Some((0, end));
    }
    for (position, &task) in order.iter().enumerate() {
        let task = &tasks.tasks[task];
        for &buffer in task.reads.iter().chain(&task.writes) {
            let root = tasks.root(buffer);
            let (first, last) = lives[root.index()].unwrap_or((position, position));
            let kept = tasks.buffers[root].role.is_kept();
            lives[root.index()] = Some((first, if kept { end } else { last.max(position) }));
        }
    }
    let buffers = tasks.buffers.iter().filter(|(_, buffer)| buffer.view_of.is_none());
    let buffers = buffers.filter_map(|(id, buffer)| {
        let (first, last) = lives[id.index()]?;
        Some(Item { owner: Owner::Buffer(id), bytes: aligned(buffer.ty.bytes() as u64), first, last })
    });
    let workspaces = order.iter().enumerate().filter_map(|(position, &task)| {
        let bytes = aligned(workspace(task));
        let owner = Owner::Workspace(task);
        (bytes > 0).then_some(Item { owner, bytes, first: position, last: position })
    });
    buffers.chain(workspaces).collect()
}

fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

/// The most bytes alive at one position.
pub fn most_live(items: &[Item]) -> u64 {
    let mut changes: Vec<(usize, bool, u64)> = items
        .iter()
        .flat_map(|item| [(item.first, true, item.bytes), (item.last + 1, false, item.bytes)])
        .collect();
    changes.sort_unstable();
    let (mut live, mut most) = (0, 0);
    for (_, starts, bytes) in changes {
        live = if starts { live + bytes } else { live - bytes };
        most = most.max(live);
    }
    most
}

/// What items are sorted by, largest first.
type Key<'a> = &'a dyn Fn(&Item) -> (u64, u64);

/// A place for every item and the arena's size.
pub fn assign(items: &[Item]) -> (Vec<Place>, u64) {
    let area = |item: &Item| item.bytes * item.duration();
    let keys: [Key<'_>; 3] =
        [&|item| (item.bytes, item.duration()), &|item| (item.duration(), item.bytes), &|item| {
            (area(item), item.bytes)
        }];
    let tried = keys.iter().map(|key| {
        let mut sequence: Vec<usize> = (0..items.len()).collect();
        sequence.sort_by_key(|&index| (std::cmp::Reverse(key(&items[index])), index));
        pack(items, &sequence)
    });
    tried.min_by_key(|&(_, peak)| peak).unwrap_or_default()
}

/// Places items in the given sequence, each at the lowest offset where it fits.
fn pack(items: &[Item], sequence: &[usize]) -> (Vec<Place>, u64) {
    let mut places = vec![Place { offset: 0, bytes: 0 }; items.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(items.len());
    for &index in sequence {
        let item = &items[index];
        let mut taken: Vec<Place> =
            placed.iter().filter(|&&other| items[other].meets(item)).map(|&other| places[other]).collect();
        taken.sort_unstable_by_key(|place| place.offset);
        let mut offset = 0;
        for place in taken {
            if place.offset >= offset + item.bytes {
                break;
            }
            offset = offset.max(place.end());
        }
        places[index] = Place { offset, bytes: item.bytes };
        placed.push(index);
    }
    let peak = places.iter().map(|place| place.end()).max().unwrap_or(0);
    (places, peak)
}

/// Pairs of owners that are alive together and share a byte; empty for a sound schedule.
pub fn collisions(tasks: &TaskGraph, schedule: &Schedule) -> Vec<(Owner, Owner)> {
    let items = items(tasks, &schedule.order, |task| {
        schedule.workspaces.get(task).copied().flatten().map_or(0, |place| place.bytes)
    });
    let place = |item: &Item| match item.owner {
        Owner::Buffer(buffer) => schedule.buffers[buffer],
        Owner::Workspace(task) => schedule.workspaces.get(task).copied().flatten(),
    };
    let mut placed: Vec<(Item, Place)> =
        items.into_iter().filter_map(|item| Some((item, place(&item)?))).collect();
    placed.sort_by_key(|(_, place)| place.offset);
    let mut found = Vec::new();
    for (index, (item, place)) in placed.iter().enumerate() {
        let near = placed[index + 1..].iter().take_while(|(_, other)| other.offset < place.end());
        found.extend(near.filter(|(other, _)| other.meets(item)).map(|(other, _)| (item.owner, other.owner)));
    }
    found
}
