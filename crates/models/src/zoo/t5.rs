//! T5: an encoder reads a text, a decoder answers it. Parameter names are those of transformers'
//! `T5ForConditionalGeneration` with ReLU and a head that is tied to the embeddings.
//!
//! Positions are told by a bias on the scores of attention, one number for each head and each bucket of distances. The first
//! layer of each half has the table of it.

use phalanx_nn::{Dense, EmbeddingTable, Init, Net, Table, Tensor};
use phalanx_ops::Attention;
use serde::{Deserialize, Serialize};

use super::{SampleData, Samples, TransformersForm, ZooConfig};
use crate::ModelError;
use crate::check::Check;

/// The sizes of a T5.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct T5Config {
    /// Blocks of the encoder, and as many of the decoder.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Features of the residual stream.
    pub width: usize,
    /// Features of a head.
    pub head_dim: usize,
    /// Features inside the feed-forward part.
    pub hidden: usize,
    /// Tokens the model knows; token 0 begins an answer.
    pub vocab: usize,
    /// Tokens in a text, and in an answer.
    pub context: usize,
    /// Buckets of distances; an even number.
    pub buckets: usize,
    /// The distance from which on all are in the last bucket.
    pub distance: usize,
    /// Probability of zeroing an element, in training.
    pub dropout: f32,
}

/// transformers'.
const EPS: f32 = 1e-6;

/// One half of the model.
#[derive(Clone, Copy, PartialEq)]
enum Half {
    Encoder,
    Decoder,
}

impl T5Config {
    /// The bucket of the distance from a query to a key: half of the buckets are for a distance each, the others grow.
    /// The arithmetic is that of transformers, single precision included.
    fn bucket(&self, query: usize, key: usize, half: Half) -> i64 {
        let (mut buckets, mut first, mut distance) = (self.buckets, 0, query.saturating_sub(key));
        if half == Half::Encoder {
            buckets /= 2;
            first = if key > query { buckets } else { 0 };
            distance = query.abs_diff(key);
        }
        let exact = buckets / 2;
        if distance < exact {
            return (first + distance) as i64;
        }
        let share = (distance as f32 / exact as f32).ln() / (self.distance as f32 / exact as f32).ln();
        let grown = exact + (share * (buckets - exact) as f32) as usize;
        (first + grown.min(buckets - 1)) as i64
    }

    /// What is added to the scores of a half, `[1, heads, time, time]`; `net` is the attention of its first layer.
    fn bias(&self, net: &Net, half: Half) -> Tensor {
        let time = self.context;
        let buckets: Vec<i64> =
            (0..time * time).map(|place| self.bucket(place / time, place % time, half)).collect();
        let buckets = net.table("buckets", [time, time], Table::i64s(&buckets));
        let rows = net.at("relative_attention_bias").embedding(self.buckets, self.heads).rows(&buckets);
        rows.transpose([2, 0, 1]).reshape([1, self.heads, time, time])
    }

    /// Attention of `x` to `seen`.
    fn attention(&self, net: &Net, [x, seen]: [&Tensor; 2], causal: bool, bias: Option<&Tensor>) -> Tensor {
        let inner = Dense::new(self.heads * self.head_dim).bias(false);
        let [q, k, v] = [("q", x), ("k", seen), ("v", seen)]
            .map(|(name, from)| net.at(name).linear(from, inner).split_heads(self.head_dim));
        let operands: Vec<&Tensor> = [&q, &k, &v].into_iter().chain(bias).collect();
        let heads = net.at("heads").apply(Attention::new(causal, 1.0), &operands).merge_heads();
        net.at("o").linear(&heads, Dense::new(self.width).bias(false))
    }

    /// `x` and what `part` makes of it behind a norm.
    fn residual(&self, net: &Net, x: &Tensor, part: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
        let h = part(&net.at("layer_norm").rms_norm_with(x, EPS));
        x + net.at("dropout").dropout(self.dropout, h)
    }

    /// A block; a decoder's also looks at what the encoder has made of the text.
    fn block(&self, net: &Net, x: &Tensor, bias: &Tensor, text: Option<&Tensor>) -> Tensor {
        let layer = net.at("layer");
        let own = layer.at("0.SelfAttention");
        let mut x =
            self.residual(&layer.at(0), x, |x| self.attention(&own, [x, x], text.is_some(), Some(bias)));
        if let Some(text) = text {
            let cross = layer.at("1.EncDecAttention");
            x = self.residual(&layer.at(1), &x, |x| self.attention(&cross, [x, text], false, None));
        }
        let (last, plain) =
            (layer.at(if text.is_some() { 2 } else { 1 }), |features| Dense::new(features).bias(false));
        self.residual(&last, &x, |x| {
            let net = last.at("DenseReluDense");
            let h = net.at("wi").linear(x, plain(self.hidden)).relu();
            net.at("wo").linear(&net.at("dropout").dropout(self.dropout, h), plain(self.width))
        })
    }

    /// A whole half.
    fn half(&self, net: &Net, words: &EmbeddingTable, tokens: &Tensor, text: Option<&Tensor>) -> Tensor {
        let half = if text.is_some() { Half::Decoder } else { Half::Encoder };
        let rows = words.at(&net.at("embed_tokens")).rows(tokens);
        let mut x = net.at("dropout").dropout(self.dropout, rows);
        let bias = self.bias(&net.at("block.0.layer.0.SelfAttention"), half);
        for layer in 0..self.layers {
            x = self.block(&net.at("block").at(layer), &x, &bias, text);
        }
        let x = net.at("final_layer_norm").rms_norm_with(&x, EPS);
        net.at("final_dropout").dropout(self.dropout, x)
    }
}

impl ZooConfig for T5Config {
    const TRANSFORMERS: Option<TransformersForm> = Some(TransformersForm {
        model_type: "t5",
        architecture: "T5ForConditionalGeneration",
        usual: "small",
        labels: None,
        sizes: &[
            ("layers", "num_layers", 0),
            ("heads", "num_heads", 0),
            ("width", "d_model", 0),
            ("head_dim", "d_kv", 0),
            ("hidden", "d_ff", 0),
            ("vocab", "vocab_size", 0),
            ("context", "n_positions", 0),
            ("buckets", "relative_attention_num_buckets", 0),
            ("distance", "relative_attention_max_distance", 0),
        ],
        fixed: &[
            ("feed_forward_proj", "\"relu\""),
            ("layer_norm_epsilon", "1e-6"),
            ("tie_word_embeddings", "true"),
            ("pad_token_id", "0"),
            ("decoder_start_token_id", "0"),
        ],
    });

    fn preset(size: &str) -> Option<Self> {
        let (layers, heads, width, hidden) = match size {
            "nano" => (2, 4, 32, 64),
            "small" => (6, 8, 512, 2048),
            "medium" => (12, 12, 768, 3072),
            "large" => (24, 16, 1024, 4096),
            _ => return None,
        };
        let (head_dim, vocab, context, buckets) =
            if size == "nano" { (8, 24, 8, 8) } else { (64, 32_128, 512, 32) };
        let distance = 4 * buckets;
        Some(T5Config {
            layers,
            heads,
            width,
            head_dim,
            hidden,
            vocab,
            context,
            buckets,
            distance,
            dropout: 0.0,
        })
    }

    fn check(&self) -> Result<(), ModelError> {
        let check = Check("t5");
        check.positive(&[("layers", self.layers), ("heads", self.heads), ("width", self.width)])?;
        check.positive(&[("head_dim", self.head_dim), ("hidden", self.hidden), ("context", self.context)])?;
        check.layers(self.layers)?;
        check.at_least(("vocab", self.vocab), 5)?;
        check.at_least(("buckets", self.buckets), 4)?;
        check.parity(("buckets", self.buckets), true)?;
        check.at_least(("distance", self.distance), self.buckets)?;
        check.bounded(&[("width", self.width), ("vocab", self.vocab)])?;
        check.bounded(&[("width", self.width), ("hidden", self.hidden), ("layers", self.layers)])?;
        check.bounded(&[("width", self.width), ("heads", self.heads), ("head_dim", self.head_dim)])?;
        check.bounded(&[("heads", self.heads), ("context", self.context), ("context", self.context)])?;
        check.bounded(&[("context", self.context), ("vocab", self.vocab)])?;
        check.bounded(&[("buckets", self.buckets), ("heads", self.heads)])?;
        check.rate("dropout", self.dropout)
    }

    fn loss(&self, net: &Net) -> Tensor {
        let net = &net.init(Init::Normal(0.05));
        let [tokens, begun, targets] =
            ["tokens", "decoder_tokens", "targets"].map(|name| net.tokens(name, self.context));
        let words = net.at("shared").embedding(self.vocab, self.width);
        let text = self.half(&net.at("encoder"), &words, &tokens, None);
        let x = self.half(&net.at("decoder"), &words, &begun, Some(&text));
        let logits = words.logits(&(x * (1.0 / (self.width as f32).sqrt())));
        logits.cross_entropy(&targets)
    }

    /// The text tells a number and a stride, again and again; the answer counts from the number by the stride.
    fn samples(&self, samples: &mut Samples) -> Vec<(String, SampleData)> {
        let (mut tokens, mut begun, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        let numbers = self.vocab - 1;
        for _ in 0..samples.batch {
            let (start, stride) = (samples.below(numbers), 1 + samples.below(3));
            let at = |time: usize| (1 + (start + stride * time) % numbers) as i64;
            tokens.extend((0..self.context).map(|time| if time % 2 == 0 { at(0) } else { stride as i64 }));
            begun.extend((0..self.context).map(|time| if time == 0 { 0 } else { at(time - 1) }));
            targets.extend((0..self.context).map(at));
        }
        let all = [("tokens", tokens), ("decoder_tokens", begun), ("targets", targets)];
        all.into_iter().map(|(name, ids)| (name.to_string(), SampleData::I64(ids))).collect()
    }
}
