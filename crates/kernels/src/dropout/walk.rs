//! Which elements of the whole batch's tensor a tile of a microbatch has: a dropout mask is a function of these.
//!
//! The batch is `blocks` equal blocks of rows, each cut into `parts`; the microbatch's tensor is part `part` of every
//! block. Its row r, with p rows in a part, is row i = r % p of block b = r / p, and row b·p·parts + part·p + i of the
//! whole batch.

/// A tile in the microbatch's tensor, and which part of the batch that is.
pub(super) struct Masked<'a> {
    /// The tile's extents.
    pub extents: &'a [usize],
    /// Where it starts in the microbatch's tensor.
    pub origin: &'a [usize],
    /// The extents of the microbatch's tensor.
    pub global: &'a [usize],
    /// Which microbatch.
    pub part: usize,
    /// Of how many.
    pub parts: usize,
    /// Into how many blocks the batch is cut first.
    pub blocks: usize,
    /// Along which dimension the batch lies: its places are the rows.
    pub axis: usize,
}

/// The index in the whole batch's tensor: that of the tile's element `(i, j, k, l)` is `start + (i, j, k, l) · strides`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Walk {
    pub extents: [usize; 4],
    pub strides: [u64; 4],
    pub start: u64,
}

impl Masked<'_> {
    /// The walk over the tile's elements; `None` if it has more than four dimensions that cannot be joined.
    pub(super) fn walk(&self) -> Option<Walk> {
        let mut start = 0;
        let mut dims: Vec<(usize, u64)> = Vec::new();
        let mut stride = 1;
        for dim in (0..self.extents.len()).rev() {
            if dim == self.axis {
                start += self.rows(stride, &mut dims)? * stride;
            } else {
                start += self.origin[dim] as u64 * stride;
                push(&mut dims, (self.extents[dim], stride));
            }
            let parts = if dim == self.axis { self.parts } else { 1 };
            stride *= (self.global[dim] * parts) as u64;
        }
        let mut walk = Walk { extents: [1; 4], strides: [0; 4], start };
        walk.strides[3] = 1;
        let first = 4usize.checked_sub(dims.len())?;
        for (slot, (extent, stride)) in dims.into_iter().rev().enumerate() {
            (walk.extents[first + slot], walk.strides[first + slot]) = (extent, stride);
        }
        Some(walk)
    }

    /// Adds the dimensions of the rows, each `stride` elements; the tile's first row in the whole batch.
    fn rows(&self, stride: u64, dims: &mut Vec<(usize, u64)>) -> Option<u64> {
        // With one part the blocks lie one after the other, as if they were one.
        let blocks = if self.parts == 1 { 1 } else { self.blocks };
        let [first, count, global] = [self.origin, self.extents, self.global].map(|list| list[self.axis]);
        let per_part = (global / blocks).max(1);
        let per_block = per_part * self.parts;
        if (first + count).div_ceil(per_part) <= first / per_part + 1 {
            push(dims, (count, stride));
        } else if first.is_multiple_of(per_part) && count.is_multiple_of(per_part) {
            push(dims, (per_part, stride));
            push(dims, (count / per_part, per_block as u64 * stride));
        } else {
            return None;
        }
        Some((first / per_part * per_block + self.part * per_part + first % per_part) as u64)
    }
}

/// Adds a dimension around those in `dims`, joined with the outermost if they lie densely.
fn push(dims: &mut Vec<(usize, u64)>, (extent, stride): (usize, u64)) {
    match dims.last_mut() {
        _ if extent == 1 => {}
        Some((inner, step)) if *inner as u64 * *step == stride => *inner *= extent,
        _ => dims.push((extent, stride)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All indices of a walk, in the order of the tile's elements.
    fn indices(walk: &Walk) -> Vec<u64> {
        let [a, b, c, d] = walk.extents;
        let mut all = Vec::new();
        for i in 0..a * b * c * d {
            let at = [i / (b * c * d), i / (c * d) % b, i / d % c, i % d];
            all.push(
                at.iter().zip(walk.strides).fold(walk.start, |sum, (&i, stride)| sum + i as u64 * stride),
            );
        }
        all
    }

    /// By the definition: element by element.
    fn expected(masked: &Masked<'_>) -> Vec<u64> {
        let axis = masked.axis;
        let per_part = masked.global[axis] / masked.blocks;
        let mut all = Vec::new();
        for i in 0..masked.extents.iter().product::<usize>() {
            let (mut rest, mut at) = (i, vec![0; masked.extents.len()]);
            for dim in (0..at.len()).rev() {
                at[dim] = masked.origin[dim] + rest % masked.extents[dim];
                rest /= masked.extents[dim];
            }
            let (block, row) = (at[axis] / per_part, at[axis] % per_part);
            at[axis] = block * per_part * masked.parts + masked.part * per_part + row;
            let mut whole = masked.global.to_vec();
            whole[axis] *= masked.parts;
            let index = at.iter().zip(whole).fold(0, |index, (at, whole)| index * whole + at);
            all.push(index as u64);
        }
        all
    }

    #[test]
    fn every_tile_has_the_indices_of_its_elements() {
        let global = [8, 6, 4];
        let mut tiles = 0;
        for (parts, blocks) in [(1, 1), (1, 4), (2, 1), (2, 2), (4, 2), (4, 4), (2, 8)] {
            for part in 0..parts {
                for degrees in
                    [[1, 1, 1], [2, 1, 1], [4, 1, 1], [8, 1, 1], [1, 3, 1], [2, 2, 1], [1, 1, 2], [4, 2, 4]]
                {
                    for tile in 0..degrees.iter().product::<usize>() {
                        let place = [
                            tile / (degrees[1] * degrees[2]),
                            tile / degrees[2] % degrees[1],
                            tile % degrees[2],
                        ];
                        let extents = [0, 1, 2].map(|dim| global[dim] / degrees[dim]);
                        let origin = [0, 1, 2].map(|dim| extents[dim] * place[dim]);
                        let masked = Masked {
                            extents: &extents,
                            origin: &origin,
                            global: &global,
                            part,
                            parts,
                            blocks,
                            axis: 0,
                        };
                        let walk = masked.walk().expect("blocks and tiles are aligned");
                        assert_eq!(
                            indices(&walk),
                            expected(&masked),
                            "{degrees:?} {tile}: part {part} of {parts} in {blocks}"
                        );
                        tiles += 1;
                    }
                }
            }
        }
        assert!(tiles > 500);
    }

    #[test]
    fn the_batch_may_be_any_dimension() {
        for (axis, global) in [(1, [3, 8, 5]), (2, [3, 2, 8])] {
            for (parts, blocks) in [(1, 1), (2, 1), (2, 2), (4, 4)] {
                for part in 0..parts {
                    let mut extents = global;
                    extents[axis] /= blocks;
                    for block in 0..blocks {
                        let mut origin = [0; 3];
                        origin[axis] = block * extents[axis];
                        let (extents, origin) = (&extents, &origin);
                        let masked = Masked { extents, origin, global: &global, part, parts, blocks, axis };
                        let walk = masked.walk().expect("blocks and tiles are aligned");
                        assert_eq!(
                            indices(&walk),
                            expected(&masked),
                            "{part} of {parts} in {blocks}, axis {axis}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn parts_of_the_batch_share_no_element_and_have_all() {
        let global = [4, 3];
        let mut all: Vec<u64> = (0..3)
            .flat_map(|part| {
                let masked = Masked {
                    extents: &global,
                    origin: &[0, 0],
                    global: &global,
                    part,
                    parts: 3,
                    blocks: 2,
                    axis: 0,
                };
                indices(&masked.walk().expect("two blocks of two rows"))
            })
            .collect();
        all.sort_unstable();
        assert_eq!(all, (0..36).collect::<Vec<_>>());
    }

    #[test]
    fn rows_that_break_blocks_and_too_many_dimensions_are_refused() {
        let across = Masked {
            extents: &[3, 2],
            origin: &[1, 0],
            global: &[4, 2],
            part: 0,
            parts: 2,
            blocks: 2,
            axis: 0,
        };
        assert_eq!(across.walk(), None);
        let tile = [2, 1, 2, 2, 2];
        let many = Masked {
            extents: &tile,
            origin: &[0; 5],
            global: &[4; 5],
            part: 0,
            parts: 1,
            blocks: 1,
            axis: 0,
        };
        assert_eq!(many.walk().map(|walk| walk.extents), Some([2, 2, 2, 2]), "one of them is no dimension");
        let many = Masked { extents: &[2; 5], ..many };
        assert_eq!(many.walk(), None);
        let scalar = Masked { extents: &[], origin: &[], global: &[], part: 0, parts: 1, blocks: 1, axis: 0 };
        assert_eq!(scalar.walk(), Some(Walk { extents: [1; 4], strides: [0, 0, 0, 1], start: 0 }));
    }
}
