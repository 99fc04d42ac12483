//! Whether all ranks have compiled the same program, and if not, where it differs.
//!
//! Normally that is one exchange of hashes. Only if they differ, the texts are compared: hashes of blocks of lines,
//! then hashes of the lines of the first block that differs, then the first line that differs. A text is streamed each
//! time, so that no more of it than a line is ever in memory.

use std::fmt::{self, Write};

use phalanx_net::{NetError, Network};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::JobError;
use crate::Program;

/// Lines of a block: a program of a million lines has a thousand blocks, and a block a thousand lines.
const BLOCK: usize = 1000;

/// How many characters are shown before and behind the place where two lines part.
const AROUND: usize = 60;

/// Compares the programs of all ranks. The error is the same on all of them: it names the first rank whose program is
/// not that of rank 0, and the first line that differs.
pub fn same_program(network: &dyn Network, program: &Program) -> Result<(), JobError> {
    let hashes = network.all_gather(&program.hash().to_le_bytes())?;
    let Some(rank) = hashes.iter().position(|hash| *hash != hashes[0]) else { return Ok(()) };
    let exchange = |mine: &[u8]| -> Result<(Vec<u8>, Vec<u8>), NetError> {
        let has_part = [0, rank].contains(&(network.rank() as usize));
        let mut all = network.all_gather(if has_part { mine } else { &[] })?;
        Ok((std::mem::take(&mut all[0]), std::mem::take(&mut all[rank])))
    };
    let (ours, theirs) = exchange(&hashes_of_blocks(program))?;
    let block = first_difference(&ours, &theirs);
    let (ours, theirs) = exchange(&hashes_of_lines(program, block))?;
    let line = block * BLOCK + first_difference(&ours, &theirs);
    let (ours, theirs) = exchange(line_of(program, line).as_bytes())?;
    let (text_of_first, text) = excerpts(&String::from_utf8_lossy(&ours), &String::from_utf8_lossy(&theirs));
    Err(JobError::Program { rank: rank as u32, line: line + 1, text, text_of_first })
}

fn hashes_of_blocks(program: &Program) -> Vec<u8> {
    let (mut hashes, mut hasher) = (Vec::new(), Xxh3::new());
    each_line(program, |number, line| {
        hasher.update(line.as_bytes());
        hasher.update(b"\n");
        if (number + 1).is_multiple_of(BLOCK) {
            hashes.extend(hasher.digest().to_le_bytes());
            hasher.reset();
        }
    });
    hashes.extend(hasher.digest().to_le_bytes());
    hashes
}

fn hashes_of_lines(program: &Program, block: usize) -> Vec<u8> {
    let mut hashes = Vec::new();
    each_line(program, |number, line| {
        if number / BLOCK == block {
            hashes.extend(xxh3_64(line.as_bytes()).to_le_bytes());
        }
    });
    hashes
}

/// A line of the text; empty behind the end.
fn line_of(program: &Program, wanted: usize) -> String {
    let mut found = String::new();
    each_line(program, |number, line| {
        if number == wanted {
            found = line.to_string();
        }
    });
    found
}

/// Which of two lists' hashes is the first that differs, or that one of them lacks.
fn first_difference(ours: &[u8], theirs: &[u8]) -> usize {
    const HASH: usize = size_of::<u64>();
    let both = ours.len().min(theirs.len()) / HASH;
    ours.chunks(HASH).zip(theirs.chunks(HASH)).position(|(ours, theirs)| ours != theirs).unwrap_or(both)
}

/// Shows `see` every line of the text, counted from 0.
fn each_line(program: &Program, see: impl FnMut(usize, &str)) {
    let mut splitter = Splitter { number: 0, line: String::new(), see };
    // `see` takes any line, so that writing cannot fail.
    _ = write!(splitter, "{program}");
    if !splitter.line.is_empty() {
        (splitter.see)(splitter.number, &splitter.line);
    }
}

/// Cuts what is written into lines.
struct Splitter<F> {
    number: usize,
    line: String,
    see: F,
}

impl<F: FnMut(usize, &str)> Write for Splitter<F> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive('\n') {
            match part.strip_suffix('\n') {
                None => self.line.push_str(part),
                Some(end) => {
                    self.line.push_str(end);
                    (self.see)(self.number, &self.line);
                    self.line.clear();
                    self.number += 1;
                }
            }
        }
        Ok(())
    }
}

/// What surrounds the place where two lines part, of each of them.
fn excerpts(ours: &str, theirs: &str) -> (String, String) {
    let parts = ours.chars().zip(theirs.chars()).take_while(|(ours, theirs)| ours == theirs).count();
    let from = parts.saturating_sub(AROUND);
    let excerpt = |line: &str| {
        if line.is_empty() {
            return "(the end)".to_string();
        }
        let shown: String = line.trim_end().chars().skip(from).take(2 * AROUND).collect();
        let behind = if line.chars().count() > from + 2 * AROUND { "…" } else { "" };
        format!("{}{}{behind}", if from > 0 { "…" } else { "" }, shown.trim_start())
    };
    (excerpt(ours), excerpt(theirs))
}
