//! The operators of models, one file each: attributes, shape rule, cuts, forward and backward tasks, meaning.
//!
//! The table at the end has one row an operator; texts find operators through it. [`Layers`] are shorthands for building
//! models. A library user's operators implement the same trait and join the table with [`Operators::with`].
#![forbid(unsafe_code)]

mod attention;
mod batch_norm;
mod binary;
mod broadcast;
mod cached_attention;
mod cast;
mod compare;
mod concat;
mod conv;
mod count_labels;
mod cross_entropy;
mod dropout;
mod embedding;
mod experts;
mod gather;
mod gather_elements;
mod grouped_linear;
mod layer_norm;
mod layers;
mod linear;
mod matmul;
mod normalize;
mod pool;
mod random;
mod reduce;
mod reshape;
mod resize;
mod reverse;
mod rms_norm;
mod rotary;
mod scatter_add;
mod select;
mod softmax;
mod split;
mod squared_deviations;
mod topk;
mod transpose;
mod unary;

use std::sync::OnceLock;

use phalanx_ir::Operators;

pub use attention::Attention;
pub use batch_norm::BatchNormOptions;
pub use binary::BinaryOp;
pub use broadcast::Broadcast;
pub use cached_attention::CachedAttention;
pub use cast::Cast;
pub use compare::Compare;
pub use concat::Concat;
pub use conv::Conv;
pub use count_labels::CountLabels;
pub use cross_entropy::CrossEntropy;
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use experts::MoeLayer;
pub use gather::Gather;
pub use gather_elements::GatherElements;
pub use grouped_linear::GroupedLinear;
pub use layer_norm::LayerNorm;
pub use layers::Layers;
pub use linear::Linear;
pub use matmul::Matmul;
pub use normalize::Normalize;
pub use pool::Pool;
pub use random::{Distribution, Random};
pub use reduce::ReduceOp;
pub use reshape::Reshape;
pub use resize::Resize;
pub use reverse::Reverse;
pub use rms_norm::RmsNorm;
pub use rotary::Rotary;
pub use scatter_add::ScatterAdd;
pub use select::Where;
pub use softmax::Softmax;
pub use split::Split;
pub use squared_deviations::SquaredDeviations;
pub use topk::TopK;
pub use transpose::Transpose;
pub use unary::UnaryOp;

/// Every operator of this crate.
pub fn operators() -> &'static Operators {
    static ALL: OnceLock<Operators> = OnceLock::new();
    ALL.get_or_init(|| {
        Operators::default()
            .with::<Attention>()
            .with::<BinaryOp>()
            .with::<Broadcast>()
            .with::<CachedAttention>()
            .with::<Cast>()
            .with::<Compare>()
            .with::<Concat>()
            .with::<Conv>()
            .with::<CountLabels>()
            .with::<CrossEntropy>()
            .with::<Dropout>()
            .with::<Embedding>()
            .with::<Gather>()
            .with::<GatherElements>()
            .with::<GroupedLinear>()
            .with::<LayerNorm>()
            .with::<Linear>()
            .with::<Matmul>()
            .with::<Normalize>()
            .with::<Random>()
            .with::<Pool>()
            .with::<ReduceOp>()
            .with::<Reshape>()
            .with::<Resize>()
            .with::<Reverse>()
            .with::<RmsNorm>()
            .with::<Rotary>()
            .with::<ScatterAdd>()
            .with::<Softmax>()
            .with::<Split>()
            .with::<SquaredDeviations>()
            .with::<TopK>()
            .with::<Transpose>()
            .with::<UnaryOp>()
            .with::<Where>()
    })
}

/// The integer an element stands for.
fn integer(element: f64) -> usize {
    assert!(element >= 0.0 && element.fract() == 0.0, "{element} is an index");
    element as usize
}
