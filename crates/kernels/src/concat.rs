//! Concat and split: rows of several tensors side by side, and back.
//!
//! `concat` reads x_0 .. x_k and writes y; row r of y is row r of x_0, then of x_1, and so on. `split` reads x and writes
//! y_0 .. y_k the same way round. An axis other than the last is expressed by `outer` (product of the sizes before
//! it) and `inner` (product of its own size and those after it).

use arrayvec::ArrayVec;
use phalanx_ir::names;

use crate::call::{Call, Kernel, MAX_ARGS, no_workspace};
use crate::spmd::{Launch, by_work};

/// The parameters of `concat` and `split`.
#[derive(Clone, Debug, PartialEq)]
pub struct ConcatParams {
    /// Bytes per element.
    pub elem_bytes: usize,
    /// Number of rows.
    pub outer: usize,
    /// Elements per row of each piece.
    pub inner: ArrayVec<usize, MAX_ARGS>,
}

impl ConcatParams {
    /// The parameter words of these settings.
    pub fn to_words(&self) -> Vec<u64> {
        let head = [self.elem_bytes, self.outer, self.inner.len()];
        head.iter().chain(&self.inner).map(|&word| word as u64).collect()
    }

    /// The settings these parameter words stand for.
    pub fn from_words(words: &[u64]) -> Self {
        let inner = words[3..3 + words[2] as usize].iter().map(|&word| word as usize).collect();
        ConcatParams { elem_bytes: words[0] as usize, outer: words[1] as usize, inner }
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

fn call_concat_reference(call: &mut Call<'_>) {
    let y = call.write(0);
    concat_reference(y, &call.reads, &ConcatParams::from_words(call.params));
}

fn call_concat(call: &mut Call<'_>) {
    let y = call.write(0);
    concat(y, &call.reads, &ConcatParams::from_words(call.params), &mut call.launch);
}

fn call_split_reference(call: &mut Call<'_>) {
    let x = call.read(0);
    split_reference(&mut call.writes, x, &ConcatParams::from_words(call.params));
}

fn call_split(call: &mut Call<'_>) {
    let x = call.read(0);
    split(&mut call.writes, x, &ConcatParams::from_words(call.params), &mut call.launch);
}

/// The kernels of this file.
pub const KERNELS: &[Kernel] = &[
    Kernel {
        task: None,
        work: None,
        name: "concat",
        arguments: |words| names!(x[ConcatParams::from_words(words).inner.len()] => y),
        fast: call_concat,
        reference: call_concat_reference,
        blocks: |params, cores| by_work(ConcatParams::from_words(params).bytes(), cores),
        workspace: no_workspace,
    },
    Kernel {
        task: None,
        work: None,
        name: "split",
        arguments: |words| names!(x => y[ConcatParams::from_words(words).inner.len()]),
        fast: call_split,
        reference: call_split_reference,
        blocks: |params, cores| by_work(ConcatParams::from_words(params).bytes(), cores),
        workspace: no_workspace,
    },
];

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
