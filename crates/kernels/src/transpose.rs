//! Transpose: reorders the dimensions of a tensor of 1, 2, 4 or 8 byte elements. Reads x, writes y.
//!
//! Where the innermost dimension stays innermost, whole rows are copied. Otherwise tiles of 16 by 16 elements are
//! turned in registers, so that both sides are touched in runs of 16.

use arrayvec::ArrayVec;
use bytemuck::Pod;
use phalanx_ir::tasks::TaskView;

use crate::grid::{Dims, Grid, RANK, contiguous, padded};
use crate::spmd::{Launch, Parts, by_work};
use crate::{Kernel, dispatch, params, signature};

/// Side of a tile in elements.
const TILE: usize = 16;

/// Output rows written together: four tiles, so that a page of the input serves several of its lines at once.
const STRIP: usize = 4 * TILE;

params! {
/// The parameters of `transpose`.
pub struct TransposeParams {
    /// Bytes per element: 1, 2, 4 or 8.
    pub elem_bytes: usize,
    /// The shape of x, padded with leading ones.
    pub dims: Dims,
    /// Output dimension i is input dimension `perm[i]`.
    pub perm: Dims,
}}

impl TransposeParams {
    /// The transposition of a tensor of `shape` whose output dimension i is input dimension `perm[i]`.
    pub fn new(elem_bytes: usize, shape: &[usize], perm: &[usize]) -> Self {
        let lead = RANK - perm.len();
        let perm = std::array::from_fn(|i| if i < lead { i } else { perm[i - lead] + lead });
        TransposeParams { elem_bytes, dims: padded(shape), perm }
    }

    fn grid(self) -> Grid<1> {
        let strides = contiguous(self.dims);
        Grid::new(self.perm.map(|from| self.dims[from]), [self.perm.map(|from| strides[from])])
    }
}

/// `y[i_perm[0], i_perm[1], ..] = x[i_0, i_1, ..]`.
pub fn transpose_reference(y: &mut [u8], x: &[u8], params: TransposeParams) {
    let (grid, bytes) = (params.grid(), params.elem_bytes);
    for i in 0..grid.len() {
        let [from] = grid.offsets(i);
        y[i * bytes..][..bytes].copy_from_slice(&x[from * bytes..][..bytes]);
    }
}

/// The fast version of [`transpose_reference`].
pub fn transpose(y: &mut [u8], x: &[u8], params: TransposeParams, launch: &mut Launch<'_>) {
    match params.elem_bytes {
        1 => transpose_elements(y, x, params.grid(), launch),
        2 => transpose_elements::<u16>(
            bytemuck::cast_slice_mut(y),
            bytemuck::cast_slice(x),
            params.grid(),
            launch,
        ),
        4 => transpose_elements::<u32>(
            bytemuck::cast_slice_mut(y),
            bytemuck::cast_slice(x),
            params.grid(),
            launch,
        ),
        8 => transpose_elements::<u64>(
            bytemuck::cast_slice_mut(y),
            bytemuck::cast_slice(x),
            params.grid(),
            launch,
        ),
        bytes => panic!("transpose takes elements of 1, 2, 4 or 8 bytes, not {bytes}"),
    }
}

fn transpose_elements<T: Element>(y: &mut [T], x: &[T], grid: Grid<1>, launch: &mut Launch<'_>) {
    let y = &mut y[..grid.len()];
    if y.is_empty() {
        return;
    }
    // The input's innermost dimension: if merging left it nowhere, there is a single element.
    match (0..RANK).find(|&i| grid.strides(0)[i] == 1) {
        Some(turned) if turned != RANK - 1 => turn(y, x, grid, turned, launch),
        _ => copy_rows(y, x, grid, launch),
    }
}

fn copy_rows<T: Element>(y: &mut [T], x: &[T], grid: Grid<1>, launch: &mut Launch<'_>) {
    launch.for_each_part(y, TILE, |first, y| {
        let len = y.len();
        grid.for_each_piece(first, len, |part, [at]| {
            let y = &mut y[part];
            y.copy_from_slice(&x[at..][..y.len()]);
        });
    });
}

/// Transposes where `turned`, the innermost dimension of the input, is not the innermost of the output.
fn turn<T: Element>(y: &mut [T], x: &[T], grid: Grid<1>, turned: usize, launch: &mut Launch<'_>) {
    let dims = grid.dims();
    let (row, stride, out) = (dims[RANK - 1], grid.strides(0)[RANK - 1], contiguous(dims));
    let mut outer = dims;
    (outer[turned], outer[RANK - 1]) = (1, 1);
    let outer = Grid::new(outer, [out, grid.strides(0)]);
    // Narrow strips where wide ones would leave blocks idle.
    let wide = outer.len() * dims[turned] >= 2 * STRIP * launch.blocks();
    let height = if wide { STRIP } else { TILE };
    let strips = dims[turned].div_ceil(height);
    let parts = Parts::new(y);
    let strip = |index: usize| {
        let ([to, from], first) = (outer.offsets(index / strips), index % strips * height);
        let last = (first + height).min(dims[turned]);
        let rows: ArrayVec<&mut [T], STRIP> = (first..last)
            .map(|i| to + i * out[turned])
            // SAFETY: a row is fixed by the outer place and i, and every such pair belongs to one index.
            .map(|start| unsafe { parts.part(start..start + row) })
            .collect();
        T::turn_strip(rows, &x[from + first..], stride);
    };
    let tasks = outer.len() * strips;
    launch.run(|block| block.share(tasks).for_each(strip));
}

/// An element width, with the strip function compiled for every instruction set.
trait Element: Pod + Send + Sync {
    /// `rows[j][i] = x[i · stride + j]`.
    fn turn_strip(rows: ArrayVec<&mut [Self], STRIP>, x: &[Self], stride: usize);
}

macro_rules! elements {
    ($($type:ident $strip:ident),*) => {$(
        impl Element for $type {
            fn turn_strip(rows: ArrayVec<&mut [Self], STRIP>, x: &[Self], stride: usize) {
                $strip(rows, x, stride);
            }
        }

        dispatch! {
            fn $strip(rows: ArrayVec<&mut [$type], STRIP>, x: &[$type], stride: usize) {
                strip(rows, x, stride);
            }
        }
    )*};
}

elements!(u8 strip_u8, u16 strip_u16, u32 strip_u32, u64 strip_u64);

#[inline(always)]
fn strip<T: Pod>(mut rows: ArrayVec<&mut [T], STRIP>, x: &[T], stride: usize) {
    let (len, height) = (rows[0].len(), rows.len() - rows.len() % TILE);
    let full = len - len % TILE;
    for start in (0..full).step_by(TILE) {
        for (j, rows) in rows.chunks_exact_mut(TILE).enumerate() {
            let mut tile = [T::zeroed(); TILE * TILE];
            for (i, line) in tile.chunks_exact_mut(TILE).enumerate() {
                line.copy_from_slice(&x[(start + i) * stride + j * TILE..][..TILE]);
            }
            turn_tile(&mut tile);
            for (row, line) in rows.iter_mut().zip(tile.chunks_exact(TILE)) {
                row[start..start + TILE].copy_from_slice(line);
            }
        }
    }
    for (j, row) in rows.iter_mut().enumerate() {
        let done = if j < height { full } else { 0 };
        for (i, y) in row.iter_mut().enumerate().skip(done) {
            *y = x[i * stride + j];
        }
    }
}

/// Transposes a tile by four perfect shuffles of its halves, each a rotation of the eight index bits by one.
#[inline(always)]
fn turn_tile<T: Pod>(tile: &mut [T; TILE * TILE]) {
    for _ in 0..TILE.ilog2() {
        let before = *tile;
        let (upper, lower) = before.split_at(TILE * TILE / 2);
        for (pair, (&a, &b)) in tile.chunks_exact_mut(2).zip(upper.iter().zip(lower)) {
            (pair[0], pair[1]) = (a, b);
        }
    }
}

impl Kernel for TransposeParams {
    signature!("transpose": x => y by transpose_reference, transpose);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let (x, perm): (_, Vec<usize>) = (&task.source(0)?.ty, task.attr("perm")?);
        Ok(TransposeParams::new(x.dtype.bytes(), x.shape.dims(), &perm))
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.dims.iter().product(), cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Case, values};
    use crate::{Team, Words};

    /// Runs fast and reference on the elements 0, 1, 2, .. truncated to each width.
    fn check(shape: &[usize], perm: &[usize]) {
        let n: usize = shape.iter().product();
        for bytes in [1, 2, 4, 8] {
            let params = TransposeParams::new(bytes, shape, perm);
            let words: Vec<u64> =
                (0..(n * bytes).div_ceil(8) as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
            let x = &bytemuck::cast_slice::<u64, u8>(&words)[..n * bytes];
            let (mut got, mut want) = (vec![0u64; words.len()], vec![0u64; words.len()]);
            transpose_reference(&mut bytemuck::cast_slice_mut(&mut want)[..n * bytes], x, params);
            for cores in 1..5 {
                transpose(
                    &mut bytemuck::cast_slice_mut(&mut got)[..n * bytes],
                    x,
                    params,
                    &mut Launch::plain(&Team::new(cores)),
                );
                assert!(got == want, "{bytes} bytes, {shape:?} by {perm:?}, {cores} cores");
                got.fill(0);
            }
        }
    }

    #[test]
    fn fast_equals_reference() {
        for size in [1, 2, 3, 5, 7, 15, 16, 17, 33, 100] {
            check(&[size, 17], &[1, 0]);
            check(&[32, size], &[1, 0]);
            check(&[2, size, 3, 16], &[0, 2, 1, 3]);
            check(&[3, 16, size], &[0, 2, 1]);
            check(&[3, 5, size], &[2, 1, 0]);
            check(&[size, 3, 2], &[1, 2, 0]);
        }
        check(&[2, 3, 4, 5, 6, 7], &[5, 3, 1, 4, 2, 0]);
        check(&[4, 4], &[0, 1]);
        check(&[0, 4], &[1, 0]);
        check(&[], &[]);
        check(&[200, 130], &[1, 0]);
        check(&[4, 65, 3, 64], &[0, 2, 1, 3]);
    }

    #[test]
    fn bits_do_not_depend_on_cores_or_instruction_set() {
        for (shape, perm) in [([1, 150, 130], [0, 2, 1]), ([30, 20, 70], [2, 1, 0])] {
            let n = shape.iter().product();
            let params = TransposeParams::new(4, &shape, &perm);
            let case = Case::new("transpose", params.to_words()).read(values(n, 1)).write(vec![0.0; n]);
            case.check(0.0);
            case.check_bits();
        }
    }

    #[test]
    fn the_meaning_is_that_of_plain_indices() {
        let (mut y, x): ([u8; 24], [u8; 24]) = ([0; 24], std::array::from_fn(|i| i as u8));
        transpose_reference(&mut y, &x, TransposeParams::new(1, &[2, 3, 4], &[2, 0, 1]));
        for (i, &y) in y.iter().enumerate() {
            let (c, a, b) = (i / 6, i / 3 % 2, i % 3);
            assert_eq!(y as usize, a * 12 + b * 4 + c);
        }
    }
}
