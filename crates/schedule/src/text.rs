//! Printing and parsing of schedules.
//!
//! ```text
//! schedule @line {
//!   peak 192 live 192
//!   run t0
//!   place b0 at 0 bytes 64
//!   place b1 nowhere
//!   workspace t0 at 64 bytes 128
//! }
//! ```

use std::fmt;
use std::str::FromStr;

use phalanx_ir::text::{Block, Cursor, ParseError, block};
use phalanx_ir::{Id, IdVec};

use crate::{Place, Schedule};

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "schedule @{} {{", self.name)?;
        writeln!(f, "  peak {} live {}", self.peak, self.live)?;
        self.order.iter().try_for_each(|task| writeln!(f, "  run {task}"))?;
        let mut line = |what: &str, id: &dyn fmt::Display, place: &Option<Place>| match place {
            Some(place) => writeln!(f, "  {what} {id} at {} bytes {}", place.offset, place.bytes),
            None => writeln!(f, "  {what} {id} nowhere"),
        };
        self.buffers.iter().try_for_each(|(id, place)| line("place", &id, place))?;
        self.workspaces.iter().try_for_each(|(id, place)| line("workspace", &id, place))?;
        write!(f, "}}")
    }
}

impl FromStr for Schedule {
    type Err = ParseError;

    /// Parses what `Display` prints; the result is not verified.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let Block { name, lines, .. } = block(text, "schedule")?;
        let mut schedule = Schedule {
            name,
            order: Vec::new(),
            buffers: IdVec::new(),
            workspaces: IdVec::new(),
            peak: 0,
            live: 0,
        };
        for mut line in lines {
            parse_line(&mut schedule, &mut line)?;
        }
        Ok(schedule)
    }
}

fn parse_line(schedule: &mut Schedule, line: &mut Cursor<'_>) -> Result<(), ParseError> {
    if line.eat("peak ") {
        schedule.peak = line.parse("a size")?;
        line.expect("live")?;
        schedule.live = line.parse("a size")?;
    } else if line.eat("run ") {
        schedule.order.push(id(line, "t")?);
    } else if line.eat("place ") {
        place(&mut schedule.buffers, line, "b")?;
    } else if line.eat("workspace ") {
        place(&mut schedule.workspaces, line, "t")?;
    } else {
        return line.error("expected `peak`, `run`, `place` or `workspace`");
    }
    if line.at_end() { Ok(()) } else { line.error("text is left over at the end") }
}

fn place<I: Id>(
    table: &mut IdVec<I, Option<Place>>,
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
            Some(Place { offset, bytes: line.parse("a size")? })
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
