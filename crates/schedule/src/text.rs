//! Printing and parsing of schedules.
//!
//! ```text
//! schedule @line {
//!   lane dev0 peak 192 live 192
//!   run t0
//!   lane dev1 peak 64 live 64
//!   run t1 after t0
//!   lane dev1 transfers
//!   run t2 after t0
//!   place b0 at 0 bytes 64
//!   place b1 nowhere
//!   workspace t0 at 64 bytes 128
//!   workspace t1 nowhere
//! }
//! ```

use std::fmt;
use std::str::FromStr;

use phalanx_ir::tasks::TaskId;
use phalanx_ir::text::{Cursor, ParseError, TextBlock, block};
use phalanx_ir::{Id, IdVec};

use crate::{ArenaRange, LaneKind, Schedule, ScheduledLane};

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "schedule @{} {{", self.name)?;
        for lane in &self.lanes {
            match lane.kind {
                LaneKind::Compute => {
                    writeln!(f, "  lane {} peak {} live {}", lane.device, lane.peak, lane.live)?;
                }
                LaneKind::Transfers => writeln!(f, "  lane {} transfers", lane.device)?,
            }
            for &task in &lane.order {
                writeln!(f, "  run {task}{}", After(self.waits.get(task).map_or(&[], |waits| waits)))?;
            }
        }
        let mut line = |what: &str, id: &dyn fmt::Display, place: &Option<ArenaRange>| match place {
            Some(place) => writeln!(f, "  {what} {id} at {} bytes {}", place.offset, place.bytes),
            None => writeln!(f, "  {what} {id} nowhere"),
        };
        self.buffers.iter().try_for_each(|(id, place)| line("place", &id, place))?;
        self.workspaces.iter().try_for_each(|(id, place)| line("workspace", &id, place))?;
        write!(f, "}}")
    }
}

/// What a task waits for, if anything.
struct After<'a>(&'a [TaskId]);

impl fmt::Display for After<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = std::iter::once(" after ").chain(std::iter::repeat(", "));
        self.0.iter().zip(words).try_for_each(|(task, word)| write!(f, "{word}{task}"))
    }
}

impl FromStr for Schedule {
    type Err = ParseError;

    /// Parses what `Display` prints; the result is not verified.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let TextBlock { name, lines, .. } = block(text, "schedule")?;
        let mut schedule = Schedule {
            name,
            lanes: Vec::new(),
            waits: IdVec::new(),
            buffers: IdVec::new(),
            workspaces: IdVec::new(),
        };
        // Every task has two lines, so a larger number is a typing error, which must not ask for gigabytes.
        let most_tasks = lines.len();
        for mut line in lines {
            parse_line(&mut schedule, &mut line, most_tasks)?;
        }
        while schedule.waits.len() < schedule.workspaces.len() {
            schedule.waits.push(Vec::new());
        }
        Ok(schedule)
    }
}

fn parse_line(schedule: &mut Schedule, line: &mut Cursor<'_>, most_tasks: usize) -> Result<(), ParseError> {
    if line.eat("lane ") {
        schedule.lanes.push(parse_lane(line)?);
    } else if line.eat("run ") {
        parse_run(schedule, line, most_tasks)?;
    } else if line.eat("place ") {
        place(&mut schedule.buffers, line, "b")?;
    } else if line.eat("workspace ") {
        place(&mut schedule.workspaces, line, "t")?;
    } else {
        return line.error("expected `lane`, `run`, `place` or `workspace`");
    }
    if line.at_end() { Ok(()) } else { line.error("text is left over at the end") }
}

fn parse_lane(line: &mut Cursor<'_>) -> Result<ScheduledLane, ParseError> {
    let (device, order) = (id(line, "dev")?, Vec::new());
    if line.eat("transfers") {
        return Ok(ScheduledLane { device, kind: LaneKind::Transfers, order, peak: 0, live: 0 });
    }
    line.expect("peak")?;
    let peak = line.parse("a size")?;
    line.expect("live")?;
    Ok(ScheduledLane { device, kind: LaneKind::Compute, order, peak, live: line.parse("a size")? })
}

fn parse_run(schedule: &mut Schedule, line: &mut Cursor<'_>, most_tasks: usize) -> Result<(), ParseError> {
    let task: TaskId = id(line, "t")?;
    let Some(lane) = schedule.lanes.last_mut() else {
        return line.error(format!("{task} is in no lane: a `lane` line comes first"));
    };
    lane.order.push(task);
    let waits = if line.eat("after ") { line.list(|line| id(line, "t"))? } else { Vec::new() };
    if waits.is_empty() {
        return Ok(());
    }
    if task.index() >= most_tasks {
        return line.error(format!("{task} is beyond the tasks that a text of {most_tasks} lines can have"));
    }
    while schedule.waits.len() <= task.index() {
        schedule.waits.push(Vec::new());
    }
    schedule.waits[task] = waits;
    Ok(())
}

fn place<I: Id>(
    table: &mut IdVec<I, Option<ArenaRange>>,
    line: &mut Cursor<'_>,
    prefix: &str,
) -> Result<(), ParseError> {
    let id: I = id(line, prefix)?;
    let place = match line.eat("nowhere") {
        true => None,
        false => {
            line.expect("at")?;
            let offset = line.parse("an offset")?;
            line.expect("bytes")?;
            Some(ArenaRange { offset, bytes: line.parse("a size")? })
        }
    };
    if table.push(place) != id {
        return line.error(format!("{id} is not the next one"));
    }
    Ok(())
}

fn id<I: Id>(line: &mut Cursor<'_>, prefix: &str) -> Result<I, ParseError> {
    let word = line.word()?;
    match word.strip_prefix(prefix).and_then(|number| number.parse::<u32>().ok()) {
        Some(number) => Ok(I::from_index(number as usize)),
        None => line.error(format!("`{word}` is not an id like {prefix}0")),
    }
}
