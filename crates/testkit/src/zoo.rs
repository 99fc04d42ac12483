//! Small language models that train in milliseconds, and random batches for any model.

use phalanx_ir::graph::Graph;
use phalanx_ir::{Activation, Op, RopeScaling};
use phalanx_models::{DecoderFamily, Gpt2Config, LlamaConfig, ModelConfig};

use crate::Rng;

/// A GPT-2 with a tied head and dropout.
pub const GPT2: Gpt2Config = Gpt2Config {
    layers: 2,
    heads: 4,
    width: 32,
    hidden: 128,
    vocab: 32,
    context: 16,
    dropout: 0.1,
    tied: true,
    eps: 1e-5,
    activation: Activation::GeluTanh,
};

/// A Llama whose query heads share keys and values in pairs.
pub const LLAMA: LlamaConfig = LlamaConfig {
    family: DecoderFamily::Llama,
    layers: 2,
    heads: 4,
    kv_heads: 2,
    head_dim: 8,
    width: 32,
    hidden: 96,
    vocab: 32,
    context: 16,
    dropout: 0.1,
    tied: false,
    eps: 1e-5,
    rope_base: 10_000.0,
    rope_scaling: RopeScaling::None,
    rotary_dim: None,
    window: None,
    activation: Activation::Silu,
    attention_bias: false,
    mlp_bias: false,
    parallel: false,
    experts: None,
    padding: None,
};

/// The step to train of `batch` rows that fill the context.
///
/// # Panics
/// If the sizes are not legal.
pub fn gpt2(batch: usize, config: Gpt2Config) -> Graph {
    let time = config.context;
    ModelConfig::Gpt2(config).training_graph(batch, time).expect("the sizes are legal")
}

/// As [`gpt2`].
///
/// # Panics
/// If the sizes are not legal.
pub fn llama(batch: usize, config: LlamaConfig) -> Graph {
    let time = config.context;
    ModelConfig::Llama(config).training_graph(batch, time).expect("the sizes are legal")
}

/// The elements of one input.
#[derive(Clone, Debug, PartialEq)]
pub enum Elements {
    /// Of a floating-point input.
    F32(Vec<f32>),
    /// Of tokens and labels.
    I64(Vec<i64>),
}

/// A label that does not count.
pub const IGNORED: i64 = -100;

/// A random element for every place of every input of a model, a function of the step. Tokens and labels are below
/// `classes`; some labels are [`IGNORED`].
pub fn batch(model: &Graph, classes: usize, step: usize) -> Vec<(&str, Elements)> {
    let mut rng = Rng::new(step as u64);
    let inputs = model.leaves(|op| matches!(op, Op::Input));
    inputs
        .map(|input| {
            let (name, ty) = (model.values()[input].name.as_str(), model.ty(input));
            let places = 0..ty.shape.elements();
            let elements = if ty.dtype.is_float() {
                Elements::F32(places.map(|_| rng.uniform(-1.0, 1.0) as f32).collect())
            } else {
                let ignored = if name == "tokens" { 0 } else { 7 };
                Elements::I64(places.map(|_| id(&mut rng, classes, ignored)).collect())
            };
            (name, elements)
        })
        .collect()
}

/// A number below `classes`, or once in `ignored` one that does not count.
fn id(rng: &mut Rng, classes: usize, ignored: usize) -> i64 {
    if ignored > 0 && rng.once_in(ignored) { IGNORED } else { rng.below(classes) as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_labels_are_ignored_and_no_token_is() {
        let model = gpt2(8, GPT2);
        let [("tokens", Elements::I64(tokens)), ("targets", Elements::I64(targets))] =
            &batch(&model, 5, 3)[..]
        else {
            panic!("a language model has tokens and targets")
        };
        assert_eq!((tokens.len(), targets.len()), (8 * 16, 8 * 16));
        assert!(tokens.iter().all(|token| (0..5).contains(token)));
        let ignored = targets.iter().filter(|&&label| label == IGNORED).count();
        assert!((1..64).contains(&ignored), "{ignored} of 128 labels");
        assert_ne!(batch(&model, 5, 3), batch(&model, 5, 4));
    }
}
