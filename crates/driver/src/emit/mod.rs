//! Freezes a scheduled task graph into a program: here, and only here, task operators meet kernels.

mod select;

pub use select::EmitError;

use phalanx_ir::tasks::{BufferId, Role, TaskGraph, TaskId};
use phalanx_kernels::table;
use phalanx_program::{Builder, Port, PortKind, Program, Slice};
use phalanx_schedule::Schedule;

use select::select;

/// Bytes of working memory a task's kernel wants on a device with `cores` cores.
pub fn workspace(tasks: &TaskGraph, task: TaskId, cores: usize) -> u64 {
    let Ok(choice) = select(tasks, task) else { return 0 };
    let kernel = table::find(choice.kernel).expect("a selected kernel is in the table");
    (kernel.scratch)(&choice.words, cores) as u64
}

/// The program of `tasks` in the order and layout of `schedule`.
pub fn emit(tasks: &TaskGraph, schedule: &Schedule, cores: usize) -> Result<Program, EmitError> {
    let mut builder = Builder::new(&tasks.name, schedule.peak);
    ports(tasks, schedule).into_iter().for_each(|port| builder.port(port));
    for &id in &schedule.order {
        let task = &tasks.tasks[id];
        let choice = select(tasks, id)?;
        let slices = |buffers: &[BufferId]| {
            buffers.iter().map(|&buffer| slice(tasks, schedule, buffer)).collect::<Vec<_>>()
        };
        let (reads, writes) = (slices(&task.reads), slices(&task.writes));
        let scratch = schedule.workspaces[id].map_or(Slice { offset: 0, bytes: 0 }, |place| Slice {
            offset: place.offset,
            bytes: workspace(tasks, id, cores),
        });
        builder.operation(choice.kernel, &task.layer, &choice.words, [&reads, &writes], scratch);
    }
    builder.finish().map_err(EmitError::Unsound)
}

fn slice(tasks: &TaskGraph, schedule: &Schedule, buffer: BufferId) -> Slice {
    let bytes = tasks.buffers[buffer].ty.bytes() as u64;
    Slice { offset: schedule.place(tasks, buffer).offset, bytes }
}

/// Everything the host can reach: fed buffers by their own name, outputs by theirs.
fn ports(tasks: &TaskGraph, schedule: &Schedule) -> Vec<Port> {
    let port = |name: &str, kind, buffer| Port {
        name: name.to_string(),
        kind,
        ty: tasks.buffers[buffer].ty.clone(),
        slice: slice(tasks, schedule, buffer),
    };
    let fed = tasks.buffers.iter().filter(|(_, buffer)| buffer.view_of.is_none());
    let mut ports: Vec<Port> = fed
        .filter_map(|(id, buffer)| {
            let kind = match buffer.role {
                Role::Input => PortKind::Input,
                Role::Param => PortKind::Param,
                Role::State => PortKind::State,
                Role::Output | Role::Temp => return None,
            };
            Some(port(&buffer.name, kind, id))
        })
        .collect();
    for (name, buffer) in &tasks.outputs {
        if ports.iter().all(|known| known.name != *name) {
            ports.push(port(name, PortKind::Output, *buffer));
        }
    }
    ports
}
