//! Everything the host can reach: fed buffers by their own name, outputs by theirs, tiles of one name joined.

use std::collections::HashMap;

use phalanx_ir::TensorType;
use phalanx_ir::tasks::{BufferId, Role, TaskGraph};
use phalanx_program::{Port, PortKind, PortTile};
use phalanx_schedule::Schedule;

use super::slice_of;

/// The ports of a program, in the order of their first buffers.
pub fn ports(tasks: &TaskGraph, schedule: &Schedule) -> Vec<Port> {
    let mut ports = Ports { tasks, schedule, list: Vec::new(), known: HashMap::new() };
    let fed = tasks.buffers.iter().filter(|(_, buffer)| buffer.view_of.is_none());
    for (id, buffer) in fed {
        let kind = match buffer.role {
            Role::Input => PortKind::Input,
            Role::Param => PortKind::Param,
            Role::Table => PortKind::Table,
            Role::State => PortKind::State,
            Role::Output | Role::Temp => continue,
        };
        ports.add(&buffer.name, kind, id);
    }
    let fed = ports.list.len();
    for (name, buffer) in &tasks.outputs {
        // An output that is also fed can be reached already.
        if ports.known.get(name.as_str()).is_none_or(|&known| known >= fed) {
            ports.add(name, PortKind::Output, *buffer);
        }
    }
    ports.list
}

struct Ports<'a> {
    tasks: &'a TaskGraph,
    schedule: &'a Schedule,
    list: Vec<Port>,
    known: HashMap<&'a str, usize>,
}

impl<'a> Ports<'a> {
    fn add(&mut self, name: &'a str, kind: PortKind, id: BufferId) {
        let buffer = &self.tasks.buffers[id];
        let (origin, global) = match &buffer.tile {
            Some(tile) => (tile.origin.clone(), &tile.global),
            None => (vec![0; buffer.ty.shape.rank()], &buffer.ty.shape),
        };
        let tile = PortTile { origin, ty: buffer.ty.clone(), slice: slice_of(self.tasks, self.schedule, id) };
        let next = self.list.len();
        let index = *self.known.entry(name).or_insert(next);
        if index == next {
            let ty = TensorType::new(buffer.ty.dtype, global.clone());
            self.list.push(Port { name: name.to_string(), kind, ty, tiles: Vec::new() });
        }
        self.list[index].tiles.push(tile);
    }
}
