//! The text form of certificates, printed and parsed.
//!
//! ```text
//! certificate @line {
//!   whole 0f3a52d0c1b7e1f9a4d3920b6c8e7d15
//!   rank 0 posts 4096 has dev0, dev1
//!   rank 1 posts 64 has dev2
//!   turns 0/0+3, 1/2+1, 0/0+7
//! }
//! ```
//!
//! followed by the program of each rank. A turn is `rank/lane+count`.

use std::fmt;
use std::str::FromStr;

use phalanx_ir::text::{Cursor, ParseError, TextBlock, block};

use super::{Certificate, Turn};
use crate::Program;

/// Turns on a line.
const PER_LINE: usize = 16;

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}+{}", self.rank, self.lane, self.count)
    }
}

impl Certificate {
    /// The lines about the job that follow from the parts.
    fn facts(&self) -> Vec<String> {
        let mut facts = vec![format!("whole {:032x}", self.whole)];
        for (rank, posted) in self.posted.iter().enumerate() {
            let homes = self.parts[rank].homes().map(|lane| format!("dev{}", lane.device));
            let devices = homes.collect::<Vec<_>>().join(", ");
            facts.push(format!("rank {rank} posts {posted} has {devices}").trim_end().to_string());
        }
        facts
    }
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "certificate @{} {{", self.parts.first().map_or("nothing", Program::name))?;
        self.facts().iter().try_for_each(|fact| writeln!(f, "  {fact}"))?;
        for turns in self.turns.chunks(PER_LINE) {
            let turns: Vec<String> = turns.iter().map(Turn::to_string).collect();
            writeln!(f, "  turns {}", turns.join(", "))?;
        }
        write!(f, "}}")?;
        self.parts.iter().try_for_each(|part| write!(f, "\n{part}"))
    }
}

impl FromStr for Certificate {
    type Err = ParseError;

    /// Parses what `Display` prints, and checks it.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut blocks = blocks(text);
        let (_, head) = if blocks.is_empty() { (0, text) } else { blocks.remove(0) };
        let TextBlock { name, lines, end } = block(head, "certificate")?;
        let (mut facts, mut turns) = (Vec::new(), Vec::new());
        for mut line in lines {
            match line.eat("turns ") {
                true => turns.extend(line.list(parse_turn)?),
                false => facts.push(line),
            }
        }
        let programs = blocks.into_iter().map(|(before, text)| {
            let moved = |error: ParseError| ParseError { line: before + error.line, ..error };
            text.parse::<Program>().map_err(moved)
        });
        let parts = programs.collect::<Result<Vec<_>, _>>()?;
        if parts.first().is_none_or(|part| part.name() != name) {
            return end.error(format!("the programs that follow must be the parts of `{name}`"));
        }
        let certificate = Certificate::with_turns(&parts, turns)
            .or_else(|errors| end.error(format!("not a sound certificate: {}", errors[0])))?;
        let expected = certificate.facts();
        for (fact, expected) in facts.iter_mut().zip(&expected) {
            if !fact.eat(expected) || !fact.at_end() {
                return fact.error(format!("the parts say `{expected}`"));
            }
        }
        match facts.len() == expected.len() {
            true => Ok(certificate),
            false => {
                end.error(format!("{} lines about the job; there must be {}", facts.len(), expected.len()))
            }
        }
    }
}

/// The blocks of a text, each with the number of lines before it. A block ends at a line that is `}`.
fn blocks(text: &str) -> Vec<(usize, &str)> {
    let (mut blocks, mut first_line, mut start, mut end) = (Vec::new(), 0, 0, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        end += line.len();
        if line.trim() == "}" {
            blocks.push((first_line, &text[start..end]));
            (first_line, start) = (number + 1, end);
        }
    }
    if !text[start..].trim().is_empty() {
        blocks.push((first_line, &text[start..]));
    }
    blocks
}

fn parse_turn(line: &mut Cursor<'_>) -> Result<Turn, ParseError> {
    let word = line.word()?;
    let parts = word.split_once('/').and_then(|(rank, rest)| Some((rank, rest.split_once('+')?)));
    let turn = parts.and_then(|(rank, (lane, count))| {
        Some(Turn { rank: rank.parse().ok()?, lane: lane.parse().ok()?, count: count.parse().ok()? })
    });
    turn.map_or_else(|| line.error(format!("`{word}` is not a turn like 0/3+12")), Ok)
}
