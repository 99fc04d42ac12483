//! A stack of linear layers, for regression and classification of vectors.

use phalanx_ir::Activation;
use phalanx_ir::graph::Graph;
use phalanx_nn::{Dense, F32, I64, Net, Tensor, build_evaluation, build_training};
use serde::{Deserialize, Serialize};

use crate::ModelError;
use crate::check::Check;

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
        let model = |net: &Net| {
            let x = net.input("x", F32, [batch, self.inputs]);
            match self.loss {
                MlpLoss::Mse => {
                    let y = net.input("y", F32, [batch, self.outputs]);
                    self.logits(net, x).mse(&y)
                }
                MlpLoss::CrossEntropy => {
                    let y = net.input("y", I64, [batch]);
                    self.logits(net, x).cross_entropy(&y)
                }
            }
        };
        Ok(build_training("mlp", batch, model)?.graph)
    }

    /// The model alone: input `x`, output `logits` `[batch, outputs]`.
    pub fn logits_graph(&self, batch: usize) -> Result<Graph, ModelError> {
        self.check(batch)?;
        let model = |net: &Net| self.logits(net, net.input("x", F32, [batch, self.inputs]));
        Ok(build_evaluation("mlp", batch, model)?.graph)
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

    fn logits(&self, net: &Net, mut x: Tensor) -> Tensor {
        for (index, &features) in self.hidden.iter().enumerate() {
            x = net.at("layers").at(index).linear(&x, Dense::new(features).then(self.activation));
        }
        let last = net.at("layers").at(self.hidden.len()).linear(&x, self.outputs);
        last.named(&net.at("logits"))
    }
}
