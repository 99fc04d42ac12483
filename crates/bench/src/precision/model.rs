//! The model that is compared, its text and its first weights: the same as in `benches/peers/torch_precision.py`.

use std::io::Read;

use flate2::read::GzDecoder;
use phalanx::Error;
use phalanx::ir::graph::Graph;
use phalanx::ir::{Activation, Op};
use phalanx_models::{Gpt2Config, ModelConfig};

use super::STEPS;

const LAYERS: usize = 4;
const WIDTH: usize = 128;
const CONTEXT: usize = 64;
const BATCH: usize = 32;

/// Pages of this project at some time.
const TEXT: &[u8] = include_bytes!("../../golden/precision-text.gz");

/// Weights are uniform up to this, so that their standard deviation is 0.02.
const SCALE: f32 = 0.034_641_016;
/// The same for projections into the residual stream: by the root of 8 smaller.
const RESIDUAL: f32 = 0.012_247_449;

/// The step to train.
pub fn graph() -> Result<Graph, Error> {
    let model = Gpt2Config {
        layers: LAYERS,
        heads: 4,
        width: WIDTH,
        hidden: 4 * WIDTH,
        vocab: 256,
        context: CONTEXT,
        dropout: 0.0,
        tied: true,
        eps: 1e-5,
        activation: Activation::GeluTanh,
    };
    Ok(ModelConfig::Gpt2(model).training_graph(BATCH, CONTEXT)?)
}

/// The first values of all parameters.
pub fn weights(model: &Graph) -> Vec<(String, Vec<f32>)> {
    let params = model.leaves(|op| matches!(op, Op::Param(_)));
    let values = |param| {
        let (name, elements) = (model.values()[param].name.clone(), model.ty(param).shape.elements());
        let values = match name.as_str() {
            bias if bias.ends_with(".bias") => vec![0.0; elements],
            norm if norm.contains(".ln_") => vec![1.0; elements],
            residual if residual.contains(".c_proj.") => uniform(&name, elements, RESIDUAL),
            _ => uniform(&name, elements, SCALE),
        };
        (name, values)
    };
    params.map(values).collect()
}

/// Warm-up over 50 steps, then a cosine down to a tenth.
pub fn learning_rate(step: usize) -> f32 {
    let warm = ((step + 1) as f64 / 50.0).min(1.0);
    let turn = std::f64::consts::PI * step as f64 / STEPS as f64;
    (1e-3 * warm * (0.1 + 0.45 * (1.0 + turn.cos()))) as f32
}

/// What the model is trained on, as bytes.
pub struct Text(Vec<u8>);

impl Text {
    /// Unpacks the text.
    pub fn new() -> Text {
        let mut text = Vec::new();
        GzDecoder::new(TEXT).read_to_end(&mut text).expect("the embedded text decompresses");
        Text(text)
    }

    /// Tokens and targets of a step.
    pub fn batch(&self, step: usize) -> [Vec<i64>; 2] {
        let start = |row| noise(1, (BATCH * step + row) as u64) % (self.0.len() - CONTEXT) as u64;
        [0, 1].map(|shift| {
            let rows = (0..BATCH).flat_map(|row| &self.0[start(row) as usize + shift..][..CONTEXT]);
            rows.map(|&byte| byte.into()).collect()
        })
    }
}

/// Numbers between `-scale` and `scale`, each rounded once.
fn uniform(name: &str, elements: usize, scale: f32) -> Vec<f32> {
    const HALF: i32 = 1 << 23;
    // FNV-1a.
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let stream = name.bytes().fold(0xcbf2_9ce4_8422_2325, fold);
    let value = |index| ((noise(stream, index) >> 40) as i32 - HALF) as f32 * (scale / HALF as f32);
    (0..elements as u64).map(value).collect()
}

/// 64 bits that look random, for a stream of numbers and an index; the mixer of splitmix64.
fn noise(stream: u64, index: u64) -> u64 {
    let z =
        stream.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index.wrapping_mul(0xd1b5_4a32_d192_ed03));
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_script() {
        assert_eq!(noise(5, 7), 10_314_086_488_837_064_016);
        assert_eq!(uniform("transformer.wte.weight", 2, SCALE), [0.020_252_48, -0.018_563_963]);
    }

    #[test]
    fn targets_are_the_tokens_after_those_that_are_read() {
        let [tokens, targets] = Text::new().batch(3);
        assert_eq!(tokens.len(), BATCH * CONTEXT);
        let rows = tokens.chunks(CONTEXT).zip(targets.chunks(CONTEXT));
        rows.for_each(|(tokens, targets)| assert_eq!(tokens[1..], targets[..CONTEXT - 1]));
    }
}
