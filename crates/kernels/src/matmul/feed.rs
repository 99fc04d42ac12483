//! Fetching memory into the second-level cache a few lines at a time, while micro kernels compute.

use super::micro::{Fetch, LINE};

/// A region that later packing or micro kernels read: `outers` runs of `inners` pairs of cache lines.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    /// The first element.
    pub start: *const f32,
    /// Distance between pairs of a run.
    pub inner_step: usize,
    /// Pairs in a run.
    pub inners: usize,
    /// Distance between runs.
    pub outer_step: usize,
    /// How many runs.
    pub outers: usize,
}

impl Region {
    /// No memory.
    pub const NOTHING: Region =
        Region { start: std::ptr::null(), inner_step: 0, inners: 0, outer_step: 0, outers: 0 };

    /// `rows` of `columns` adjacent elements, `row_step` apart, row after row.
    pub fn by_rows(start: *const f32, rows: usize, columns: usize, row_step: usize) -> Region {
        let pair = 2 * LINE;
        Region { start, inner_step: pair, inners: columns.div_ceil(pair), outer_step: row_step, outers: rows }
    }

    /// The same elements, but all rows' first pairs of lines first.
    pub fn by_columns(start: *const f32, rows: usize, columns: usize, row_step: usize) -> Region {
        let pair = 2 * LINE;
        Region { start, inner_step: row_step, inners: rows, outer_step: pair, outers: columns.div_ceil(pair) }
    }
}

/// A region on its way into the cache, in equal shares for a known number of micro kernel calls.
pub(super) struct Feed {
    region: Region,
    share: usize,
    inner: usize,
    outer: usize,
}

impl Feed {
    /// Spreads `region` over `calls`.
    pub fn new(region: Region, calls: usize) -> Feed {
        Feed { region, share: (region.inners * region.outers).div_ceil(calls), inner: 0, outer: 0 }
    }

    /// The share of the next call.
    pub fn next(&mut self) -> Fetch {
        let Region { start, inner_step, inners, outer_step, outers } = self.region;
        if self.outer >= outers {
            return Fetch::NOTHING;
        }
        let at = start.wrapping_add(self.outer * outer_step + self.inner * inner_step);
        self.inner += self.share;
        while self.inner >= inners && self.outer < outers {
            self.inner -= inners;
            self.outer += 1;
        }
        Fetch { at, step: inner_step, pairs: self.share }
    }
}
