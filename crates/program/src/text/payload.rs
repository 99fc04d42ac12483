//! The text form of what operations do: parameters, pieces and message ends.
//!
//! ```text
//! parameters   4, 1, 2
//! pieces       0 at 0/16 = 0 at 8/8 run 8 x 4, 1 at 0 = 1 at 0 + 2 at 64 run 64
//! ends         tag 0 rank 1 dev1 in 0 at 8/16 run 8 x 4
//! ```
//!
//! The first piece writes 4 runs of 8 bytes: to slice 0 from byte 0 on and 16 bytes apart, from slice 0 from byte 8 on
//! and 8 bytes apart. The second one is a sum of two parts. There are as many strides as there are extents.

use std::fmt;

use phalanx_ir::text::{Cursor, ParseError};
use phalanx_strided::{Nest, Place, Strides};

use super::print_list;
use crate::{ARRIVE, Draft, FEED, FETCH, MessageEnd, Operation, Payload, Piece, Program, RECEIVE, SEND};

impl Program {
    pub(super) fn print_payload(&self, f: &mut fmt::Formatter<'_>, operation: &Operation) -> fmt::Result {
        match operation.payload {
            Payload::Params(_) => print_list(f, self.params(operation), |f, param| write!(f, "{param}")),
            Payload::Movement(_) => print_list(f, self.pieces(operation), print_piece),
            Payload::Messages(_) => print_list(f, self.messages(operation), print_end),
        }
    }
}

fn print_piece(f: &mut fmt::Formatter<'_>, piece: &Piece) -> fmt::Result {
    write!(f, "{} at ", piece.write)?;
    print_place(f, piece.target())?;
    for (number, (read, place)) in piece.parts().enumerate() {
        write!(f, " {} {read} at ", if number == 0 { "=" } else { "+" })?;
        print_place(f, place)?;
    }
    print_loops(f, &piece.nest)
}

fn print_end(f: &mut fmt::Formatter<'_>, end: &MessageEnd) -> fmt::Result {
    let MessageEnd { peer, tag, device, slice, runs } = end;
    write!(f, "tag {tag} rank {peer} dev{device} in {slice} at ")?;
    print_place(f, &runs.places[0])?;
    print_loops(f, runs)
}

fn print_place(f: &mut fmt::Formatter<'_>, place: &Place) -> fmt::Result {
    write!(f, "{}", place.start)?;
    place.strides.iter().try_for_each(|stride| write!(f, "/{stride}"))
}

fn print_loops<P>(f: &mut fmt::Formatter<'_>, nest: &Nest<P>) -> fmt::Result {
    write!(f, " run {}", nest.run)?;
    nest.extents.iter().try_for_each(|extent| write!(f, " x {extent}"))
}

/// A draft of `kernel` with what stands between its brackets; `params` keeps its parameters.
pub(super) fn parse_payload<'a>(
    line: &mut Cursor<'_>,
    kernel: &'a str,
    params: &'a mut Vec<u64>,
) -> Result<Draft<'a>, ParseError> {
    let mut draft = Draft { kernel, ..Draft::default() };
    line.expect("[")?;
    match kernel {
        _ if line.peek("]") => {}
        RECEIVE | FEED | FETCH => draft.pieces = line.list(parse_piece)?,
        SEND | ARRIVE => draft.messages = line.list(parse_end)?,
        _ => *params = line.list(|line| line.parse("a parameter"))?,
    }
    line.expect("]")?;
    Ok(Draft { params, ..draft })
}

fn parse_piece(line: &mut Cursor<'_>) -> Result<Piece, ParseError> {
    let (write, target) = parse_part(line)?;
    line.expect("=")?;
    let (mut reads, mut places) = (Vec::new(), vec![target]);
    loop {
        let (read, place) = parse_part(line)?;
        reads.push(read);
        places.push(place);
        if !line.eat("+ ") {
            let nest = parse_loops(line, places)?;
            return Ok(Piece { write, reads, nest });
        }
    }
}

fn parse_end(line: &mut Cursor<'_>) -> Result<MessageEnd, ParseError> {
    line.expect("tag")?;
    let tag = line.parse("a tag")?;
    line.expect("rank")?;
    let peer = line.parse("a rank")?;
    line.expect("dev")?;
    let device = line.parse("a device's number")?;
    line.expect("in")?;
    let (slice, place) = parse_part(line)?;
    Ok(MessageEnd { peer, tag, device, slice, runs: parse_loops(line, [place])? })
}

/// A slice's number and a place in it.
fn parse_part(line: &mut Cursor<'_>) -> Result<(u32, Place), ParseError> {
    let slice = line.parse("the number of a slice")?;
    line.expect("at")?;
    let word = line.word()?;
    let mut numbers = word.split('/').map(|number| number.parse().ok());
    let start = numbers.next().flatten();
    let mut strides = Strides::new();
    let is_read = numbers.all(|stride| stride.is_some_and(|stride| strides.try_push(stride).is_ok()));
    match start.filter(|_| is_read) {
        Some(start) => Ok((slice, Place { start, strides })),
        None => line.error(format!(
            "`{word}` is not a place like 64/16/4, its first byte and at most {} strides",
            strides.capacity()
        )),
    }
}

/// The loops of `places`.
fn parse_loops<P: AsRef<[Place]>>(line: &mut Cursor<'_>, places: P) -> Result<Nest<P>, ParseError> {
    line.expect("run")?;
    let (run, mut extents) = (line.parse("a number of bytes")?, Strides::new());
    while line.eat("x ") {
        let extent = line.parse("an extent")?;
        if extents.try_push(extent).is_err() {
            return line.error(format!("runs have at most {} dimensions", extents.capacity()));
        }
    }
    let (dims, mut found) = (extents.len(), places.as_ref().iter().map(|place| place.strides.len()));
    match found.find(|&strides| strides != dims) {
        None => Ok(Nest { run, extents, places }),
        Some(strides) => line.error(format!("a place has {strides} strides for {dims} dimensions of runs")),
    }
}
