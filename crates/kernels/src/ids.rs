//! Integer inputs (token ids, labels) of either width.

use std::ops::Range;

use crate::Call;

/// A slice of ids or labels.
#[derive(Clone, Copy, Debug)]
pub enum Ids<'a> {
    /// 32-bit integers.
    I32(&'a [i32]),
    /// 64-bit integers.
    I64(&'a [i64]),
}

impl<'a> Ids<'a> {
    /// Argument `index` of the reads; `narrow` says 32-bit.
    pub fn read(call: &Call<'a>, index: usize, narrow: bool) -> Ids<'a> {
        if narrow { Ids::I32(call.read(index)) } else { Ids::I64(call.read(index)) }
    }

    /// The integers at positions `range`.
    pub fn slice(self, range: Range<usize>) -> Ids<'a> {
        match self {
            Ids::I32(ids) => Ids::I32(&ids[range]),
            Ids::I64(ids) => Ids::I64(&ids[range]),
        }
    }

    /// The integer at position `i`.
    #[inline(always)]
    pub fn get(self, i: usize) -> i64 {
        match self {
            Ids::I32(ids) => i64::from(ids[i]),
            Ids::I64(ids) => ids[i],
        }
    }

    /// The integer at position `i` as a row number below `rows`.
    #[inline(always)]
    pub fn row(self, i: usize, rows: usize) -> usize {
        let id = self.get(i);
        assert!((0..rows as i64).contains(&id), "id {id} at position {i} is not in 0..{rows}");
        id as usize
    }

    /// As [`Ids::place`], and `None` for the integer `padding` too.
    #[inline(always)]
    pub fn place_unless(self, i: usize, first: usize, rows: usize, padding: Option<i64>) -> Option<usize> {
        self.place(i, first, rows).filter(|_| Some(self.get(i)) != padding)
    }

    /// The integer at position `i` as a row of a tile of `rows` rows whose first is row `first` of the whole; `None`
    /// if the tile does not have it.
    #[inline(always)]
    pub fn place(self, i: usize, first: usize, rows: usize) -> Option<usize> {
        usize::try_from(self.get(i)).ok()?.checked_sub(first).filter(|&row| row < rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_has_only_its_own_rows() {
        let ids = [i64::MIN, -1, 0, 3, 4, 6, 7, i64::MAX];
        let places = |ids: Ids<'_>, n: usize| (0..n).map(|i| ids.place(i, 4, 3)).collect::<Vec<_>>();
        assert_eq!(places(Ids::I64(&ids), 8), [None, None, None, None, Some(0), Some(2), None, None]);
        assert_eq!(places(Ids::I32(&[-1, 5, 7]), 3), [None, Some(1), None]);
    }
}
