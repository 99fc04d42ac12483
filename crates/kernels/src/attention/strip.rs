//! How queries and keys are cut: into blocks, and blocks into strips whose masked surroundings are skipped.

use super::Attention;
use super::product::{LANES, ROWS};

/// Queries of a block.
pub(super) const QUERIES: usize = 64;
/// Keys of a block.
pub(super) const KEYS: usize = 64;
/// Queries or keys of a strip.
pub(super) const STRIP: usize = 16;

/// The part of one block of keys that a strip of queries sees.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strip {
    /// Its first query, counted in the block.
    pub start: usize,
    /// Its queries, with padding to whole tiles.
    pub rows: usize,
    /// Keys that any of its queries sees, with padding to whole vectors.
    pub cols: usize,
    /// How many keys of the block, counted from the first, each query sees; zero for padding.
    pub visible: [usize; STRIP],
}

impl Attention {
    /// The last query of the block from `first`.
    pub(super) fn last_query(self, first: usize) -> usize {
        (first + QUERIES).min(self.q_time) - 1
    }

    /// The strips of the queries from `first` to `last`, one block, against one block of keys.
    pub(super) fn strips(self, first: usize, last: usize, key_block: usize) -> impl Iterator<Item = Strip> {
        (0..=last - first).step_by(STRIP).map(move |start| {
            let present = STRIP.min(last - first - start + 1);
            let seen = |row: usize| {
                let seen = self.visible(first + start + row);
                seen.saturating_sub(key_block * KEYS).min(KEYS)
            };
            Strip {
                start,
                rows: present.next_multiple_of(ROWS),
                cols: seen(present - 1).next_multiple_of(LANES),
                visible: std::array::from_fn(|row| if row < present { seen(row) } else { 0 }),
            }
        })
    }
}
