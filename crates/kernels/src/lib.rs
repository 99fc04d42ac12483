//! CPU kernels: for every operation a plain reference and a fast version, side by side in one file.
//!
//! A kernel is a type that holds its parameters and implements [`Kernel`]: how they come from a task, reference and fast version,
//! the work it does, how many blocks it wants and what they work in. It has an entry in the [`table`]. It works on slices of
//! an arena it never sees, allocates nothing, and gives the same bits for any number of cores: every sum that cores share is
//! a tree over `leaves` fixed by the shape alone.
//!
//! Unsafe code lives in `spmd` (handing disjoint parts to team members, the slots of pipes), `transpose` and
//! `cross_entropy/linear` (disjoint rows), `chain` (disjoint pieces), `matmul` and `attention` (SIMD intrinsics,
//! packing), `check` (looks at memory between blocks) and the generated dispatch of `isa`.

pub mod attention;
pub mod binary;
pub mod broadcast;
pub mod call;
pub mod cast;
pub mod chain;
pub mod check;
pub mod column_sum;
pub mod concat;
pub mod cross_entropy;
pub mod dropout;
pub mod embedding;
pub mod fill;
pub mod gather;
pub mod grid;
pub mod ids;
pub mod isa;
mod kernel;
pub mod layer_norm;
pub mod math;
pub mod matmul;
pub mod optimizer;
pub mod random;
pub mod reduce;
pub mod reverse;
pub mod rms_norm;
pub mod rotary;
pub mod rows;
#[cfg(test)]
mod samples;
pub mod softmax;
pub mod spmd;
pub mod sum_squares;
pub mod table;
pub mod topk;
pub mod transpose;
pub mod unary;
mod words;

pub use call::Call;
pub use kernel::{Kernel, KernelEntry, Sizes, Work};
pub use spmd::{Launch, Team};
pub use words::Words;

/// The kernels of each file.
const FILES: &[&[KernelEntry]] = &[
    attention::KERNELS,
    binary::KERNELS,
    broadcast::KERNELS,
    cast::KERNELS,
    chain::KERNELS,
    column_sum::KERNELS,
    concat::KERNELS,
    cross_entropy::KERNELS,
    cross_entropy::linear::KERNELS,
    cross_entropy::parts::KERNELS,
    dropout::KERNELS,
    embedding::KERNELS,
    fill::KERNELS,
    gather::KERNELS,
    layer_norm::KERNELS,
    matmul::KERNELS,
    optimizer::KERNELS,
    reduce::KERNELS,
    reverse::KERNELS,
    rms_norm::KERNELS,
    rotary::KERNELS,
    softmax::KERNELS,
    sum_squares::KERNELS,
    topk::KERNELS,
    transpose::KERNELS,
    unary::KERNELS,
];
