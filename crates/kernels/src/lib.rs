//! CPU kernels: for every operation a plain reference and a fast version, side by side in one file.
//!
//! A kernel is a type that holds its parameters and implements [`Kernel`]: how they come from a task, reference and fast version,
//! the work it does, how many blocks it wants and what they work in. It has an entry in the [`table`]. It works on slices of
//! an arena it never sees, allocates nothing, and gives the same bits for any number of cores: every sum that cores share is
//! a tree over `leaves` fixed by the shape alone.
//!
//! Unsafe code lives in `spmd` (handing disjoint parts to team members, the slots of pipes), `transpose` and
//! `cross_entropy/linear`, `grouped` (disjoint rows), `chain` (disjoint pieces), `matmul` and `attention` (SIMD intrinsics,
//! packing), `conv` and `images` (disjoint rows, packing), `check` (looks at memory between blocks) and the generated
//! dispatch of `isa`.

pub mod attention;
pub mod bf16;
pub mod binary;
pub mod broadcast;
pub mod call;
pub mod cast;
pub mod chain;
pub mod check;
pub mod column_sum;
pub mod compare;
pub mod concat;
pub mod conv;
pub mod cross_entropy;
pub mod draw;
pub mod dropout;
pub mod embedding;
pub mod fill;
pub mod gather;
pub mod gather_rows;
pub mod grid;
pub mod grouped;
pub mod ids;
mod images;
pub mod isa;
mod kernel;
pub mod layer_norm;
pub mod math;
pub mod matmul;
pub mod normalize;
pub mod optimizer;
pub mod pool;
pub mod random;
pub mod reduce;
pub mod resize;
pub mod reverse;
pub mod rms_norm;
pub mod rotary;
pub mod rows;
#[cfg(test)]
mod samples;
pub mod select;
pub mod set_state;
pub mod softmax;
pub mod spmd;
pub mod squared_deviations;
pub mod sum_squares;
pub mod table;
pub mod topk;
pub mod transpose;
pub mod unary;
mod words;

pub use call::Call;
pub use kernel::{Kernel, KernelEntry, Sizes, Work};
pub use phalanx_ir::{Names, names};
pub use spmd::{Launch, Team};
pub use words::Words;

/// Every kernel of this crate.
const KERNELS: &[KernelEntry] = &[
    KernelEntry::of::<attention::Attention>(),
    KernelEntry::of::<attention::AttentionGrad>(),
    KernelEntry::of::<attention::CachedAttentionParams>(),
    KernelEntry::of::<attention::masked::MaskedAttention>(),
    KernelEntry::of::<attention::masked::MaskedAttentionGrad>(),
    KernelEntry::of::<binary::BinaryParams>(),
    KernelEntry::of::<binary::BinaryGradParams>(),
    KernelEntry::of::<broadcast::BroadcastParams>(),
    KernelEntry::of::<cast::CastParams>(),
    KernelEntry::of::<chain::ChainParams>(),
    KernelEntry::of::<column_sum::ColumnSum>(),
    KernelEntry::of::<compare::CompareParams>(),
    KernelEntry::of::<concat::ConcatParams>(),
    KernelEntry::of::<concat::SplitParams>(),
    KernelEntry::of::<conv::ConvParams>(),
    KernelEntry::of::<conv::ConvGradWeight>(),
    KernelEntry::of::<cross_entropy::CrossEntropy>(),
    KernelEntry::of::<cross_entropy::CrossEntropyGrad>(),
    KernelEntry::of::<cross_entropy::CountLabels>(),
    KernelEntry::of::<cross_entropy::LabelWeights>(),
    KernelEntry::of::<cross_entropy::linear::LinearCrossEntropy>(),
    KernelEntry::of::<cross_entropy::parts::ClassMax>(),
    KernelEntry::of::<cross_entropy::parts::ClassSum>(),
    KernelEntry::of::<cross_entropy::parts::ClassPick>(),
    KernelEntry::of::<cross_entropy::parts::ClassJoin>(),
    KernelEntry::of::<draw::Draw>(),
    KernelEntry::of::<cross_entropy::smooth::SmoothCrossEntropy>(),
    KernelEntry::of::<cross_entropy::smooth::SmoothCrossEntropyGrad>(),
    KernelEntry::of::<cross_entropy::smooth::ClassSmooth>(),
    KernelEntry::of::<cross_entropy::smooth::SmoothJoin>(),
    KernelEntry::of::<dropout::DropoutParams>(),
    KernelEntry::of::<embedding::Embedding>(),
    KernelEntry::of::<embedding::EmbeddingGrad>(),
    KernelEntry::of::<fill::FillParams>(),
    KernelEntry::of::<gather::GatherParams>(),
    KernelEntry::of::<gather::GatherGradParams>(),
    KernelEntry::of::<gather_rows::GatherRows>(),
    KernelEntry::of::<gather_rows::GatherRowsGrad>(),
    KernelEntry::of::<grouped::GroupedForward>(),
    KernelEntry::of::<grouped::GroupedLinearGrad>(),
    KernelEntry::of::<grouped::GroupedWeightGrad>(),
    KernelEntry::of::<layer_norm::LayerNorm>(),
    KernelEntry::of::<layer_norm::LayerNormGrad>(),
    KernelEntry::of::<matmul::MatmulParams>(),
    KernelEntry::of::<normalize::Normalize>(),
    KernelEntry::of::<normalize::NormalizeGrad>(),
    KernelEntry::of::<optimizer::AdamW>(),
    KernelEntry::of::<optimizer::ScaleRate>(),
    KernelEntry::of::<optimizer::Sgd>(),
    KernelEntry::of::<pool::PoolParams>(),
    KernelEntry::of::<pool::PoolGradParams>(),
    KernelEntry::of::<reduce::ReduceParams>(),
    KernelEntry::of::<reduce::ReduceGradParams>(),
    KernelEntry::of::<resize::ResizeParams>(),
    KernelEntry::of::<resize::ResizeGradParams>(),
    KernelEntry::of::<reverse::ReverseParams>(),
    KernelEntry::of::<rms_norm::RmsNorm>(),
    KernelEntry::of::<rms_norm::RmsNormGrad>(),
    KernelEntry::of::<rotary::Rotary>(),
    KernelEntry::of::<rotary::RotaryAt>(),
    KernelEntry::of::<set_state::SetState>(),
    KernelEntry::of::<select::WhereParams>(),
    KernelEntry::of::<select::WhereGradParams>(),
    KernelEntry::of::<softmax::SoftmaxParams>(),
    KernelEntry::of::<softmax::SoftmaxGradParams>(),
    KernelEntry::of::<squared_deviations::SquaredDeviations>(),
    KernelEntry::of::<squared_deviations::SquaredDeviationsGrad>(),
    KernelEntry::of::<sum_squares::SumSquares>(),
    KernelEntry::of::<sum_squares::ClipScale>(),
    KernelEntry::of::<topk::TopKParams>(),
    KernelEntry::of::<transpose::TransposeParams>(),
    KernelEntry::of::<unary::UnaryParams>(),
    KernelEntry::of::<unary::UnaryGradParams>(),
];
