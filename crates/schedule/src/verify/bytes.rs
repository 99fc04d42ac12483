//! The tasks that wrote every byte last and that have read it since.
//!
//! A map from ranges to owners says whose bytes are where; each owner has one history for all bytes it still has. As
//! long as no other task has written to an owner's bytes the map need not be asked.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_ir::tasks::{BufferId, TaskGraph, TaskId};
use phalanx_ir::{Id, IdVec};

use super::walk::Now;
use crate::clocks::Spot;
use crate::index::Index;
use crate::{ArenaRange, Owner, Schedule, ScheduleError};

/// One use of some bytes of an arena.
pub(super) struct Access {
    /// The lane whose arena it is.
    pub arena: usize,
    pub place: ArenaRange,
    pub owner: Owner,
    pub writes: bool,
}

/// What became of a buffer's bytes.
#[derive(Clone, Default)]
struct History {
    /// All bytes are still what was last written for the buffer.
    is_whole: bool,
    /// None before the first write of a task.
    writer: Option<Spot>,
    /// The last reader since then in the buffer's own lane.
    near: Option<Spot>,
    /// The readers since then in other lanes; of each lane at least the last one.
    far: Vec<Spot>,
}

/// Ranges of one arena: first byte to end and owner.
type Owners = BTreeMap<u64, (u64, Owner)>;

/// The state of all arenas.
pub(super) struct Bytes<'a> {
    tasks: &'a TaskGraph,
    schedule: &'a Schedule,
    index: &'a Index,
    spots: &'a [Spot],
    arenas: Vec<Owners>,
    histories: IdVec<BufferId, History>,
    /// Conflicts found: each pair of owners once.
    overlaps: BTreeSet<(Owner, Owner)>,
    races: BTreeMap<(Owner, Owner), (TaskId, TaskId)>,
}

impl<'a> Bytes<'a> {
    /// Before the step: what the host has written is there.
    pub fn new(tasks: &'a TaskGraph, index: &'a Index, schedule: &'a Schedule, spots: &'a [Spot]) -> Self {
        let mut bytes = Bytes {
            tasks,
            schedule,
            index,
            spots,
            arenas: schedule.lanes.iter().map(|_| BTreeMap::new()).collect(),
            histories: tasks.buffers.ids().map(|_| History::default()).collect(),
            overlaps: BTreeSet::new(),
            races: BTreeMap::new(),
        };
        for (id, _) in tasks.buffers.iter().filter(|(_, b)| b.role.is_fed() && b.view_of.is_none()) {
            let Some(place) = schedule.buffers[id].filter(|place| place.bytes > 0) else { continue };
            let owner = Owner::Buffer(id);
            for other in put(&mut bytes.arenas[index.home(id)], place, owner) {
                bytes.overlaps.insert(pair(owner, other));
            }
            bytes.histories[id].is_whole = true;
        }
        bytes
    }

    /// A task uses some bytes now.
    pub fn touch(&mut self, now: &Now<'_>, access: &Access) {
        if access.place.bytes == 0 {
            return;
        }
        match access.owner {
            Owner::Buffer(buffer) if !access.writes => self.read(now, access, buffer),
            Owner::Buffer(buffer) if self.histories[buffer].is_whole => {
                self.meet(now, access.owner, access.owner);
                self.renew(now, buffer);
            }
            Owner::Buffer(buffer) => {
                self.take(now, access);
                self.renew(now, buffer);
            }
            Owner::Workspace(_) => self.take(now, access),
        }
    }

    /// After the step: reports every conflict, also with what the host keeps.
    pub fn finish(mut self) -> Vec<ScheduleError> {
        for (id, buffer) in self.tasks.buffers.iter() {
            let was_written = self.histories[id].writer.is_some() || buffer.role.is_fed();
            if buffer.role.is_kept() && was_written && !self.histories[id].is_whole {
                let (arena, owner) = (self.index.home(id), Owner::Buffer(id));
                let Some(place) = self.schedule.buffers[id].filter(|place| place.bytes > 0) else { continue };
                let others = within(&self.arenas[arena], place).filter(|&other| other != owner);
                self.overlaps.extend(others.map(|other| pair(owner, other)));
            }
        }
        let overlaps = self.overlaps.into_iter().map(|(a, b)| ScheduleError::Overlap { a, b });
        let race = |((a, b), (first, second))| ScheduleError::Race { first, a, second, b };
        overlaps.chain(self.races.into_iter().map(race)).collect()
    }

    fn read(&mut self, now: &Now<'_>, access: &Access, buffer: BufferId) {
        if let Some(writer) = self.histories[buffer].writer.filter(|&writer| !now.is_after(writer)) {
            self.race(writer, access.owner, now, access.owner);
        }
        if !self.histories[buffer].is_whole {
            self.read_torn(now, access);
        }
        let limit = 2 * self.arenas.len() + 8;
        let history = &mut self.histories[buffer];
        if now.spot.lane as usize == access.arena {
            history.near = Some(now.spot);
            return;
        }
        history.far.push(now.spot);
        if history.far.len() > limit {
            latest(&mut history.far);
        }
    }

    /// Reports tasks that wrote over bytes that are read.
    fn read_torn(&mut self, now: &Now<'_>, access: &Access) {
        let others: Vec<Owner> =
            within(&self.arenas[access.arena], access.place).filter(|&other| other != access.owner).collect();
        for other in others {
            match self.writer(other).filter(|&writer| !now.is_after(writer)) {
                Some(writer) => self.race(writer, other, now, access.owner),
                None => drop(self.overlaps.insert(pair(other, access.owner))),
            }
        }
    }

    fn writer(&self, owner: Owner) -> Option<Spot> {
        match owner {
            Owner::Buffer(buffer) => self.histories[buffer].writer,
            Owner::Workspace(task) => Some(self.spots[task.index()]),
        }
    }

    /// Gives the place to its owner; every task that used the bytes must be done.
    fn take(&mut self, now: &Now<'_>, access: &Access) {
        for other in put(&mut self.arenas[access.arena], access.place, access.owner) {
            self.meet(now, other, access.owner);
            if let Owner::Buffer(buffer) = other {
                self.histories[buffer].is_whole = false;
            }
        }
    }

    /// A task writes for `owner` where bytes of `other` are.
    fn meet(&mut self, now: &Now<'_>, other: Owner, owner: Owner) {
        let mut conflict = None;
        let mut check = |user: Spot| {
            // Two operands of one task; the same one twice is the task graph's affair.
            if user == now.spot {
                conflict = conflict.or((other != owner).then_some(user));
            } else if !now.is_after(user) {
                conflict = Some(user);
            }
        };
        match other {
            Owner::Workspace(task) => check(self.spots[task.index()]),
            Owner::Buffer(buffer) => {
                let history = &self.histories[buffer];
                history.writer.iter().chain(&history.near).chain(&history.far).for_each(|&user| check(user));
            }
        }
        match conflict {
            Some(user) if user == now.spot => drop(self.overlaps.insert(pair(other, owner))),
            Some(user) => self.race(user, other, now, owner),
            None => {}
        }
    }

    /// All of the buffer's bytes are written now.
    fn renew(&mut self, now: &Now<'_>, buffer: BufferId) {
        let history = &mut self.histories[buffer];
        (history.is_whole, history.writer, history.near) = (true, Some(now.spot), None);
        history.far.clear();
    }

    fn race(&mut self, user: Spot, a: Owner, now: &Now<'_>, b: Owner) {
        let task = |spot: Spot| self.schedule.lanes[spot.lane as usize].order[spot.position as usize];
        let tasks = (task(user), task(now.spot));
        self.races.entry((a, b)).or_insert(tasks);
    }
}

fn pair(a: Owner, b: Owner) -> (Owner, Owner) {
    (a.min(b), a.max(b))
}

/// Of each lane the last reader.
fn latest(readers: &mut Vec<Spot>) {
    readers.sort_unstable_by_key(|spot| (spot.lane, std::cmp::Reverse(spot.position)));
    readers.dedup_by_key(|spot| spot.lane);
}

/// The owners of bytes in `place`, which is not empty.
fn within(owners: &Owners, place: ArenaRange) -> impl Iterator<Item = Owner> {
    let below = owners.range(..=place.offset).next_back().filter(|(_, (end, _))| *end > place.offset);
    let start = below.map_or(place.offset, |(&start, _)| start);
    owners.range(start..place.end()).map(|(_, &(_, owner))| owner)
}

/// Gives `place` to `owner` and returns the owners that had bytes of it; they keep what lies
/// beyond it.
fn put(owners: &mut Owners, place: ArenaRange, owner: Owner) -> Vec<Owner> {
    if let Some(same) = owners.get_mut(&place.offset).filter(|(end, _)| *end == place.end()) {
        return vec![std::mem::replace(&mut same.1, owner)];
    }
    let mut before = Vec::new();
    while let Some((&start, &(end, other))) = owners.range(..place.end()).next_back()
        && end > place.offset
    {
        before.push(other);
        owners.remove(&start);
        if end > place.end() {
            owners.insert(place.end(), (end, other));
        }
        if start < place.offset {
            owners.insert(start, (place.offset, other));
        }
    }
    owners.insert(place.offset, (place.end(), owner));
    before
}
