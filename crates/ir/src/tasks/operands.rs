//! What operators call their operands. One flat table; a name is what binds a buffer to a slot of a kernel.

use super::{Task, TaskOp};
use crate::{Names, names};

impl Task {
    /// The names of the buffers it reads and of those it writes, slot by slot. Tiles that are moved have none: their
    /// places tell them apart.
    pub fn names(&self) -> Names {
        let (reads, writes) = (self.reads.len(), self.writes.len());
        match self.op {
            TaskOp::Linear { bias, residual, save_pre, .. } => {
                names!(x, weight, bias if bias, residual if residual => y, pre if save_pre)
            }
            TaskOp::LinearGradInput { slope, .. } => names!(dy, weight, points if slope.is_some() => dx),
            TaskOp::LinearGradWeight { .. } => names!(dy, x => dweight),
            TaskOp::Matmul { .. } => names!(a, b => y),
            TaskOp::ColumnSum { .. } => names!(x => sums),
            TaskOp::Unary { .. } => names!(x => y),
            TaskOp::UnaryGrad { .. } => names!(x, dy => dx),
            TaskOp::Binary { .. } => names!(a, b => y),
            TaskOp::BinaryGrad { .. } => names!(a, b, dy => d),
            TaskOp::Chain { ref steps, .. } => {
                let random = steps.is_random();
                names!(x[reads.saturating_sub(usize::from(random))], hyper if random => y[writes])
            }
            TaskOp::Reduce { .. } => names!(x => y),
            TaskOp::ReduceGrad { .. } => names!(x, y, dy => dx),
            TaskOp::Broadcast {} | TaskOp::Transpose { .. } => names!(x => y),
            TaskOp::Concat { .. } => names!(x[reads] => y),
            TaskOp::Split { .. } => names!(x => y[writes]),
            TaskOp::Rotary { .. } => names!(x => y),
            TaskOp::Attention { .. } => names!(q, k, v => y, lse),
            TaskOp::AttentionGrad { .. } => names!(q, k, v, y, lse, dy => dq, dk, dv),
            TaskOp::Embedding { .. } => names!(ids, table => y),
            TaskOp::EmbeddingGrad { .. } => names!(ids, dy => dtable),
            TaskOp::Dropout { .. } => names!(x, hyper => y),
            TaskOp::Cast {} => names!(x => y),
            TaskOp::Fill { .. } => names!(=> y),
            TaskOp::CrossEntropy { .. } => names!(logits, labels => nll, lse),
            TaskOp::ClassMax {} => names!(logits => largest),
            TaskOp::ClassSum { .. } => names!(logits, largest => sum),
            TaskOp::ClassPick {} => names!(logits, labels => picked),
            TaskOp::ClassJoin { .. } => names!(largest, sum, picked, labels => nll, lse),
            TaskOp::CrossEntropyGrad { .. } => names!(logits, labels, lse, dloss => dlogits),
            TaskOp::LinearCrossEntropy { bias, .. } => {
                names!(x, weight, bias if bias, labels, dloss => dlogits, nll)
            }
            TaskOp::CountLabels { .. } => names!(labels => count),
            TaskOp::SumSquares { .. } => names!(x => sums),
            TaskOp::ClipScale { .. } => names!(sum => clip),
            TaskOp::Call { .. } => names!(x[reads] => y[writes]),
            TaskOp::Move { .. } | TaskOp::Send { .. } | TaskOp::Receive { .. } => names!(=>),
            TaskOp::AdamW { clip, .. } => names!(grad, hyper, clip if clip => param, m, v),
            TaskOp::Sgd { momentum, clip, .. } => {
                names!(grad, hyper, clip if clip => param, velocity if momentum > 0.0)
            }
        }
    }
}
