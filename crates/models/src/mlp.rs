//! A stack of linear layers, for regression and classification of vectors.

use phalanx_ir::graph::{BuildError, Builder, Graph, ValueId};
use phalanx_ir::{Activation, DType, Init, TensorType};
use phalanx_ops::Layers;
use serde::{Deserialize, Serialize};

use crate::check::Check;
use crate::layers::Linear;
use crate::{IGNORE_LABEL, ModelError};

/// What an MLP is trained to do with `y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MlpLoss {
    /// Regression: mean squared error to `y`, f32 `[batch, outputs]`.
    Mse,
    /// Classification: mean cross-entropy to the labels `y`, i64 `[batch]`.
    CrossEntropy,
}

/// The sizes of a stack of linear layers with input `x`, f32 `[batch, inputs]`.
///
/// Layer i has parameters `layers.i.weight` `[out, in]` and `layers.i.bias`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MlpConfig {
    /// Features of an input.
    pub inputs: usize,
    /// Features of each hidden layer; empty for one linear layer.
    pub hidden: Vec<usize>,
    /// Features of an output: targets, or classes.
    pub outputs: usize,
    /// Applied after each hidden layer.
    #[serde(with = "crate::activation")]
    pub activation: Activation,
    /// What is minimized.
    pub loss: MlpLoss,
}

impl MlpConfig {
    /// A model for regression with tanh between layers: features of input, hidden layers and output.
    pub fn regression<const N: usize>(features: [usize; N]) -> Self {
        const { assert!(N >= 2, "an MLP has at least an input and an output") };
        let (inputs, hidden, outputs) = (features[0], features[1..N - 1].to_vec(), features[N - 1]);
        MlpConfig { inputs, hidden, outputs, activation: Activation::Tanh, loss: MlpLoss::Mse }
    }

    /// The step to train: inputs `x` and `y`, output the scalar `loss`.
    pub fn training_graph(&self, batch: usize) -> Result<Graph, ModelError> {
        self.check(batch)?;
        let mut model = Builder::new("mlp");
        let x = model.input("x", TensorType::f32([batch, self.inputs]))?;
        let target = match self.loss {
            MlpLoss::Mse => TensorType::f32([batch, self.outputs]),
            MlpLoss::CrossEntropy => TensorType::new(DType::I64, [batch]),
        };
        let y = model.input("y", target)?;
        let logits = self.logits(&mut model, x)?;
        let loss = match self.loss {
            MlpLoss::Mse => model.mse("loss", logits, y)?,
            MlpLoss::CrossEntropy => model.cross_entropy("loss", logits, y, IGNORE_LABEL)?,
        };
        Ok(model.finish([loss]))
    }

    /// The model alone: input `x`, output `logits` `[batch, outputs]`.
    pub fn logits_graph(&self, batch: usize) -> Result<Graph, ModelError> {
        self.check(batch)?;
        let mut model = Builder::new("mlp");
        let x = model.input("x", TensorType::f32([batch, self.inputs]))?;
        let logits = self.logits(&mut model, x)?;
        Ok(model.finish([logits]))
    }

    /// How many numbers are trained.
    pub fn parameters(&self) -> u64 {
        let sizes: Vec<u64> = self.sizes().map(|size| size as u64).collect();
        sizes.windows(2).map(|pair| (pair[0] + 1) * pair[1]).sum()
    }

    /// Features before, between and after the layers.
    fn sizes(&self) -> impl Iterator<Item = usize> {
        [self.inputs].into_iter().chain(self.hidden.iter().copied()).chain([self.outputs])
    }

    fn check(&self, batch: usize) -> Result<(), ModelError> {
        let check = Check("mlp");
        check.positive(&[("inputs", self.inputs), ("outputs", self.outputs), ("batch", batch)])?;
        self.hidden.iter().try_for_each(|&size| check.positive(&[("hidden", size)]))?;
        for (inputs, outputs) in self.sizes().zip(self.sizes().skip(1)) {
            check.bounded(&[("layer inputs", inputs), ("layer outputs", outputs)])?;
            check.bounded(&[("batch", batch), ("layer outputs", outputs)])?;
        }
        check.bounded(&[("batch", batch), ("inputs", self.inputs)])
    }

    fn logits(&self, model: &mut Builder, mut x: ValueId) -> Result<ValueId, BuildError> {
        for (index, outputs) in self.sizes().skip(1).enumerate() {
            let last = index == self.hidden.len();
            let activation = if last { Activation::None } else { self.activation };
            let module = format!("layers.{index}");
            let name = if last { "logits" } else { &module };
            let linear = linear(model.shape(x).last(), outputs).then(activation);
            x = linear.add_as(model, &module, name, x)?;
        }
        Ok(x)
    }
}

/// A linear layer that starts as PyTorch's does: uniform within 1/√inputs.
fn linear(inputs: usize, outputs: usize) -> Linear {
    let init = Init::Uniform(1.0 / (inputs as f32).sqrt());
    Linear { outputs, transposed: false, init, bias: Some(init), activation: Activation::None }
}
