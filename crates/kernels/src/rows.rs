//! Row arithmetic shared by the kernels that reduce: sums in 16 fixed lanes, and trees over leaves.
//!
//! The order of every sum here depends on lengths alone, so all instruction sets and teams give the same bits.

use std::ops::Range;

use phalanx_ir::Shape;

pub mod blocks;

pub use blocks::{Blocks, Rule};

/// How many partial sums a row reduction keeps.
pub const LANES: usize = 16;

/// Sums `f` over the elements of `rows`, all of one length.
///
/// Element `i` goes to lane `i % 16` in ascending order; the lanes are added as a balanced tree.
#[inline(always)]
pub fn sum<const N: usize>(rows: [&[f32]; N], f: impl Fn([f32; N]) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let n = rows[0].len();
    let rows = rows.map(|row| &row[..n]);
    let full = n - n % LANES;
    for start in (0..full).step_by(LANES) {
        let chunks = rows.map(|row| lane_chunk(row, start));
        for lane in 0..LANES {
            lanes[lane] += f(chunks.map(|chunk| chunk[lane]));
        }
    }
    // A copy, because the tail indexes it at run time and the loop above keeps its lanes in registers.
    let mut ends = lanes;
    for (lane, i) in ends.iter_mut().zip(full..n) {
        *lane += f(rows.map(|row| row[i]));
    }
    sum_lanes(&ends)
}

/// The 16 elements of `row` from `start`.
#[inline(always)]
fn lane_chunk(row: &[f32], start: usize) -> &[f32; LANES] {
    row[start..].first_chunk().expect("a full chunk lies inside its row")
}

/// The largest element of `row`, or minus infinity if it is empty; not-a-number elements are passed over.
#[inline(always)]
pub fn max(row: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, tail) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    let best = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    tail.iter().copied().fold(best, f32::max)
}

/// The balanced tree over 16 lanes.
///
/// Not inlined: lanes that pass through memory stay whole vectors in the loops before it.
#[inline(never)]
pub fn sum_lanes(lanes: &[f32; LANES]) -> f32 {
    let mut lanes = *lanes;
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Adds the `leaves` rows of `partials`, each `cols` long, as a balanced tree into its first row.
pub fn tree_rows(partials: &mut [f32], leaves: usize, cols: usize) {
    assert!(leaves.is_power_of_two(), "a tree has a power of two of leaves, not {leaves}");
    let mut stride = 1;
    while stride < leaves {
        for left in (0..leaves).step_by(2 * stride) {
            let (before, after) = partials.split_at_mut((left + stride) * cols);
            add_to(&mut before[left * cols..][..cols], &after[..cols]);
        }
        stride *= 2;
    }
}

/// The tree sum of values that come one by one, a power of two of them.
///
/// Values are pushed rather than asked for: a closure that computes them might not be inlined, and so not be compiled for
/// the instruction set of its caller.
pub struct Tree {
    /// Element `k` is the sum of a finished subtree of 2^k values that waits for its right neighbor.
    waiting: [f32; usize::BITS as usize],
    count: usize,
}

impl Tree {
    /// A tree without values.
    #[inline(always)]
    #[allow(clippy::new_without_default, reason = "a tree without values has no sum")]
    pub fn new() -> Tree {
        Tree { waiting: [0.0; usize::BITS as usize], count: 0 }
    }

    /// Adds the next value.
    #[inline(always)]
    pub fn push(&mut self, value: f32) {
        let level = self.count.trailing_ones() as usize;
        self.waiting[level] = self.waiting[..level].iter().fold(value, |right, left| left + right);
        self.count += 1;
    }

    /// The sum of all values.
    #[inline(always)]
    pub fn sum(&self) -> f32 {
        assert!(self.count.is_power_of_two(), "a tree has a power of two of leaves, not {}", self.count);
        self.waiting[self.count.trailing_zeros() as usize]
    }
}

/// The tree sum of one column of `partials`, computed by recursion: the meaning of [`tree_rows`].
pub fn tree_reference(leaves: usize, leaf: &dyn Fn(usize) -> f32) -> f32 {
    fn node(first: usize, count: usize, leaf: &dyn Fn(usize) -> f32) -> f32 {
        match count {
            1 => leaf(first),
            _ => node(first, count / 2, leaf) + node(first + count / 2, count / 2, leaf),
        }
    }
    node(0, leaves, leaf)
}

crate::dispatch! {
    /// Adds `values` to `out`, element by element.
    pub fn add_to(out: &mut [f32], values: &[f32]) {
        for (out, value) in out.iter_mut().zip(values) {
            *out += value;
        }
    }
}

/// Writes `values` to `out`, or adds them if `accumulate`.
pub fn store(out: &mut [f32], values: &[f32], accumulate: bool) {
    if accumulate {
        add_to(out, values);
    } else {
        out.copy_from_slice(values);
    }
}

/// The elements of a range of groups of `size` elements each.
#[inline(always)]
pub fn times(groups: Range<usize>, size: usize) -> Range<usize> {
    groups.start * size..groups.end * size
}

/// The outermost extent of `shape` and how many rows there are for each of its places, of `rows` in all.
pub fn outer_and_time(shape: &Shape, rows: usize) -> (usize, usize) {
    let outer = if rows == 1 { 1 } else { shape.dims().first().copied().unwrap_or(1) };
    (outer, rows / outer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_put_every_element_in_one_lane() {
        for n in [0, 1, 2, 15, 16, 17, 33, 100] {
            let row: Vec<f32> = (0..n).map(|i| i as f32).collect();
            assert_eq!(sum([&row], |[a]| a), row.iter().sum::<f32>());
            assert_eq!(sum([&row, &row], |[a, b]| a * b), row.iter().map(|x| x * x).sum::<f32>());
        }
    }

    #[test]
    fn max_skips_nothing_but_nan() {
        for n in [1, 2, 15, 16, 17, 33] {
            for place in 0..n {
                let mut row = vec![-5.0; n];
                row[place] = -1.0;
                assert_eq!(max(&row), -1.0);
            }
        }
        assert_eq!(max(&[]), f32::NEG_INFINITY);
        assert_eq!(max(&[f32::NAN, 2.0]), 2.0);
    }

    #[test]
    fn trees_add_neighbors_first() {
        for leaves in [1, 2, 4, 8, 32] {
            let mut partials: Vec<f32> = (0..leaves * 3).map(|i| 1.0 / (i + 1) as f32).collect();
            let want = [0, 1, 2].map(|col| tree_reference(leaves, &|leaf| partials[leaf * 3 + col]));
            let trees = [0, 1, 2].map(|col| {
                let mut tree = Tree::new();
                partials[col..].iter().step_by(3).for_each(|&value| tree.push(value));
                tree.sum()
            });
            tree_rows(&mut partials, leaves, 3);
            assert_eq!(partials[..3], want);
            assert_eq!(trees, want);
        }
    }
}
