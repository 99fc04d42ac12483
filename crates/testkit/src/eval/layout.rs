//! Operators that move elements, and reductions.

use phalanx_ir::{Reduce, Shape};

use crate::Tensor;

pub(super) fn transpose(x: &Tensor, perm: &[usize], shape: &Shape) -> Tensor {
    Tensor::from_fn(shape, |index| {
        let mut from = vec![0; perm.len()];
        for (&i, &axis) in index.iter().zip(perm) {
            from[axis] = i;
        }
        x.at(&from)
    })
}

/// Where element `at` of a piece lies in the whole: the whole is blocks, each joined from a part of every piece.
fn in_whole(at: usize, start: usize, piece: usize, whole: usize, blocks: usize) -> usize {
    let (block, within) = (at / (piece / blocks), at % (piece / blocks));
    block * (whole / blocks) + start / blocks + within
}

pub(super) fn split(x: &Tensor, axis: usize, blocks: usize, shapes: &[Shape]) -> Vec<Tensor> {
    let whole = x.shape.dims()[axis];
    let mut start = 0;
    let mut pieces = Vec::new();
    for shape in shapes {
        let extent = shape.dims()[axis];
        pieces.push(Tensor::from_fn(shape, |index| {
            let mut from = index.to_vec();
            from[axis] = in_whole(index[axis], start, extent, whole, blocks);
            x.at(&from)
        }));
        start += extent;
    }
    pieces
}

pub(super) fn concat(pieces: &[&Tensor], axis: usize, blocks: usize, shape: &Shape) -> Tensor {
    let whole = shape.dims()[axis];
    Tensor::from_fn(shape, |index| {
        let mut start = 0;
        for piece in pieces {
            let extent = piece.shape.dims()[axis];
            let found = (0..extent).find(|&at| in_whole(at, start, extent, whole, blocks) == index[axis]);
            if let Some(at) = found {
                let mut from = index.to_vec();
                from[axis] = at;
                return piece.at(&from);
            }
            start += extent;
        }
        panic!("{shape} is no longer than its pieces together");
    })
}

/// `shape` may keep the reduced axes with extent 1 or not: the order of its elements is the same.
pub(super) fn reduce(x: &Tensor, kind: Reduce, axes: &[usize], shape: &Shape) -> Tensor {
    let dims = x.shape.dims();
    let mut groups: Vec<Vec<f64>> = vec![Vec::new(); shape.elements()];
    Tensor::from_fn(&x.shape, |index| {
        let kept = (0..dims.len()).filter(|axis| !axes.contains(axis));
        let position = kept.fold(0, |position, axis| position * dims[axis] + index[axis]);
        groups[position].push(x.at(index));
        0.0
    });
    Tensor::new(shape.clone(), groups.iter().map(|group| join(kind, group)).collect::<Vec<_>>())
}

fn join(kind: Reduce, group: &[f64]) -> f64 {
    match kind {
        Reduce::Sum => group.iter().sum(),
        Reduce::Mean => group.iter().sum::<f64>() / group.len() as f64,
        Reduce::Max => group.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    }
}
