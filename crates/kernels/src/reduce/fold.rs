//! The walk of a reduction: which elements belong to an output, and in which order they are folded.
//!
//! Neighboring dimensions of the same fate are merged; dimensions of size one keep apart what they separate, so the
//! order does not change when a plan leaves one device a single slice of a kept dimension.

use arrayvec::ArrayVec;

use crate::grid::{Dims, RANK, contiguous};
use crate::rows::LANES;

/// Columns folded at once where the innermost dimension is kept.
const COLUMNS: usize = 256;

/// The most levels a tree of leaves can have: half a million leaves.
const LEVELS: usize = 20;

/// A loop: how often, and how far each time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Loop {
    count: usize,
    stride: usize,
}

const ONCE: Loop = Loop { count: 1, stride: 0 };

/// The loops of a reduction.
#[derive(Debug)]
pub(super) struct Folding {
    leaves: usize,
    /// From one leaf to the next.
    leaf_stride: usize,
    /// Over the reduced elements of a leaf, outermost first; runs and columns are inside.
    inside: [Loop; 3],
    /// Contiguous reduced elements, if the innermost dimension is reduced.
    run: Option<usize>,
    /// Contiguous outputs; 1 if the innermost dimension is reduced.
    columns: usize,
    /// Over the other outputs, outermost first.
    outside: [Loop; 3],
}

impl Folding {
    pub(super) fn new(leaves: usize, dims: Dims, reduced: [bool; RANK]) -> Self {
        let (mut inside, mut outside) = (merged(dims, reduced, true), merged(dims, reduced, false));
        let axis = inside.first().map_or(1, |first| first.count);
        assert!(
            leaves.is_power_of_two() && axis % leaves == 0,
            "{leaves} leaves do not divide {axis} elements"
        );
        let (mut run, mut columns) = (None, 1);
        if reduced[RANK - 1] {
            run = inside.pop().map(|last| last.count);
        } else {
            columns = outside.pop().map_or(1, |last| last.count);
        }
        let mut inside = padded(&inside);
        let leaf_stride = match &mut run {
            // A single run is itself what the leaves divide.
            Some(run) if inside == [ONCE; 3] => {
                *run /= leaves;
                *run
            }
            _ => {
                inside[0].count /= leaves;
                inside[0].count * inside[0].stride
            }
        };
        Folding { leaves, leaf_stride, inside, run, columns, outside: padded(&outside) }
    }

    /// `y[i] = finish(first + i, fold of term(first + i, x) by op)` for the outputs of one part.
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    pub(super) fn run(
        &self,
        y: &mut [f32],
        x: &[f32],
        first: usize,
        start: f32,
        term: impl Fn(usize, f32) -> f32 + Copy,
        op: impl Fn(f32, f32) -> f32 + Copy,
        finish: impl Fn(usize, f32) -> f32 + Copy,
    ) {
        let mut done = 0;
        while done < y.len() {
            let at = first + done;
            let column = at % self.columns;
            let width = COLUMNS.min(self.columns - column).min(y.len() - done);
            let base = self.outside_offset(at / self.columns) + column;
            let y = &mut y[done..done + width];
            if let Some(run) = self.run {
                y[0] = self.fold_runs(x, base, run, start, |x| term(at, x), op);
            } else {
                let sums = self.fold_columns(x, base, width, start, |i, x| term(at + i, x), op);
                y.copy_from_slice(&sums[..width]);
            }
            y.iter_mut().enumerate().for_each(|(i, y)| *y = finish(at + i, *y));
            done += width;
        }
    }

    /// Where the elements of output row `index` begin.
    #[inline(always)]
    fn outside_offset(&self, index: usize) -> usize {
        let (mut rest, mut offset) = (index, 0);
        for level in self.outside.iter().rev() {
            offset += rest % level.count * level.stride;
            rest /= level.count;
        }
        offset
    }

    #[inline(always)]
    fn fold_runs(
        &self,
        x: &[f32],
        base: usize,
        run: usize,
        start: f32,
        term: impl Fn(f32) -> f32 + Copy,
        op: impl Fn(f32, f32) -> f32 + Copy,
    ) -> f32 {
        let leaf = |leaf: usize| {
            let mut lanes = [start; LANES];
            self.for_each_inside(base + leaf * self.leaf_stride, |at| {
                let (chunks, tail) = x[at..at + run].as_chunks::<LANES>();
                for chunk in chunks {
                    for (lane, &x) in lanes.iter_mut().zip(chunk) {
                        *lane = op(*lane, term(x));
                    }
                }
                for (lane, &x) in lanes.iter_mut().zip(tail) {
                    *lane = op(*lane, term(x));
                }
            });
            fold_lanes(lanes, op)
        };
        tree(self.leaves, leaf, op)
    }

    #[inline(always)]
    fn fold_columns(
        &self,
        x: &[f32],
        base: usize,
        width: usize,
        start: f32,
        term: impl Fn(usize, f32) -> f32 + Copy,
        op: impl Fn(f32, f32) -> f32 + Copy,
    ) -> [f32; COLUMNS] {
        let leaf = |leaf: usize| {
            let mut sums = [start; COLUMNS];
            self.for_each_inside(base + leaf * self.leaf_stride, |at| {
                for (i, (sum, &x)) in sums.iter_mut().zip(&x[at..at + width]).enumerate() {
                    *sum = op(*sum, term(i, x));
                }
            });
            sums
        };
        tree(self.leaves, leaf, |mut a, b| {
            a.iter_mut().zip(b).for_each(|(a, b)| *a = op(*a, b));
            a
        })
    }

    /// Calls `body` with the offset of every run or row of columns of one leaf, in ascending order.
    #[inline(always)]
    fn for_each_inside(&self, base: usize, mut body: impl FnMut(usize)) {
        let [a, b, c] = self.inside;
        for i in 0..a.count {
            for j in 0..b.count {
                for k in 0..c.count {
                    body(base + i * a.stride + j * b.stride + k * c.stride);
                }
            }
        }
    }
}

/// The loops over the dimensions whose flag is `wanted`, neighbors merged.
fn merged(dims: Dims, reduced: [bool; RANK], wanted: bool) -> ArrayVec<Loop, RANK> {
    let strides = contiguous(dims);
    let mut loops: ArrayVec<Loop, RANK> = ArrayVec::new();
    for i in (0..RANK).filter(|&i| reduced[i] == wanted) {
        match loops.last_mut() {
            Some(last) if i > 0 && reduced[i - 1] == wanted => {
                *last = Loop { count: last.count * dims[i], stride: strides[i] };
            }
            _ => loops.push(Loop { count: dims[i], stride: strides[i] }),
        }
    }
    loops
}

/// Three loops; six dimensions of alternating fate make no more of one kind.
fn padded(loops: &[Loop]) -> [Loop; 3] {
    std::array::from_fn(|i| loops.get(i).copied().unwrap_or(ONCE))
}

/// The balanced binary tree over `leaves` values, a power of two, in which at most one subtree per level waits.
#[inline(always)]
fn tree<A>(leaves: usize, leaf: impl Fn(usize) -> A, op: impl Fn(A, A) -> A) -> A {
    let mut waiting: ArrayVec<A, LEVELS> = ArrayVec::new();
    for i in 0..leaves {
        let mut node = leaf(i);
        // Leaf i completes as many subtrees as i has trailing ones.
        for _ in 0..i.trailing_ones() {
            node = op(waiting.pop().expect("a left subtree precedes its right one"), node);
        }
        waiting.push(node);
    }
    waiting.pop().expect("a tree has at least one leaf")
}

#[inline(always)]
fn fold_lanes(mut lanes: [f32; LANES], op: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = op(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}
