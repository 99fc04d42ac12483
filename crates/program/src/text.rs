//! The text form of programs, printed and parsed; also how they are stored.
//!
//! ```text
//! program @line {
//!   arena 192
//!   param "w" f32[1, 2] at 64
//!   linear [4, 1, 2] 0+32, 64+8 -> 128+16 scratch 0+0 of "y"
//! }
//! ```

use std::fmt;
use std::str::FromStr;

use phalanx_ir::text::{Block, Cursor, ParseError, block};

use crate::{Builder, Port, PortKind, Program, Slice};

const KINDS: [(PortKind, &str); 4] = [
    (PortKind::Input, "input"),
    (PortKind::Param, "param"),
    (PortKind::State, "state"),
    (PortKind::Output, "output"),
];

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.offset, self.bytes)
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |slices: &[Slice]| slices.iter().map(Slice::to_string).collect::<Vec<_>>().join(", ");
        writeln!(f, "program @{} {{", self.name)?;
        writeln!(f, "  arena {}", self.arena)?;
        for port in &self.ports {
            let kind = KINDS.iter().find(|(kind, _)| *kind == port.kind).map_or("", |(_, name)| name);
            writeln!(f, "  {kind} \"{}\" {} at {}", port.name, port.ty, port.slice.offset)?;
        }
        for operation in &self.operations {
            let words: Vec<_> = self.words(operation).iter().map(u64::to_string).collect();
            write!(f, "  run {} [{}] ", self.kernels[operation.kernel as usize], words.join(", "))?;
            let reads = self.slices(&operation.reads);
            write!(f, "{}{}-> ", list(reads), if reads.is_empty() { "" } else { " " })?;
            let writes = self.slices(&operation.writes);
            write!(
                f,
                "{}{}scratch {}",
                list(writes),
                if writes.is_empty() { "" } else { " " },
                operation.scratch
            )?;
            writeln!(f, " of \"{}\"", self.label(operation))?;
        }
        write!(f, "}}")
    }
}

impl FromStr for Program {
    type Err = ParseError;

    /// Parses and verifies what `Display` prints.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let Block { name, lines, .. } = block(text, "program")?;
        let mut lines = lines.into_iter();
        let Some(mut head) = lines.next() else {
            return Err(ParseError { line: 1, message: "expected `arena` and its bytes".into() });
        };
        head.expect("arena")?;
        let mut builder = Builder::new(&name, head.parse("a size")?);
        for mut line in lines {
            match line.eat("run ") {
                true => parse_operation(&mut builder, &mut line)?,
                false => builder.port(parse_port(&mut line)?),
            }
            if !line.at_end() {
                return line.error("text is left over at the end");
            }
        }
        builder.finish().or_else(|errors| head.error(format!("not a sound program: {}", errors[0])))
    }
}

fn parse_port(line: &mut Cursor<'_>) -> Result<Port, ParseError> {
    let word = line.word()?;
    let Some(&(kind, _)) = KINDS.iter().find(|(_, name)| *name == word) else {
        return line.error(format!("`{word}` is neither `run` nor input, param, state, output"));
    };
    let name = line.quoted()?.to_string();
    let ty = line.tensor_type()?;
    line.expect("at")?;
    let slice = Slice { offset: line.parse("an offset")?, bytes: ty.bytes() as u64 };
    Ok(Port { name, kind, ty, slice })
}

fn parse_operation(builder: &mut Builder, line: &mut Cursor<'_>) -> Result<(), ParseError> {
    let kernel = line.word()?;
    line.expect("[")?;
    let words = if line.peek("]") { Vec::new() } else { line.list(|c| c.parse("a parameter word"))? };
    line.expect("]")?;
    let reads = if line.peek("->") { Vec::new() } else { line.list(parse_slice)? };
    line.expect("->")?;
    let writes = if line.peek("scratch") { Vec::new() } else { line.list(parse_slice)? };
    line.expect("scratch")?;
    let scratch = parse_slice(line)?;
    line.expect("of")?;
    let label = line.quoted()?;
    builder.operation(kernel, label, &words, [&reads, &writes], scratch);
    Ok(())
}

fn parse_slice(line: &mut Cursor<'_>) -> Result<Slice, ParseError> {
    let word = line.word()?;
    let parts = word.split_once('+').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    match parts {
        Some((offset, bytes)) => Ok(Slice { offset, bytes }),
        None => line.error(format!("`{word}` is not a slice like 64+128")),
    }
}
