//! The operators of models, one file each: attributes, shape rule, cuts, forward and backward tasks, meaning.
//!
//! The table at the end has one row an operator; texts find operators through it. [`Layers`] are shorthands for building
//! models. A library user's operators implement the same trait and join the table with [`Operators::with`].
#![forbid(unsafe_code)]

mod attention;
mod binary;
mod broadcast;
mod cached_attention;
mod cast;
mod concat;
mod conv;
mod count_labels;
mod cross_entropy;
mod dropout;
mod embedding;
mod gather;
mod layer_norm;
mod layers;
mod linear;
mod matmul;
mod pool;
mod reduce;
mod reshape;
mod resize;
mod reverse;
mod rms_norm;
mod rotary;
mod softmax;
mod split;
mod topk;
mod transpose;
mod unary;

use std::sync::OnceLock;

use phalanx_ir::Operators;

pub use attention::Attention;
pub use binary::BinaryOp;
pub use broadcast::Broadcast;
pub use cached_attention::CachedAttention;
pub use cast::Cast;
pub use concat::Concat;
pub use conv::Conv;
pub use count_labels::CountLabels;
pub use cross_entropy::CrossEntropy;
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use gather::Gather;
pub use layer_norm::LayerNorm;
pub use layers::Layers;
pub use linear::Linear;
pub use matmul::Matmul;
pub use pool::Pool;
pub use reduce::ReduceOp;
pub use reshape::Reshape;
pub use resize::Resize;
pub use reverse::Reverse;
pub use rms_norm::RmsNorm;
pub use rotary::Rotary;
pub use softmax::Softmax;
pub use split::Split;
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
            .with::<Concat>()
            .with::<Conv>()
            .with::<CountLabels>()
            .with::<CrossEntropy>()
            .with::<Dropout>()
            .with::<Embedding>()
            .with::<Gather>()
            .with::<LayerNorm>()
            .with::<Linear>()
            .with::<Matmul>()
            .with::<Pool>()
            .with::<ReduceOp>()
            .with::<Reshape>()
            .with::<Resize>()
            .with::<Reverse>()
            .with::<RmsNorm>()
            .with::<Rotary>()
            .with::<Softmax>()
            .with::<Split>()
            .with::<TopK>()
            .with::<Transpose>()
            .with::<UnaryOp>()
    })
}

/// The integer an element stands for.
fn integer(element: f64) -> usize {
    assert!(element >= 0.0 && element.fract() == 0.0, "{element} is an index");
    element as usize
}
