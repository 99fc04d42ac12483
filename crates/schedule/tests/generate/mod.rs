//! Random sound task graphs on several devices: fed buffers, views, outputs, sums in place, several microbatches, copies
//! from device to device and sums over devices.
#![allow(dead_code, reason = "each test file uses a part")]

use phalanx_ir::parallel::DeviceId;
use phalanx_ir::tasks::{Buffer, BufferId, Role, Task, TaskGraph, TaskId, TaskOp, Tile};
use phalanx_ir::text::Attrs;
use phalanx_ir::{Id, Shape, TensorType, Unary};
use phalanx_schedule::{Schedule, ScheduleError, Style, TaskCosts, schedule_in};
use phalanx_testkit::Rng;

pub const SEEDS: u64 = 300;

pub fn device(number: usize) -> DeviceId {
    DeviceId::from_index(number)
}

pub fn plain() -> TaskOp {
    TaskOp::Unary { kind: Unary::Exp }
}

/// A graph under construction.
pub struct Maker {
    pub graph: TaskGraph,
    tensors: u32,
    movements: usize,
    pub microbatch: u32,
}

impl Maker {
    pub fn new(name: &str) -> Self {
        let graph = TaskGraph { name: name.into(), ..TaskGraph::default() };
        Maker { graph, tensors: 0, movements: 0, microbatch: 0 }
    }

    /// A buffer of a tensor of its own.
    pub fn buffer(&mut self, on: usize, role: Role, elements: usize) -> BufferId {
        self.tensors += 1;
        self.tile(on, role, elements, self.tensors, 0)
    }

    fn tile(&mut self, on: usize, role: Role, elements: usize, tensor: u32, part: u32) -> BufferId {
        let (global, origin) = (Shape::new([elements]), vec![0]);
        let tile = Some(Box::new(Tile { tensor, global, origin, part }));
        let (ty, device) = (TensorType::f32([elements]), device(on));
        self.graph.buffers.push(Buffer { name: "b".into(), ty, tile, device, role, view_of: None })
    }

    pub fn view(&mut self, of: BufferId) -> BufferId {
        let shown = Buffer { view_of: Some(of), ..self.graph.buffers[of].clone() };
        self.graph.buffers.push(shown)
    }

    pub fn task(&mut self, on: usize, op: TaskOp, reads: Vec<BufferId>, writes: Vec<BufferId>) -> TaskId {
        let (device, microbatch) = (device(on), self.microbatch);
        self.graph.tasks.push(Task { op, reads, writes, device, layer: "l".into(), microbatch })
    }

    /// A new temporary computed from `reads`.
    pub fn compute(&mut self, on: usize, op: TaskOp, reads: &[BufferId], elements: usize) -> BufferId {
        let result = self.buffer(on, Role::Temp, elements);
        self.task(on, op, reads.to_vec(), vec![result]);
        result
    }

    /// Sends tiles of one tensor from their devices and receives the sum of their parts on others.
    pub fn movement(&mut self, from: &[BufferId], to: &[usize], role: Role) -> Vec<BufferId> {
        self.movements += 1;
        let movement = self.movements;
        let mut sources: Vec<(usize, BufferId)> =
            from.iter().map(|&buffer| (self.graph.buffers[buffer].device.index(), buffer)).collect();
        sources.sort_unstable();
        for group in sources.chunk_by(|a, b| a.0 == b.0) {
            let reads = group.iter().map(|&(_, buffer)| buffer).collect();
            self.task(group[0].0, TaskOp::Send { movement }, reads, vec![]);
        }
        let Buffer { ty, tile, .. } = self.graph.buffers[from[0]].clone();
        let tensor = tile.expect("moved buffers are tiles").tensor;
        let receive = |&on: &usize| {
            let target = self.tile(on, role, ty.shape.elements(), tensor, 0);
            self.task(on, TaskOp::Receive { movement }, from.to_vec(), vec![target]);
            target
        };
        to.iter().map(receive).collect()
    }

    /// One part of a new tensor on each of these devices, and their sum on each.
    pub fn all_reduce(&mut self, parts: &[(usize, Vec<BufferId>)], elements: usize) -> Vec<BufferId> {
        self.tensors += 1;
        let tensor = self.tensors;
        let mut from = Vec::new();
        for (part, (on, reads)) in parts.iter().enumerate() {
            let written = self.tile(*on, Role::Temp, elements, tensor, part as u32);
            self.task(*on, plain(), reads.clone(), vec![written]);
            from.push(written);
        }
        let devices: Vec<usize> = parts.iter().map(|&(on, _)| on).collect();
        self.movement(&from, &devices, Role::Temp)
    }
}

/// A sound graph of some dozens of tasks on up to `devices` devices.
pub fn random_tasks(seed: u64, devices: usize) -> TaskGraph {
    let mut rng = Rng::new(seed);
    let mut maker = Maker::new("random");
    let mut written: Vec<Vec<BufferId>> = vec![Vec::new(); devices];
    for _ in 0..1 + rng.below(3 * devices) {
        let role = rng.choose(&[Role::Input, Role::Param, Role::State]);
        let (on, elements) = (rng.below(devices), 1 + rng.below(100));
        written[on].push(maker.buffer(on, role, elements));
    }
    for _ in 0..2 + rng.below(15 * (1 + devices)) {
        maker.microbatch += u32::from(rng.once_in(8));
        let on = rng.below(devices);
        match rng.below(4) {
            0 if devices > 1 && !written[on].is_empty() => {
                let (to, from) = (rng.below(devices), rng.choose(&written[on]));
                let role = if rng.once_in(6) { Role::Output } else { Role::Temp };
                let received = maker.movement(&[from], &[to], role);
                written[to].extend(received);
            }
            1 if devices > 1 && rng.once_in(2) => {
                let mut members: Vec<usize> = (0..devices).collect();
                rng.shuffle(&mut members);
                members.truncate(2 + rng.below(devices - 1));
                let parts: Vec<_> = members.iter().map(|&on| (on, some(&mut rng, &written[on]))).collect();
                let sums = maker.all_reduce(&parts, 1 + rng.below(100));
                members.iter().zip(sums).for_each(|(&on, sum)| written[on].push(sum));
            }
            _ => compute(&mut maker, &mut rng, on, &mut written[on]),
        }
    }
    maker.graph.verify().unwrap_or_else(|errors| panic!("{errors:?}\n{}", maker.graph));
    maker.graph
}

fn some(rng: &mut Rng, written: &[BufferId]) -> Vec<BufferId> {
    let count = if written.is_empty() { 0 } else { rng.below(3) };
    (0..count).map(|_| rng.choose(written)).collect()
}

/// A task on one device: perhaps through a view, perhaps in place.
fn compute(maker: &mut Maker, rng: &mut Rng, on: usize, written: &mut Vec<BufferId>) {
    if rng.once_in(5) && !written.is_empty() {
        let view = maker.view(rng.choose(written));
        written.push(view);
    }
    let reads = some(rng, written);
    if rng.once_in(3) && !written.is_empty() {
        let target = rng.choose(written);
        let root = maker.graph.root(target);
        let is_apart = reads.iter().all(|&read| maker.graph.root(read) != root);
        if maker.graph.buffers[root].role == Role::Temp && is_apart {
            let op = TaskOp::call("rotary", Attrs::new().with("inverse", true).with("accumulate", true));
            maker.task(on, op, reads, vec![target]);
            return;
        }
    }
    let mut writes = Vec::new();
    for _ in 0..1 + rng.below(2) {
        let role = if rng.once_in(6) { Role::Output } else { Role::Temp };
        let elements = 1 + rng.below(300);
        writes.push(maker.buffer(on, role, elements));
    }
    written.extend(&writes);
    maker.task(on, plain(), reads, writes);
}

/// Some tasks need working memory.
pub fn workspace(task: TaskId) -> u64 {
    [0, 0, 1, 64, 1000][task.index() % 5]
}

pub fn errors(schedule: &Schedule, tasks: &TaskGraph) -> Vec<ScheduleError> {
    match schedule.verify(tasks) {
        Ok(()) => panic!("a broken schedule is not noticed\n{tasks}\n{schedule}"),
        Err(errors) => errors,
    }
}

/// Runs `check` on many graphs with their schedules and gives how often it applied.
pub fn each(devices: usize, check: impl FnMut(&TaskGraph, Schedule, &mut Rng) -> bool) -> u64 {
    each_in(devices, Style::default(), check)
}

/// With a link so slow that transfers take longer than tasks.
pub fn made_in(tasks: &TaskGraph, style: Style) -> Schedule {
    let link = style.overlap.then(|| "2us,1GB".parse().expect("a link"));
    schedule_in(tasks, &TaskCosts::modelled(tasks, link), style, workspace)
}

/// The same with schedules in some style.
pub fn each_in(
    devices: usize,
    style: Style,
    mut check: impl FnMut(&TaskGraph, Schedule, &mut Rng) -> bool,
) -> u64 {
    let mut applied = 0;
    for seed in 0..SEEDS {
        let tasks = random_tasks(seed, devices);
        let made = made_in(&tasks, style);
        applied += u64::from(check(&tasks, made, &mut Rng::new(seed)));
    }
    applied
}
