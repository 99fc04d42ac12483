//! Measurements: the machine's peak, our matrix product against OpenBLAS, convolutions against that, training steps of GPT-2 and of the zoo, checkpoints against
//! plain files, the compiler, graphs of small tasks, copies against `memcpy`, launches of kernels, hidden communication
//! against what is predicted, and transfers between ranks. Comparisons with PyTorch: operator cases with recorded
//! results, a few steps from given weights, and training in another precision beside recorded losses.
//!
//! Everything is measured in this process with the wall clock; on a machine with other load, best times say more than
//! means. No part of a product crate is here, and no product crate uses this one.
//!
//! Unsafe code is in `ping_pong` (messages by address) and `peer` (calls OpenBLAS).

pub mod anchors;
mod checkpoints;
mod compile;
mod conv;
mod copies;
mod gemm;
pub mod golden;
mod launches;
mod model;
mod overlap;
pub mod parity;
pub mod peer;
mod ping_pong;
mod pipes;
mod precision;
mod ranks;
pub mod tasks;
mod train;

pub use checkpoints::{Beside, Writing, checkpoint_writing, checkpointed_training};
pub use compile::{COMPILE_SIZES, CompileBench, CompileResult, compile};
pub use conv::{ConvBench, ConvResult, convolutions};
pub use copies::{
    CopiesBench, CopiesError, CopyResult, CopyShape, REPLAYED_SIZES, ReplayedCopies, copy_sizes,
};
pub use gemm::{GemmBench, GemmResult, GemmShape, gemm, shapes};
pub use launches::{LaunchCost, launches};
pub use model::{MEASURED_MODELS, MeasuredModel, ModelBench, ModelResult, model};
pub use overlap::{OverlapResult, overlap};
pub use precision::{Distance, EqualWeights, PrecisionBench, PrecisionResult, precision};
pub use ranks::{Exchange, ExchangeRow, exchange};
pub use train::{KernelTime, TrainBench, TrainResult, train};

/// The middle of some values.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n.is_multiple_of(2) => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        n => sorted[n / 2],
    }
}
