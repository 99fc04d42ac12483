//! Printing and parsing of task graphs.
//!
//! ```text
//! tasks @line {
//!   b0 : f32[4, 2] on dev0 input "x"
//!   b1 : f32[1, 2] on dev0 param "w"
//!   b2 : f32[4, 1] on dev0 output "y"
//!   t0 = linear activation=none leaves=1 b0, b1 -> b2 on dev0 of "y"
//! }
//! ```

use std::fmt;
use std::str::FromStr;

use super::{Buffer, BufferId, Role, Task, TaskGraph, TaskId, TaskOp, Tile};
use crate::parallel::parse_device;
use crate::text::{Cursor, ParseError, TextBlock, block};
use crate::{Id, Shape};

const ROLES: [(Role, &str); 6] = [
    (Role::Input, "input"),
    (Role::Param, "param"),
    (Role::Table, "table"),
    (Role::State, "state"),
    (Role::Output, "output"),
    (Role::Temp, "temp"),
];

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ROLES.iter().find(|(role, _)| role == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for Role {
    type Err = ();
    fn from_str(word: &str) -> Result<Self, ()> {
        ROLES.iter().find(|(_, name)| *name == word).map(|&(role, _)| role).ok_or(())
    }
}

impl fmt::Display for TaskGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "tasks @{} {{", self.name)?;
        for (id, buffer) in self.buffers.iter() {
            write!(f, "  {id} : {}", buffer.ty)?;
            if let Some(tile) = &buffer.tile {
                write!(
                    f,
                    " at {} in {} part {} of x{}",
                    Shape::new(&tile.origin[..]),
                    tile.global,
                    tile.part,
                    tile.tensor
                )?;
            }
            write!(f, " on {} {}", buffer.device, buffer.role)?;
            if let Some(of) = buffer.view_of {
                write!(f, " view {of}")?;
            }
            writeln!(f, " \"{}\"", buffer.name)?;
        }
        for (id, task) in self.tasks.iter() {
            let (name, attrs) = task.op.to_text();
            write!(f, "  {id} = {name}{attrs} {}", list(&task.reads))?;
            let space = if task.reads.is_empty() { "" } else { " " };
            let after = if task.writes.is_empty() { "" } else { " " };
            write!(f, "{space}-> {}{after}on {}", list(&task.writes), task.device)?;
            if task.microbatch > 0 {
                write!(f, " microbatch {}", task.microbatch)?;
            }
            writeln!(f, " of \"{}\"", task.layer)?;
        }
        for (name, buffer) in &self.outputs {
            writeln!(f, "  output {buffer} \"{name}\"")?;
        }
        write!(f, "}}")
    }
}

fn list(buffers: &[BufferId]) -> String {
    let names: Vec<_> = buffers.iter().map(BufferId::to_string).collect();
    names.join(", ")
}

impl FromStr for TaskGraph {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let TextBlock { name, lines, .. } = block(text, "tasks")?;
        let mut graph = TaskGraph { name, ..TaskGraph::default() };
        for mut line in lines {
            parse_line(&mut graph, &mut line)?;
            if !line.at_end() {
                return line.error("text is left over at the end");
            }
        }
        Ok(graph)
    }
}

fn parse_line(graph: &mut TaskGraph, line: &mut Cursor<'_>) -> Result<(), ParseError> {
    if line.eat("output ") {
        let buffer = known(graph, line)?;
        graph.outputs.push((line.quoted()?.to_string(), buffer));
    } else if line.peek("b") {
        let id: BufferId = numbered(line, "b")?;
        let buffer = parse_buffer(graph, line)?;
        if graph.buffers.push(buffer) != id {
            return line.error(format!("{id} is not the next buffer"));
        }
    } else {
        let id: TaskId = numbered(line, "t")?;
        let task = parse_task(graph, line)?;
        if graph.tasks.push(task) != id {
            return line.error(format!("{id} is not the next task"));
        }
    }
    Ok(())
}

fn parse_buffer(graph: &TaskGraph, line: &mut Cursor<'_>) -> Result<Buffer, ParseError> {
    line.expect(":")?;
    let ty = line.tensor_type()?;
    let tile = if line.eat("at ") { Some(Box::new(parse_tile(line)?)) } else { None };
    line.expect("on")?;
    let device = parse_device(line)?;
    let role = line.parse("a role (input, param, state, output, temp)")?;
    let view_of = if line.eat("view ") { Some(known(graph, line)?) } else { None };
    Ok(Buffer { name: line.quoted()?.into(), ty, tile, device, role, view_of })
}

fn parse_tile(line: &mut Cursor<'_>) -> Result<Tile, ParseError> {
    let origin = line.extents()?;
    line.expect("in")?;
    let global = Shape::new(line.extents()?);
    line.expect("part")?;
    let part = line.parse("a part")?;
    line.expect("of")?;
    line.expect("x")?;
    Ok(Tile { tensor: line.parse("a tensor's number")?, global, origin, part })
}

fn parse_task(graph: &TaskGraph, line: &mut Cursor<'_>) -> Result<Task, ParseError> {
    line.expect("=")?;
    let name = line.word()?;
    let attrs = line.attrs()?;
    let op = TaskOp::from_text(name, attrs).or_else(|message| line.error(message))?;
    let reads = if line.peek("->") { Vec::new() } else { line.list(|c| known(graph, c))? };
    line.expect("->")?;
    let writes = if line.peek("on") { Vec::new() } else { line.list(|c| known(graph, c))? };
    line.expect("on")?;
    let device = parse_device(line)?;
    let microbatch = if line.eat("microbatch ") { line.parse("a microbatch")? } else { 0 };
    line.expect("of")?;
    Ok(Task { op, reads, writes, device, layer: line.quoted()?.into(), microbatch })
}

fn known(graph: &TaskGraph, line: &mut Cursor<'_>) -> Result<BufferId, ParseError> {
    let id: BufferId = numbered(line, "b")?;
    match graph.buffers.get(id) {
        Some(_) => Ok(id),
        None => line.error(format!("{id} is not declared before this line")),
    }
}

/// Takes an id such as `b7`.
pub(crate) fn numbered<I: Id>(line: &mut Cursor<'_>, prefix: &str) -> Result<I, ParseError> {
    let word = line.word()?;
    match word.strip_prefix(prefix).and_then(|number| number.parse::<u32>().ok()) {
        Some(number) => Ok(I::from_index(number as usize)),
        None => line.error(format!("`{word}` is not an id like {prefix}0")),
    }
}
