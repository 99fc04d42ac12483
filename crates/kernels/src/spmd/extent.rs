//! How much of a tile is valid: fixed storage, of which the last tile of a tensor fills only a part.
//!
//! A wrong extent is a silent error: stale rows are used or good ones lost. So what is not known before the run stays
//! [`Valid::Unknown`] and is computed in the run by [`window`]; nothing is ever taken for full.

/// Valid rows and columns of a tile, whose rows lie one after the other, `columns` elements each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Valid rows.
    pub rows: usize,
    /// Valid elements of each row.
    pub columns: usize,
}

impl Extent {
    /// An extent of `rows` rows of `columns` elements.
    pub fn new(rows: usize, columns: usize) -> Self {
        Extent { rows, columns }
    }

    /// How many elements are valid; `None` if the number does not fit.
    pub fn elements(self) -> Option<usize> {
        self.rows.checked_mul(self.columns)
    }
}

/// A size or an offset as far as it is known before the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Valid {
    /// A constant.
    Known(usize),
    /// Known only in the run.
    Unknown,
}

impl Valid {
    /// The valid extent, in one dimension, of a window of `size` elements at `offset` of a tile of which `self` are
    /// valid.
    pub fn window(self, offset: Valid, size: usize) -> Valid {
        match (self, offset) {
            (Valid::Known(valid), Valid::Known(offset)) => Valid::Known(window(valid, offset, size)),
            _ => Valid::Unknown,
        }
    }

    /// The constant, or what `in_the_run` computes.
    pub fn or_else(self, in_the_run: impl FnOnce() -> usize) -> usize {
        match self {
            Valid::Known(valid) => valid,
            Valid::Unknown => in_the_run(),
        }
    }
}

/// How much of a window of `size` elements at `offset` is valid if the first `valid` elements of its parent are.
pub fn window(valid: usize, offset: usize, size: usize) -> usize {
    valid.saturating_sub(offset).min(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_what_its_parent_has_left_of_it() {
        let rows = Valid::Known(40);
        let cases = [(0, 32, 32), (32, 32, 8), (48, 16, 0), (0, 64, 40)];
        for (offset, size, valid) in cases {
            assert_eq!(
                rows.window(Valid::Known(offset), size),
                Valid::Known(valid),
                "{size} rows from {offset}"
            );
        }
    }

    #[test]
    fn what_is_not_known_is_computed_in_the_run() {
        assert_eq!(Valid::Unknown.window(Valid::Known(0), 32), Valid::Unknown);
        let extent = Valid::Known(40).window(Valid::Unknown, 32);
        assert_eq!(extent, Valid::Unknown);
        for (offset, valid) in [(0, 32), (20, 20), (39, 1), (40, 0), (63, 0)] {
            assert_eq!(extent.or_else(|| window(40, offset, 32)), valid, "from {offset}");
        }
        assert_eq!(Valid::Known(5).or_else(|| window(40, 0, 32)), 5, "what the author states holds");
    }
}
