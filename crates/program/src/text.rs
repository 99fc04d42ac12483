//! The text form of programs, printed and parsed; also how they are stored.
//!
//! ```text
//! program @line {
//!   param "w" f32[2, 2]
//!     tile f32[1, 2] at [0, 0] in 0/64
//!     tile f32[1, 2] at [1, 0] in 1/64
//!   lane dev0 arena 192
//!     run linear on 2 [4, 1, 2] 0+32, 64+8 -> 128+16 scratch 0+0 of "y" carried 1/0
//!   lane dev1 arena 192
//!     run receive [0 at 0 = 0 at 0 run 16] 0/128+16 -> 128+16 scratch 0+0 of "y" after 0/0
//!   lane dev1 beside 1
//!     run receive [0 at 0 = 0 at 0 run 16] 0/144+16 -> 144+16 scratch 0+0 of "z" after 0/0
//! }
//! ```
//!
//! A part of a program says so in its first line: `part 1 of 4 of` the whole one's fingerprint.
//!
//! An operation on several blocks says how many: `run linear on 2 [...]`. What stands in brackets is in `payload`. A slice
//! is `offset+bytes`, with `lane/` before it if it is not in the operation's own arena; a wait is `lane/position`, of the
//! run before if it is `carried`.

mod payload;

use std::fmt;
use std::str::FromStr;

use phalanx_ir::text::{Cursor, ParseError, TextBlock, block};

use crate::{
    Blocks, Builder, Draft, Lane, Operation, PartOf, Port, PortKind, PortTile, Program, Slice, Wait,
};

const KINDS: [(PortKind, &str); 5] = [
    (PortKind::Input, "input"),
    (PortKind::Param, "param"),
    (PortKind::Table, "table"),
    (PortKind::State, "state"),
    (PortKind::Output, "output"),
];

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}+{}", self.lane, self.offset, self.bytes)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or("", |(_, name)| name);
        writeln!(f, "  {kind} \"{}\" {}", self.name, self.ty)?;
        for PortTile { origin, ty, slice } in &self.tiles {
            write!(f, "    tile {ty} at [")?;
            print_list(f, origin, |f, coordinate| write!(f, "{coordinate}"))?;
            writeln!(f, "] in {}/{}", slice.lane, slice.offset)?;
        }
        Ok(())
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program @{} {{", self.name)?;
        if let Some(PartOf { rank, ranks, whole }) = self.part {
            writeln!(f, "  part {rank} of {ranks} of {whole:032x}")?;
        }
        self.ports.iter().try_for_each(|port| write!(f, "{port}"))?;
        for (number, lane) in self.lanes.iter().enumerate() {
            let &Lane { device, home, arena, .. } = lane;
            match home as usize == number {
                true => writeln!(f, "  lane dev{device} arena {arena}")?,
                false => writeln!(f, "  lane dev{device} beside {home}")?,
            }
            for operation in self.operations_of(lane) {
                self.print_operation(f, home, operation)?;
            }
        }
        write!(f, "}}")
    }
}

impl Program {
    fn print_operation(&self, f: &mut fmt::Formatter<'_>, home: u32, operation: &Operation) -> fmt::Result {
        let slice = |f: &mut fmt::Formatter<'_>, slice: &Slice| match slice.lane == home {
            true => write!(f, "{}+{}", slice.offset, slice.bytes),
            false => write!(f, "{slice}"),
        };
        write!(f, "    run {} ", self.kernel(operation))?;
        if operation.blocks != Blocks::ONE {
            write!(f, "on {} ", operation.blocks.get())?;
        }
        write!(f, "[")?;
        self.print_payload(f, operation)?;
        write!(f, "] ")?;
        let (reads, writes) = (self.slices(&operation.reads), self.slices(&operation.writes));
        print_list(f, reads, slice)?;
        write!(f, "{}-> ", if reads.is_empty() { "" } else { " " })?;
        print_list(f, writes, slice)?;
        write!(f, "{}scratch ", if writes.is_empty() { "" } else { " " })?;
        slice(f, &operation.scratch)?;
        write!(f, " of \"{}\"", self.label(operation))?;
        for (word, waits) in [("after", self.waits(operation)), ("carried", self.carried(operation))] {
            if !waits.is_empty() {
                write!(f, " {word} ")?;
                print_list(f, waits, |f, wait| write!(f, "{}/{}", wait.lane, wait.position))?;
            }
        }
        writeln!(f)
    }
}

fn print_list<T>(
    f: &mut fmt::Formatter<'_>,
    items: &[T],
    print: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            write!(f, ", ")?;
        }
        print(f, item)?;
    }
    Ok(())
}

impl FromStr for Program {
    type Err = ParseError;

    /// Parses and verifies what `Display` prints.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let TextBlock { name, lines, end } = block(text, "program")?;
        let mut builder = Builder::new(&name);
        let mut port: Option<Port> = None;
        let mut home = None;
        for (number, mut line) in lines.into_iter().enumerate() {
            if number == 0 && line.eat("part ") {
                builder.part(parse_part(&mut line)?);
            } else if line.eat("tile ") {
                let Some(port) = &mut port else { return line.error("a tile stands under its tensor") };
                port.tiles.push(parse_tile(&mut line)?);
            } else {
                port.take().into_iter().for_each(|port| builder.port(port));
                if line.eat("run ") {
                    let Some(home) = home else { return line.error("an operation stands under its lane") };
                    parse_operation(&mut builder, &mut line, home)?;
                } else if line.eat("lane ") {
                    home = Some(parse_lane(&mut builder, &mut line)?);
                } else {
                    port = Some(parse_port(&mut line)?);
                }
            }
            if !line.at_end() {
                return line.error("text is left over at the end");
            }
        }
        port.into_iter().for_each(|port| builder.port(port));
        builder.finish_as_is().or_else(|errors| end.error(format!("not a sound program: {}", errors[0])))
    }
}

fn parse_part(line: &mut Cursor<'_>) -> Result<PartOf, ParseError> {
    let rank = line.parse("a rank")?;
    line.expect("of")?;
    let ranks = line.parse("a number of ranks")?;
    line.expect("of")?;
    let word = line.word()?;
    let Ok(whole) = u128::from_str_radix(word, 16) else {
        return line.error(format!("`{word}` is not the fingerprint of a program"));
    };
    match rank < ranks {
        true => Ok(PartOf { rank, ranks, whole }),
        false => line.error(format!("there is no part {rank} of {ranks}: parts are counted from 0")),
    }
}

fn parse_port(line: &mut Cursor<'_>) -> Result<Port, ParseError> {
    let word = line.word()?;
    let Some(&(kind, _)) = KINDS.iter().find(|(_, name)| *name == word) else {
        return line.error(format!("`{word}` is none of run, lane, tile, input, param, state, output"));
    };
    Ok(Port { name: line.quoted()?.to_string(), kind, ty: line.tensor_type()?, tiles: Vec::new() })
}

fn parse_tile(line: &mut Cursor<'_>) -> Result<PortTile, ParseError> {
    let ty = line.tensor_type()?;
    line.expect("at")?;
    let origin = line.extents()?;
    line.expect("in")?;
    let (lane, offset) = parse_pair(line, '/', "a place like 0/64")?;
    let Ok(lane) = u32::try_from(lane) else { return line.error(format!("{lane} is not a lane")) };
    let slice = Slice { lane, offset, bytes: ty.bytes() as u64 };
    Ok(PortTile { origin, ty, slice })
}

/// Starts a lane; the lane in whose arena it works.
fn parse_lane(builder: &mut Builder, line: &mut Cursor<'_>) -> Result<u32, ParseError> {
    let word = line.word()?;
    let Some(device) = word.strip_prefix("dev").and_then(|number| number.parse().ok()) else {
        return line.error(format!("`{word}` is not a device like dev0"));
    };
    if line.eat("beside ") {
        let home = line.parse("a lane")?;
        builder.transfer_lane(device, home);
        return Ok(home);
    }
    line.expect("arena")?;
    Ok(builder.lane(device, line.parse("a size")?))
}

fn parse_operation(builder: &mut Builder, line: &mut Cursor<'_>, home: u32) -> Result<(), ParseError> {
    let kernel = line.word()?;
    let blocks = if line.eat("on ") { parse_blocks(line)? } else { Blocks::ONE };
    let mut params = Vec::new();
    let draft = payload::parse_payload(line, kernel, &mut params)?;
    let slice = |line: &mut Cursor<'_>| parse_slice(line, home);
    let reads = if line.peek("->") { Vec::new() } else { line.list(slice)? };
    line.expect("->")?;
    let writes = if line.peek("scratch") { Vec::new() } else { line.list(slice)? };
    line.expect("scratch")?;
    let scratch = parse_slice(line, home)?;
    line.expect("of")?;
    let label = line.quoted()?;
    let mut waits = |word| if line.eat(word) { line.list(parse_wait) } else { Ok(Vec::new()) };
    let (waits, carried) = (waits("after ")?, waits("carried ")?);
    let (reads, writes, waits) = (&reads[..], &writes[..], &waits[..]);
    builder.operation(Draft { label, blocks, reads, writes, scratch, waits, ..draft });
    builder.carry(&carried);
    Ok(())
}

fn parse_blocks(line: &mut Cursor<'_>) -> Result<Blocks, ParseError> {
    let count = line.parse("a number of blocks")?;
    match Blocks::new(count) {
        Some(blocks) => Ok(blocks),
        None => line.error(format!("an operation runs on 1 to {} blocks, not on {count}", Blocks::MOST)),
    }
}

fn parse_slice(line: &mut Cursor<'_>, own: u32) -> Result<Slice, ParseError> {
    let word = line.word()?;
    let (lane, place) = match word.split_once('/') {
        Some((lane, place)) => (lane.parse().ok(), place),
        None => (Some(own), word),
    };
    let place = place.split_once('+').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    match lane.zip(place) {
        Some((lane, (offset, bytes))) => Ok(Slice { lane, offset, bytes }),
        None => line.error(format!("`{word}` is not a slice like 64+128 or 1/64+128")),
    }
}

fn parse_wait(line: &mut Cursor<'_>) -> Result<Wait, ParseError> {
    let (lane, position) = parse_pair(line, '/', "a wait like 1/7")?;
    match (u32::try_from(lane), u32::try_from(position)) {
        (Ok(lane), Ok(position)) => Ok(Wait { lane, position }),
        _ => line.error(format!("{lane}/{position} is not a wait like 1/7")),
    }
}

fn parse_pair(line: &mut Cursor<'_>, between: char, what: &str) -> Result<(u64, u64), ParseError> {
    let word = line.word()?;
    let parts = word.split_once(between).and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parts.map_or_else(|| line.error(format!("`{word}` is not {what}")), Ok)
}
