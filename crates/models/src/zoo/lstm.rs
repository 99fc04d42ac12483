//! An LSTM that predicts the next token, its steps written out. Parameter names are those of `torch.nn.LSTM`.

use phalanx_nn::{Activation, Init, Net, Tensor};
use phalanx_ops::Linear;
use serde::{Deserialize, Serialize};

use super::{SampleData, Samples, ZooConfig};
use crate::ModelError;
use crate::check::Check;

/// The sizes of an LSTM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LstmConfig {
    /// Cells on top of each other.
    pub layers: usize,
    /// Features of embeddings and states.
    pub width: usize,
    /// Tokens the model knows.
    pub vocab: usize,
    /// Steps in a sequence; each is written out in the graph.
    pub context: usize,
    /// Probability of zeroing an element between cells, in training.
    pub dropout: f32,
}

/// More steps than are written out.
const MOST_STEPS: usize = 256;

impl LstmConfig {
    /// One cell over all steps of `[batch, time, width]`.
    fn cell(&self, net: &Net, layer: usize, x: &Tensor) -> Tensor {
        let (batch, width) = (x.dims()[0], self.width);
        let init = Init::Uniform(1.0 / (width as f32).sqrt());
        let param =
            |name: &str, shape: &[usize]| net.param(&format!("{name}_l{layer}"), shape.to_vec(), init);
        let (weight_ih, weight_hh) =
            (param("weight_ih", &[4 * width, x.last()]), param("weight_hh", &[4 * width, width]));
        let (bias_ih, bias_hh) = (param("bias_ih", &[4 * width]), param("bias_hh", &[4 * width]));
        let net = net.at(format!("layer{layer}"));
        let linear = || Linear { transposed: false, activation: Activation::None };
        let inputs = net.at("inputs").apply(linear(), &[x, &weight_ih, &bias_ih]);
        let mut state: Option<(Tensor, Tensor)> = None;
        let mut outputs = Vec::new();
        for (step, input) in inputs.split(1, vec![1; self.context]).iter().enumerate() {
            let input = input.reshape([batch, 4 * width]);
            let gates = match &state {
                None => input + &bias_hh,
                Some((h, _)) => input + net.at(step).apply(linear(), &[h, &weight_hh, &bias_hh]),
            };
            let [i, f, g, o] = gates.chunks(1);
            let new = i.sigmoid() * g.tanh();
            let c = match &state {
                None => new,
                Some((_, c)) => f.sigmoid() * c + new,
            };
            let h = o.sigmoid() * c.tanh();
            outputs.push(h.reshape([batch, 1, width]));
            state = Some((h, c));
        }
        Tensor::concat(&outputs, 1)
    }
}

impl ZooConfig for LstmConfig {
    fn preset(size: &str) -> Option<Self> {
        let (layers, width, vocab, context) = match size {
            "nano" => (1, 32, 24, 8),
            "small" => (2, 256, 256, 32),
            _ => return None,
        };
        Some(LstmConfig { layers, width, vocab, context, dropout: 0.0 })
    }

    fn check(&self) -> Result<(), ModelError> {
        let check = Check("lstm");
        check.positive(&[("layers", self.layers), ("width", self.width), ("context", self.context)])?;
        check.at_least(("vocab", self.vocab), 4)?;
        check.layers(self.layers)?;
        check.bounded(&[("width", self.width), ("width", self.width), ("layers", self.layers)])?;
        check.bounded(&[("width", self.width), ("vocab", self.vocab)])?;
        check.fits(self.context, MOST_STEPS)?;
        check.rate("dropout", self.dropout)
    }

    fn loss(&self, net: &Net) -> Tensor {
        let (tokens, targets) = (net.tokens("tokens", self.context), net.tokens("targets", self.context));
        let mut x = net.at("embedding").embedding(self.vocab, self.width).rows(&tokens);
        for layer in 0..self.layers {
            x = self.cell(&net.at("lstm"), layer, &x);
            x = net.at("dropout").at(layer).dropout(self.dropout, x);
        }
        net.at("head").linear(&x, self.vocab).cross_entropy(&targets)
    }

    /// Numbers that go up by a stride of 1 to 3, which the first two tell.
    fn samples(&self, samples: &mut Samples) -> Vec<(String, SampleData)> {
        let (mut tokens, mut targets) = (Vec::new(), Vec::new());
        for _ in 0..samples.batch {
            let (start, stride) = (samples.below(self.vocab), 1 + samples.below(3));
            let at = |time: usize| ((start + stride * time) % self.vocab) as i64;
            tokens.extend((0..self.context).map(at));
            targets.extend((1..=self.context).map(at));
        }
        vec![("tokens".into(), SampleData::I64(tokens)), ("targets".into(), SampleData::I64(targets))]
    }
}
