//! Whether all ranks compile the same thing, and if not, where it differs.
//!
//! Normally that is one exchange of hashes. Only if they differ, the texts are compared: hashes of blocks of lines,
//! then hashes of the lines of the first block that differs, then the first line that differs.

use phalanx_net::{NetError, Network};
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128};

use super::JobError;

/// Lines of a block: a text of a million lines has a thousand blocks, and a block a thousand lines.
const BLOCK: usize = 1000;

/// How many characters are shown before and behind the place where two lines part.
const AROUND: usize = 60;

/// Compares the texts of all ranks that say what they compile. The error is the same on all of them: it names the first
/// rank whose text is not that of rank 0, and the first line that differs.
pub fn same_source(network: &dyn Network, source: &str) -> Result<(), JobError> {
    let hashes = network.all_gather(&xxh3_128(source.as_bytes()).to_le_bytes())?;
    let Some(rank) = hashes.iter().position(|hash| *hash != hashes[0]) else { return Ok(()) };
    let exchange = |mine: &[u8]| -> Result<(Vec<u8>, Vec<u8>), NetError> {
        let has_part = [0, rank].contains(&(network.rank() as usize));
        let mut all = network.all_gather(if has_part { mine } else { &[] })?;
        Ok((std::mem::take(&mut all[0]), std::mem::take(&mut all[rank])))
    };
    let lines: Vec<&str> = source.lines().collect();
    let (ours, theirs) = exchange(&hashes_of_blocks(&lines))?;
    let block = first_difference(&ours, &theirs);
    let of_block = lines.chunks(BLOCK).nth(block).unwrap_or_default();
    let (ours, theirs) = exchange(&hashes_of_lines(of_block))?;
    let line = block * BLOCK + first_difference(&ours, &theirs);
    let (ours, theirs) = exchange(lines.get(line).unwrap_or(&"").as_bytes())?;
    let (text_of_first, text) = excerpts(&String::from_utf8_lossy(&ours), &String::from_utf8_lossy(&theirs));
    Err(JobError::Source { rank: rank as u32, line: line + 1, text, text_of_first })
}

fn hashes_of_blocks(lines: &[&str]) -> Vec<u8> {
    let hash = |block: &[&str]| {
        let mut hasher = Xxh3::new();
        for line in block {
            hasher.update(line.as_bytes());
            hasher.update(b"\n");
        }
        hasher.digest().to_le_bytes()
    };
    lines.chunks(BLOCK).flat_map(hash).collect()
}

fn hashes_of_lines(lines: &[&str]) -> Vec<u8> {
    lines.iter().flat_map(|line| xxh3_64(line.as_bytes()).to_le_bytes()).collect()
}

/// Which of two lists' hashes is the first that differs, or that one of them lacks.
fn first_difference(ours: &[u8], theirs: &[u8]) -> usize {
    const HASH: usize = size_of::<u64>();
    let both = ours.len().min(theirs.len()) / HASH;
    ours.chunks(HASH).zip(theirs.chunks(HASH)).position(|(ours, theirs)| ours != theirs).unwrap_or(both)
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
