//! Losses and what tells how good a model is.

use std::panic::Location;

use phalanx_ir::DType;
use phalanx_ir::graph::{BuildError, Builder, ValueId};
use phalanx_ops::Layers;

use crate::{IGNORED, Tensor};

/// Losses.
impl Tensor {
    /// Mean negative log-likelihood of labels; `self` has a logit for each class in its innermost dimension, and positions
    /// with the label [`IGNORED`] do not count.
    #[track_caller]
    pub fn cross_entropy(&self, labels: &Tensor) -> Tensor {
        self.loss(labels, |builder, logits, labels| builder.cross_entropy("loss", logits, labels, IGNORED))
    }

    /// Mean of (x - target)².
    #[track_caller]
    pub fn mse(&self, target: &Tensor) -> Tensor {
        self.loss(target, |builder, x, target| builder.mse("loss", x, target))
    }

    /// Mean of |x - target|.
    #[track_caller]
    pub fn l1(&self, target: &Tensor) -> Tensor {
        (self - target).abs().mean_all()
    }

    /// Mean cross-entropy of truth values in 0 to 1 whose logits these are: max(x, 0) - x·y + log(1 + e^-|x|).
    #[track_caller]
    pub fn binary_cross_entropy(&self, truth: &Tensor) -> Tensor {
        let tail = ((-self.abs()).exp() + 1.0).log();
        (self.relu() - self * truth + tail).mean_all()
    }

    #[track_caller]
    fn loss(
        &self,
        other: &Tensor,
        add: impl FnOnce(&mut Builder, ValueId, ValueId) -> Result<ValueId, BuildError>,
    ) -> Tensor {
        let line = Location::caller();
        let (Some(x), Some(other)) = (self.id, other.id) else { return self.with_id(None) };
        let made = self.shared.borrow_mut().add(line, |builder| {
            add(builder, x, other).map(|value| vec![value]).map_err(|error| error.to_string())
        });
        self.with_id(made.first().copied())
    }
}

/// Comparisons with labels.
impl Tensor {
    /// The element of each innermost row that its label names: `[.., classes]` and labels `[..]` give `[..]`.
    #[track_caller]
    pub fn pick(&self, labels: &Tensor) -> Tensor {
        let rows = labels.dims();
        let column = labels.reshape([&rows[..], &[1]].concat());
        self.gather(self.rank().saturating_sub(1), &column).reshape(rows)
    }

    /// 1 where the label names the largest element of its innermost row, else 0; of equal elements the first counts as the
    /// largest.
    #[track_caller]
    pub fn is_top(&self, labels: &Tensor) -> Tensor {
        let (_, top) = self.top_k(1);
        let difference = top.cast(DType::F32).reshape(labels.dims()) - labels.cast(DType::F32);
        (1.0 - difference.abs()).relu()
    }
}
