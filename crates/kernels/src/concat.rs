//! Concat and split: rows of several tensors side by side, and back.
//!
//! `concat` reads x_0 .. x_k and writes y; row r of y is row r of x_0, then of x_1, and so on. `split` reads x and writes
//! y_0 .. y_k the same way round. An axis other than the last is expressed by `outer` (product of the sizes before
//! it) and `inner` (product of its own size and those after it).

use arrayvec::ArrayVec;
use phalanx_ir::tasks::TaskView;
use phalanx_ir::{Names, TensorType, names};

use crate::call::MAX_ARGS;
use crate::spmd::{Launch, by_work};
use crate::{Call, Kernel, Words};

/// The parameters of `concat`.
#[derive(Clone, Debug, PartialEq)]
pub struct ConcatParams {
    /// Bytes per element.
    pub elem_bytes: usize,
    /// Number of rows.
    pub outer: usize,
    /// Elements per row of each piece.
    pub inner: ArrayVec<usize, MAX_ARGS>,
}

/// The parameters of `split`: those of the concatenation that undoes it.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitParams(pub ConcatParams);

impl Words for ConcatParams {
    fn put(&self, words: &mut Vec<u64>) {
        [self.elem_bytes, self.outer].put(words);
        self.inner.put(words);
    }
    fn take(words: &mut &[u64]) -> Self {
        let [elem_bytes, outer] = Words::take(words);
        ConcatParams { elem_bytes, outer, inner: Words::take(words) }
    }
}

impl Words for SplitParams {
    fn put(&self, words: &mut Vec<u64>) {
        self.0.put(words);
    }
    fn take(words: &mut &[u64]) -> Self {
        SplitParams(Words::take(words))
    }
}

impl ConcatParams {
    /// Pieces of these types, side by side along `axis`.
    fn of<'a>(axis: usize, pieces: impl Iterator<Item = &'a TensorType>) -> Result<Self, String> {
        let mut params = ConcatParams { elem_bytes: 1, outer: 1, inner: ArrayVec::new() };
        for piece in pieces {
            let (before, rest) = piece.shape.dims().split_at(axis);
            (params.elem_bytes, params.outer) = (piece.dtype.bytes(), before.iter().product());
            params
                .inner
                .try_push(rest.iter().product())
                .map_err(|_| format!("it takes {MAX_ARGS} pieces"))?;
        }
        Ok(params)
    }

    /// Bytes of all pieces.
    fn bytes(&self) -> usize {
        self.outer * self.inner.iter().sum::<usize>() * self.elem_bytes
    }

    /// Bytes per row of each piece.
    fn widths(&self) -> ArrayVec<usize, MAX_ARGS> {
        self.inner.iter().map(|inner| inner * self.elem_bytes).collect()
    }
}

/// Row r of y is row r of every x, one after the other.
pub fn concat_reference(y: &mut [u8], xs: &[&[u8]], params: &ConcatParams) {
    let mut at = 0;
    for row in 0..params.outer {
        for (x, width) in xs.iter().zip(params.widths()) {
            y[at..][..width].copy_from_slice(&x[row * width..][..width]);
            at += width;
        }
    }
}

/// Row r of every y, one after the other, is row r of x.
pub fn split_reference(ys: &mut [&mut [u8]], x: &[u8], params: &ConcatParams) {
    let mut at = 0;
    for row in 0..params.outer {
        for (y, width) in ys.iter_mut().zip(params.widths()) {
            y[row * width..][..width].copy_from_slice(&x[at..][..width]);
            at += width;
        }
    }
}

/// The fast version of [`concat_reference`].
pub fn concat(y: &mut [u8], xs: &[&[u8]], params: &ConcatParams, launch: &mut Launch<'_>) {
    let widths = params.widths();
    let width: usize = widths.iter().sum();
    if params.outer * width == 0 {
        return;
    }
    launch.for_each_part(&mut y[..params.outer * width], 64, |first, part| {
        // Where the part starts: row, piece and byte in the piece's row.
        let (mut row, mut piece, mut within) = (first / width, 0, first % width);
        while within >= widths[piece] {
            within -= widths[piece];
            piece += 1;
        }
        let mut rest = part;
        while !rest.is_empty() {
            let (head, next) = rest.split_at_mut((widths[piece] - within).min(rest.len()));
            head.copy_from_slice(&xs[piece][row * widths[piece] + within..][..head.len()]);
            (rest, piece, within) = (next, piece + 1, 0);
            if piece == widths.len() {
                (row, piece) = (row + 1, 0);
            }
        }
    });
}

/// The fast version of [`split_reference`].
pub fn split(ys: &mut [&mut [u8]], x: &[u8], params: &ConcatParams, launch: &mut Launch<'_>) {
    let widths = params.widths();
    let width: usize = widths.iter().sum();
    let mut before = 0;
    for (y, own) in ys.iter_mut().zip(widths) {
        launch.for_each_part(&mut y[..params.outer * own], 64, |first, part| {
            let (mut row, mut within, mut rest) = (first / own.max(1), first % own.max(1), part);
            while !rest.is_empty() {
                let (head, next) = rest.split_at_mut((own - within).min(rest.len()));
                head.copy_from_slice(&x[row * width + before + within..][..head.len()]);
                (row, within, rest) = (row + 1, 0, next);
            }
        });
        before += own;
    }
}

impl Kernel for ConcatParams {
    const NAME: &'static str = "concat";

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        ConcatParams::of(task.attr("axis")?, task.sources().map(|piece| &piece.ty))
    }

    fn arguments(&self) -> Names {
        names!(x[self.inner.len()] => y)
    }

    fn reference(&self, call: &mut Call<'_>) {
        concat_reference(call.write(0), &call.reads, self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        concat(call.write(0), &call.reads, self, &mut call.launch);
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.bytes(), cores)
    }
}

impl Kernel for SplitParams {
    const NAME: &'static str = "split";

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        ConcatParams::of(task.attr("axis")?, task.targets().map(|piece| &piece.ty)).map(SplitParams)
    }

    fn arguments(&self) -> Names {
        names!(x => y[self.0.inner.len()])
    }

    fn reference(&self, call: &mut Call<'_>) {
        let x = call.read(0);
        split_reference(&mut call.writes, x, &self.0);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let x = call.read(0);
        split(&mut call.writes, x, &self.0, &mut call.launch);
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.0.bytes(), cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Team;

    fn params(elem_bytes: usize, outer: usize, inner: &[usize]) -> ConcatParams {
        ConcatParams { elem_bytes, outer, inner: inner.iter().copied().collect() }
    }

    /// Checks both kernels against their references, against each other and against 1 to 4 cores.
    fn check(params: ConcatParams) {
        assert_eq!(ConcatParams::from_words(&params.to_words()), params);
        let xs: Vec<Vec<u8>> = (params.widths().iter().enumerate())
            .map(|(k, width)| (0..params.outer * width).map(|i| (i * 31 + k * 7 + i / 256) as u8).collect())
            .collect();
        let views: Vec<&[u8]> = xs.iter().map(Vec::as_slice).collect();
        let n = xs.iter().map(Vec::len).sum();
        let mut want = vec![0; n];
        concat_reference(&mut want, &views, &params);
        for cores in 1..5 {
            let team = Team::new(cores);
            let mut got = vec![0; n];
            concat(&mut got, &views, &params, &mut Launch::plain(&team));
            assert!(got == want, "concat {params:?} on {cores} cores");
            for fast in [false, true] {
                let mut back: Vec<Vec<u8>> = xs.iter().map(|x| vec![0; x.len()]).collect();
                let mut ys: Vec<&mut [u8]> = back.iter_mut().map(Vec::as_mut_slice).collect();
                if fast {
                    split(&mut ys, &want, &params, &mut Launch::plain(&team))
                } else {
                    split_reference(&mut ys, &want, &params)
                }
                assert!(back == xs, "split {params:?} on {cores} cores");
            }
        }
    }

    #[test]
    fn fast_equals_reference_and_split_undoes_concat() {
        for elem_bytes in [1, 2, 4, 8] {
            check(params(elem_bytes, 1, &[5]));
            check(params(elem_bytes, 3, &[1, 2, 7]));
            check(params(elem_bytes, 5, &[16, 0, 17]));
            check(params(elem_bytes, 0, &[2, 3]));
            check(params(elem_bytes, 3, &[0, 0]));
            check(params(elem_bytes, 100, &[33, 100, 64]));
            check(params(elem_bytes, 1, &[20_000, 3, 7000]));
            check(params(elem_bytes, 2, &[1; MAX_ARGS]));
        }
    }

    #[test]
    fn the_meaning_is_rows_side_by_side() {
        let mut y = [0; 10];
        concat_reference(&mut y, &[&[1, 2, 3, 4], &[5, 6, 7, 8, 9, 10]], &params(1, 2, &[2, 3]));
        assert_eq!(y, [1, 2, 5, 6, 7, 3, 4, 8, 9, 10]);
    }
}
