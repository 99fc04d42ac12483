//! Printing and parsing of sharded graphs.
//!
//! ```text
//! sharded @line {
//!   b0 : f32[4/2, 2] on dev0, dev1 input "x"
//!   b1 : f32[1, 2] copy 2 on dev0, dev1 param "w"
//!   b2 : f32[4/2, 1] on dev0, dev1 output "y"
//!   t0 = linear activation=none leaves=1 b0{- | - | 0, -}, b1{- | 0 | -, -} -> b2{- | - | 0, -} grid [2] on dev0, dev1 of "y"
//! }
//! ```

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{Operand, ShardedBuffer, ShardedGraph, ShardedTask};
use crate::Shape;
use crate::graph::Label;
use crate::parallel::{DeviceGroup, ParallelType, TileMap};
use crate::tasks::{BufferId, TaskId, TaskOp, numbered};
use crate::text::{Cursor, ParseError, TextBlock, block};

impl fmt::Display for ShardedGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "sharded @{} {{", self.name)?;
        for (id, buffer) in self.buffers.iter() {
            write!(f, "  {id} : {} on {} {}", buffer.ty, groups(&buffer.groups), buffer.role)?;
            if let Some(of) = buffer.view_of {
                write!(f, " view {of}")?;
            }
            writeln!(f, " \"{}\"", buffer.name)?;
        }
        for (id, task) in self.tasks.iter() {
            print_task(id, task, f)?;
        }
        for (name, buffer) in &self.outputs {
            writeln!(f, "  output {buffer} \"{name}\"")?;
        }
        for (param, gradient) in &self.gradients {
            writeln!(f, "  gradient {gradient} of {param}")?;
        }
        if let Some(loss) = self.loss {
            writeln!(f, "  loss {loss}")?;
        }
        write!(f, "}}")
    }
}

fn print_task(id: TaskId, task: &ShardedTask, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (name, attrs) = task.op.to_text();
    write!(f, "  {id} = {name}{attrs} {}", list(&task.reads))?;
    let space = if task.reads.is_empty() { "" } else { " " };
    write!(f, "{space}-> {}", list(&task.writes))?;
    if !task.extents.is_empty() {
        write!(f, " grid {}", Shape::new(&task.extents[..]))?;
    }
    if !task.groups.is_empty() {
        write!(f, " on {}", groups(&task.groups))?;
    }
    if task.microbatch > 0 {
        write!(f, " at {}", task.microbatch)?;
    }
    writeln!(f, " of \"{}\"", task.layer)
}

fn list(operands: &[Operand]) -> String {
    let names: Vec<_> = operands.iter().map(|operand| format!("{}{}", operand.buffer, operand.map)).collect();
    names.join(", ")
}

fn groups(groups: &[DeviceGroup]) -> String {
    groups.iter().map(DeviceGroup::to_string).collect::<Vec<_>>().join(", ")
}

impl FromStr for ShardedGraph {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        // The keyword was `wide` up to version 0.1.
        let first =
            text.lines().map(str::trim_start).find(|line| !(line.is_empty() || line.starts_with(';')));
        let is_old = first.is_some_and(|line| line.starts_with("wide "));
        let TextBlock { name, lines, .. } = block(text, if is_old { "wide" } else { "sharded" })?;
        let mut graph = ShardedGraph { name, ..ShardedGraph::default() };
        for mut line in lines {
            parse_line(&mut graph, &mut line)?;
            if !line.at_end() {
                return line.error("text is left over at the end");
            }
        }
        Ok(graph)
    }
}

fn parse_line(graph: &mut ShardedGraph, line: &mut Cursor<'_>) -> Result<(), ParseError> {
    if line.eat("output ") {
        let buffer = known(graph, line)?;
        graph.outputs.push((line.quoted()?.to_string(), buffer));
    } else if line.eat("gradient ") {
        let gradient = known(graph, line)?;
        line.expect("of")?;
        let param = known(graph, line)?;
        graph.gradients.push((param, gradient));
    } else if line.eat("loss ") {
        graph.loss = Some(known(graph, line)?);
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

fn parse_buffer(graph: &ShardedGraph, line: &mut Cursor<'_>) -> Result<ShardedBuffer, ParseError> {
    line.expect(":")?;
    let ty = ParallelType::parse(line)?;
    line.expect("on")?;
    let groups = line.list(DeviceGroup::parse)?.into();
    let role = line.parse("a role (input, param, table, state, output, temp)")?;
    let view_of = if line.eat("view ") { Some(known(graph, line)?) } else { None };
    Ok(ShardedBuffer { name: line.quoted()?.to_string(), ty, groups, role, view_of })
}

fn parse_task(graph: &ShardedGraph, line: &mut Cursor<'_>) -> Result<ShardedTask, ParseError> {
    line.expect("=")?;
    let name = line.word()?;
    let attrs = line.attrs()?;
    let op = TaskOp::from_text(name, attrs).or_else(|message| line.error(message))?;
    let operand = |line: &mut Cursor<'_>| {
        let buffer = known(graph, line)?;
        Ok(Operand { buffer, map: TileMap::parse(line, graph.buffers[buffer].ty.dims().len())? })
    };
    let reads = if line.peek("->") { Vec::new() } else { line.list(operand)? };
    line.expect("->")?;
    let writes = line.list(operand)?;
    let extents = if line.eat("grid ") { line.extents()? } else { Vec::new() };
    let groups: Arc<[DeviceGroup]> =
        if line.eat("on ") { line.list(DeviceGroup::parse)?.into() } else { Arc::from([]) };
    let microbatch = if line.eat("at ") { line.parse("a microbatch")? } else { 0 };
    line.expect("of")?;
    Ok(ShardedTask { op, reads, writes, extents, groups, layer: line.quoted()?.to_string(), microbatch })
}

fn known(graph: &ShardedGraph, line: &mut Cursor<'_>) -> Result<BufferId, ParseError> {
    let id: BufferId = numbered(line, "b")?;
    match graph.buffers.get(id) {
        Some(_) => Ok(id),
        None => line.error(format!("{id} is not declared before this line")),
    }
}
