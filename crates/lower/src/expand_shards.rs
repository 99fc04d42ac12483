//! Makes one task for every place of a grid and device of its group, and one buffer for every tile and device.
//!
//! Needs: a sharded graph in which every task has its operands on its own devices.
//! Gives: the same values in tiles. A movement becomes one task for each set of tiles that depend on each other, with all
//! its sides; a tile that is already where it should be is not moved: both names then mean the same buffer. So it is with
//! a tile that an earlier movement of the same value brought there, unless it is a parameter's: those are joined again on
//! purpose, so that they need not be kept.
//!
//! With classes of devices only those are expanded that stand for their class. What they read from a device that
//! another one stands for is an *image*: a view, on that device, of what the one that stands for it has in its place.

mod holding;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use phalanx_ir::parallel::{Coord, DeviceGroup, DeviceId, Dim, ParallelType, place};
use phalanx_ir::sharded::{Operand, ShardedBuffer, ShardedGraph, ShardedTask};
use phalanx_ir::tasks::{Buffer, BufferId, MoveKind, Role, Task, TaskGraph, TaskId, TaskOp, Tile};
use phalanx_ir::{Id, IdVec};

use crate::DeviceClasses;
use crate::rewrite::Touches;
use holding::{Holding, Holdings};

/// All devices.
pub fn expand_shards(sharded: &ShardedGraph) -> TaskGraph {
    expand(sharded, Holdings::new(None)).tasks
}

/// One device of each class; and for every movement a number that those have in common which are between the same devices.
pub fn expand_classes(sharded: &ShardedGraph, classes: &DeviceClasses) -> (TaskGraph, HashMap<TaskId, u32>) {
    let expander = expand(sharded, Holdings::new(Some(classes)));
    (expander.tasks, expander.teams.of_tasks)
}

fn expand<'a>(sharded: &'a ShardedGraph, holdings: Holdings<'a>) -> Expander<'a> {
    let Touches { readers, writers } = Touches::of(sharded);
    let moves = |task: TaskId| matches!(sharded.tasks[task].op, TaskOp::Move { .. });
    let mut expander = Expander {
        sharded,
        holdings,
        images: HashMap::new(),
        teams: Teams::default(),
        tasks: TaskGraph { name: sharded.name.clone(), ..TaskGraph::default() },
        tiles: sharded.buffers.ids().map(|_| None).collect(),
        moved: moved(sharded),
        only_moved: readers.iter().map(|(_, readers)| readers.iter().all(|&task| moves(task))).collect(),
        writers,
        brought: HashMap::new(),
    };
    let fed = sharded.buffers.iter().filter(|(_, buffer)| buffer.role.is_fed() && buffer.view_of.is_none());
    fed.for_each(|(id, _)| expander.make(id));
    for (id, task) in sharded.tasks.iter() {
        match task.op {
            TaskOp::Move { .. } => expander.movement(id, task),
            _ => expander.grid(task),
        }
    }
    for (name, buffer) in &sharded.outputs {
        expander.make(*buffer);
        let tiles = expander.tiles[*buffer].as_ref().expect("just made");
        expander.tasks.outputs.extend(tiles.ids.iter().map(|&id| (name.clone(), id)));
    }
    expander
}

/// Whether a movement touches each buffer.
fn moved(sharded: &ShardedGraph) -> IdVec<BufferId, bool> {
    let mut moved: IdVec<BufferId, bool> = sharded.buffers.ids().map(|_| false).collect();
    let movements = sharded.tasks.iter().filter(|(_, task)| matches!(task.op, TaskOp::Move { .. }));
    for (_, task) in movements {
        task.read_buffers().chain(task.written_buffers()).for_each(|buffer| moved[buffer] = true);
    }
    moved
}

/// The buffers of a tiled tensor: for every tile one for each device of its group.
struct Tiles {
    /// Its number in movements: what moves keeps its number.
    tensor: u32,
    /// Which tiles there are, on which devices.
    held: Rc<Holding>,
    ids: Vec<BufferId>,
}

struct Expander<'a> {
    sharded: &'a ShardedGraph,
    holdings: Holdings<'a>,
    /// Tiles on devices that others stand for.
    images: HashMap<(BufferId, usize, DeviceId), BufferId>,
    teams: Teams,
    tasks: TaskGraph,
    tiles: IdVec<BufferId, Option<Tiles>>,
    moved: IdVec<BufferId, bool>,
    /// Whether nothing but movements reads each buffer.
    only_moved: IdVec<BufferId, bool>,
    /// The tasks that write each buffer that owns bytes, in order.
    writers: IdVec<BufferId, Vec<TaskId>>,
    /// What movements made of each buffer so far, with the movement; only what nothing else writes.
    brought: HashMap<BufferId, Vec<(TaskId, BufferId)>>,
}

/// What the devices that a movement is between follow from: lists of groups (by address), tilings, and which part it is.
type TeamKey = (Vec<*const DeviceGroup>, ParallelType, ParallelType, Vec<usize>);

/// Senders and receivers of movements, numbered.
#[derive(Default)]
struct Teams {
    known: HashMap<TeamKey, u32>,
    numbers: HashMap<[BTreeSet<DeviceId>; 2], u32>,
    of_tasks: HashMap<TaskId, u32>,
}

/// Buffers, each with one of its tiles.
type TileList = Vec<(BufferId, usize)>;

/// One tile on one device that a movement writes.
struct Side {
    coord: Coord,
    device: DeviceId,
    buffer: BufferId,
}

impl Expander<'_> {
    /// The buffer of tile `tile` on `device`.
    fn at(&self, buffer: BufferId, tile: usize, device: DeviceId) -> BufferId {
        let tiles = self.tiles[buffer].as_ref().expect("a buffer is written before it is read");
        let position = tiles.held.position(tile, device).expect("operands were brought to their readers");
        tiles.ids[position]
    }

    /// The same, also if another device stands for `device`.
    fn at_or_image(&mut self, buffer: BufferId, tile: usize, device: DeviceId) -> BufferId {
        let sharded = &self.sharded.buffers[buffer];
        let (image, stands) = self.holdings.image(&sharded.groups, tile, device);
        if stands == device {
            return self.at(buffer, tile, device);
        }
        if let Some(&known) = self.images.get(&(buffer, tile, device)) {
            return known;
        }
        let view_of = Some(self.at(buffer, image, stands));
        let tensor = self.tiles[buffer].as_ref().map_or(0, |tiles| tiles.tensor);
        let tile_of = tile_of(&sharded.ty, &sharded.ty.coord(tile), tensor);
        let (name, ty, role) = (sharded.name.as_str().into(), sharded.ty.tile(), sharded.role);
        let new = Buffer { name, ty, tile: Some(Box::new(tile_of)), device, role, view_of };
        let new = self.tasks.buffers.push(new);
        self.images.insert((buffer, tile, device), new);
        new
    }

    /// Makes the buffers of a tensor, unless they exist; of a view, those of what it shows too.
    fn make(&mut self, id: BufferId) {
        if self.tiles[id].is_some() {
            return;
        }
        let buffer = &self.sharded.buffers[id];
        if let Some(of) = buffer.view_of {
            self.make(of);
        }
        self.make_tiles(id, id.index() as u32, |_, _, _| None);
    }

    /// Makes the buffers of a tensor; `there` gives those that exist already.
    fn make_tiles(
        &mut self,
        id: BufferId,
        tensor: u32,
        there: impl Fn(&Self, &Coord, DeviceId) -> Option<BufferId>,
    ) -> Vec<Side> {
        let ShardedBuffer { name, ty, groups, role, view_of } = &self.sharded.buffers[id];
        let (name, tile_ty): (Arc<str>, _) = (name.as_str().into(), ty.tile());
        let whole = ty.tiles() == 1 && !self.moved[id];
        let held = self.holdings.of(groups);
        let (mut ids, mut new) = (Vec::new(), Vec::new());
        for (index, device) in held.pairs() {
            let coord = ty.coord(index);
            if let Some(known) = there(self, &coord, device) {
                ids.push(known);
                continue;
            }
            let tile = (!whole).then(|| Box::new(tile_of(ty, &coord, tensor)));
            let view_of = view_of.map(|of| self.at(of, index, device));
            let (name, ty, role) = (Arc::clone(&name), tile_ty.clone(), *role);
            let buffer = self.tasks.buffers.push(Buffer { name, ty, tile, device, role, view_of });
            ids.push(buffer);
            new.push(Side { coord, device, buffer });
        }
        self.tiles[id] = Some(Tiles { tensor, held, ids });
        new
    }

    /// One task for every place of the grid and device of its group.
    fn grid(&mut self, task: &ShardedTask) {
        task.written_buffers().chain(task.read_buffers()).for_each(|buffer| self.make(buffer));
        let layer: Arc<str> = task.layer.as_str().into();
        let held = self.holdings.of(&task.groups);
        let mut last = None;
        let (mut reads, mut writes) = (TileList::new(), TileList::new());
        for (index, device) in held.pairs() {
            if last.replace(index) != Some(index) {
                let place = place(&task.extents, index);
                let tile = |operand: &Operand| {
                    let coord = operand.map.coord(&task.extents, &place);
                    (operand.buffer, self.sharded.buffers[operand.buffer].ty.index(&coord))
                };
                reads = task.reads.iter().map(tile).collect();
                writes = task.writes.iter().map(tile).collect();
            }
            let on = |&(buffer, tile): &(BufferId, usize)| self.at(buffer, tile, device);
            let (reads, writes) = (reads.iter().map(on).collect(), writes.iter().map(on).collect());
            let (op, layer, microbatch) = (task.op.clone(), Arc::clone(&layer), task.microbatch);
            self.tasks.tasks.push(Task { op, reads, writes, device, layer, microbatch });
        }
    }

    fn movement(&mut self, id: TaskId, task: &ShardedTask) {
        let (from, to) = (task.reads[0].buffer, task.writes[0].buffer);
        self.make(from);
        let tensor = self.tiles[from].as_ref().expect("just made").tensor;
        let (source, target) = (&self.sharded.buffers[from], &self.sharded.buffers[to]);
        let alike = self.alike(id, from, to);
        let sides = self.make_tiles(to, tensor, |this, coord, device| {
            alike.iter().find_map(|&holder| {
                let ShardedBuffer { ty, groups, .. } = &this.sharded.buffers[holder];
                let copy = copies(ty, groups, coord).find(|(_, group)| group.contains(device))?.0;
                Some(this.at(holder, copy, device))
            })
        });
        if self.is_shared(from, to) {
            self.brought.entry(from).or_default().push((id, to));
        }
        let mut cells: BTreeMap<Vec<usize>, Vec<Side>> = BTreeMap::new();
        for side in sides {
            cells.entry(cell_of(&source.ty, &target.ty, &side.coord)).or_default().push(side);
        }
        let layer: Arc<str> = task.layer.as_str().into();
        for sides in cells.into_values() {
            let tiles =
                sides.iter().flat_map(|side| self.sources(from, &target.ty, side)).collect::<Vec<_>>();
            let at = |(tile, device)| self.at_or_image(from, tile, device);
            let mut reads: Vec<BufferId> = tiles.into_iter().map(at).collect();
            reads.sort_unstable();
            reads.dedup();
            let (writes, device) = (sides.iter().map(|side| side.buffer).collect(), sides[0].device);
            let is_whole = self.holdings.is_whole();
            let kind = if is_whole { MoveKind::Any } else { self.kind(&alike, [from, to], &sides[0]) };
            if !is_whole {
                let team = self.team(&alike, [from, to], &sides[0]);
                self.teams.of_tasks.insert(TaskId::from_index(self.tasks.tasks.len()), team);
            }
            let op = TaskOp::Move { kind };
            let (layer, microbatch) = (Arc::clone(&layer), task.microbatch);
            self.tasks.tasks.push(Task { op, reads, writes, device, layer, microbatch });
        }
    }

    /// The buffers whose tiles are tiles of `to` too when movement `id` brings it there: `from`, and what earlier movements
    /// made of it.
    fn alike(&self, id: TaskId, from: BufferId, to: BufferId) -> Vec<BufferId> {
        let [source, target] = [from, to].map(|buffer| &self.sharded.buffers[buffer]);
        if target.role != Role::Temp {
            return Vec::new();
        }
        let same_tiles =
            |ty: &ParallelType| ty.sum_degree() == target.ty.sum_degree() && ty.dims() == target.ty.dims();
        let stays = same_tiles(&source.ty).then_some(from);
        let brought = self.brought.get(&from).filter(|_| self.is_shared(from, to)).into_iter().flatten();
        let writers = &self.writers[self.sharded.root(from)];
        let brought = brought.filter(|(movement, earlier)| {
            let unchanged = !writers.iter().any(|writer| (movement..&id).contains(&writer));
            unchanged && same_tiles(&self.sharded.buffers[*earlier].ty)
        });
        stays.into_iter().chain(brought.map(|&(_, earlier)| earlier)).collect()
    }

    /// Whether later movements of `from` may use the tiles that a movement to `to` makes.
    fn is_shared(&self, from: BufferId, to: BufferId) -> bool {
        let [source, target] = [from, to].map(|buffer| &self.sharded.buffers[buffer]);
        let joined = self.sharded.buffers[self.sharded.root(from)].role == Role::Param
            && (source.ty.dims() != target.ty.dims() || self.only_moved[to]);
        let written_once = target.view_of.is_none() && self.writers[to].len() == 1;
        target.role == Role::Temp && written_once && !joined
    }

    /// The usual name of the movement that a side belongs to when all devices have theirs.
    fn kind(&self, alike: &[BufferId], [from, to]: [BufferId; 2], side: &Side) -> MoveKind {
        let [source, target] = [from, to].map(|buffer| &self.sharded.buffers[buffer]);
        let dims = || source.ty.dims().iter().zip(target.ty.dims());
        let blocks = |degree: fn(&Dim, &Dim) -> usize| {
            dims().map(|(a, b)| degree(a, b) / gcd(a.degree, b.degree)).product::<usize>()
        };
        let is_there = |device: DeviceId| {
            alike.iter().any(|&holder| {
                let ShardedBuffer { ty, groups, .. } = &self.sharded.buffers[holder];
                copies(ty, groups, &side.coord).any(|(_, group)| group.contains(device))
            })
        };
        let targets = copies(&target.ty, &target.groups, &side.coord).flat_map(|(_, group)| group.devices());
        // One or several: no name tells more.
        let written = targets.filter(|&&device| !is_there(device)).take(2).count();
        let parts = source.ty.sum_degree() / target.ty.sum_degree();
        let [reads, writes] = [blocks(|source, _| source.degree), blocks(|_, target| target.degree)];
        MoveKind::of(parts, reads, writes, written)
    }

    /// The number of the devices that a movement is between when all have their sides.
    fn team(&mut self, alike: &[BufferId], [from, to]: [BufferId; 2], side: &Side) -> u32 {
        let [source, target] = [from, to].map(|buffer| &self.sharded.buffers[buffer]);
        let cell = cell_of(&source.ty, &target.ty, &side.coord);
        let lists = [from, to]
            .into_iter()
            .chain(alike.iter().copied())
            .map(|buffer| self.sharded.buffers[buffer].groups.as_ptr());
        let key: TeamKey = (lists.collect(), source.ty.clone(), target.ty.clone(), cell);
        if let Some(&known) = self.teams.known.get(&key) {
            return known;
        }
        let is_there = |coord: &Coord, device: DeviceId| {
            alike.iter().any(|&holder| {
                let ShardedBuffer { ty, groups, .. } = &self.sharded.buffers[holder];
                copies(ty, groups, coord).any(|(_, group)| group.contains(device))
            })
        };
        let (mut senders, mut receivers) = (BTreeSet::new(), BTreeSet::new());
        for (tile, group) in target.groups.iter().enumerate() {
            let coord = target.ty.coord(tile);
            if cell_of(&source.ty, &target.ty, &coord) == key.3 {
                receivers.extend(group.devices().iter().filter(|&&device| !is_there(&coord, device)));
            }
        }
        let parts = source.ty.sum_degree() / target.ty.sum_degree();
        for (tile, group) in source.groups.iter().enumerate() {
            let coord = source.ty.coord(tile);
            let coord = Coord { sum: coord.sum / parts, ..coord };
            if cell_of(&target.ty, &source.ty, &coord) == key.3 {
                senders.extend(group.devices().iter().copied());
            }
        }
        let next = self.teams.numbers.len() as u32;
        let team = *self.teams.numbers.entry([senders, receivers]).or_insert(next);
        self.teams.known.insert(key, team);
        team
    }

    /// The tiles that one side is made of, each on a device: of each partial sum and each block it meets, one copy.
    fn sources(&self, from: BufferId, target: &ParallelType, side: &Side) -> Vec<(usize, DeviceId)> {
        let ShardedBuffer { ty, groups, .. } = &self.sharded.buffers[from];
        let per_part = ty.sum_degree() / target.sum_degree();
        let mut blocks = vec![Vec::new()];
        for (dim, (source, target)) in ty.dims().iter().zip(target.dims()).enumerate() {
            let (extent, tile) = (source.size / source.degree, target.size / target.degree);
            let start = side.coord.dims[dim] * tile;
            let met = start / extent..=(start + tile - 1) / extent;
            let extended = blocks.iter().flat_map(|block| met.clone().map(|at| [&block[..], &[at]].concat()));
            blocks = extended.collect();
        }
        let parts = side.coord.sum * per_part..(side.coord.sum + 1) * per_part;
        let tiles = parts.flat_map(|sum| blocks.iter().map(move |block| (sum, block.clone())));
        let source = |(sum, dims)| {
            let coord = Coord { sum, copy: 0, dims };
            let holders = copies(ty, groups, &coord)
                .flat_map(|(tile, group)| group.devices().iter().map(move |&device| (tile, device)));
            // Which copy does not matter: its own, else a near one.
            let nearest = holders.min_by_key(|&(_, device)| side.device.distance(device));
            nearest.expect("every tile is on a device")
        };
        tiles.map(source).collect()
    }
}

/// All copies of the tile at `coord`, whatever copy that names, with their groups.
fn copies<'a>(
    ty: &'a ParallelType,
    groups: &'a [DeviceGroup],
    coord: &Coord,
) -> impl Iterator<Item = (usize, &'a DeviceGroup)> + use<'a> {
    let Coord { sum, dims, .. } = coord.clone();
    (0..ty.copy_degree()).map(move |copy| {
        let index = ty.index(&Coord { sum, copy, dims: dims.clone() });
        (index, &groups[index])
    })
}

/// What distinguishes the independent parts of a movement: the partial sum, and the block in the coarsest common tiling.
fn cell_of(source: &ParallelType, target: &ParallelType, coord: &Coord) -> Vec<usize> {
    let dims = source.dims().iter().zip(target.dims()).zip(&coord.dims);
    let blocks = dims.map(|((source, target), &at)| at * gcd(source.degree, target.degree) / target.degree);
    std::iter::once(coord.sum).chain(blocks).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn tile_of(ty: &ParallelType, coord: &Coord, tensor: u32) -> Tile {
    Tile { tensor, global: ty.global().shape, origin: ty.origin(coord), part: coord.sum as u32 }
}
