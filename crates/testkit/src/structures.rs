//! Small models that are built by hand, as a user would: what presets and sums must take without knowing their names.

use phalanx_ir::graph::{BuildError, Builder, Graph, ValueId};
use phalanx_ir::{Activation, Binary, DType, Init, Op, Reduce, Shape, TensorType, Unary};
use phalanx_ops::{
    Attention, Broadcast, Concat, Dropout, Embedding, LayerNorm, Layers, Linear, ReduceOp, RmsNorm, Rotary,
    Split, Transpose,
};

/// Labels of every model, and ids of those that take tokens.
pub const CLASSES: usize = 16;

const BATCH: usize = 8;
const TIME: usize = 8;
const WIDTH: usize = 16;
const HEADS: usize = 4;
const BLOCKS: usize = 2;

type Build = fn() -> Result<Graph, BuildError>;

/// All models, each with its name.
///
/// # Panics
/// If one of them cannot be built.
pub fn all() -> Vec<(&'static str, Graph)> {
    let models: [(&str, Build); 6] = [
        ("heads", norm_of_heads),
        ("turned", turned),
        ("encoder", encoder),
        ("vision", vision),
        ("mixer", mixer),
        ("residual", residual),
    ];
    models.map(|(name, build)| (name, build().unwrap_or_else(|error| panic!("{name}: {error}")))).to_vec()
}

/// A model being built.
struct Net(Builder);

impl Net {
    fn new(name: &str) -> Net {
        Net(Builder::new(name))
    }

    fn linear(&mut self, name: &str, x: ValueId, out: usize, act: Activation) -> Result<ValueId, BuildError> {
        let inputs = self.0.shape(x).last();
        let weight = self.0.param(&format!("{name}.weight"), [out, inputs], Init::Normal(0.2))?;
        let bias = self.0.param(&format!("{name}.bias"), [out], Init::Normal(0.1))?;
        self.0.add_one(name, Linear { transposed: false, activation: act }, &[x, weight, bias])
    }

    fn norm(&mut self, name: &str, x: ValueId) -> Result<ValueId, BuildError> {
        let width = self.0.shape(x).last();
        let gamma = self.0.param(&format!("{name}.weight"), [width], Init::Ones)?;
        let beta = self.0.param(&format!("{name}.bias"), [width], Init::Zeros)?;
        self.0.add_one(name, LayerNorm { axes: 1, eps: 1e-5 }, &[x, gamma, beta])
    }

    fn rms_norm(&mut self, name: &str, x: ValueId) -> Result<ValueId, BuildError> {
        let width = self.0.shape(x).last();
        let gamma = self.0.param(&format!("{name}.weight"), [width], Init::Ones)?;
        self.0.add_one(name, RmsNorm { eps: 1e-5 }, &[x, gamma])
    }

    fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> Result<ValueId, BuildError> {
        self.0.binary(name, Binary::Add, a, b)
    }

    fn transpose(&mut self, name: &str, x: ValueId, perm: &[usize]) -> Result<ValueId, BuildError> {
        self.0.add_one(name, Transpose { perm: perm.to_vec() }, &[x])
    }

    fn tokens(&mut self) -> Result<ValueId, BuildError> {
        self.0.input("tokens", TensorType::new(DType::I64, [BATCH, TIME]))
    }

    fn embed(&mut self, tokens: ValueId) -> Result<ValueId, BuildError> {
        let table = self.0.param("words.weight", [CLASSES, WIDTH], Init::Normal(0.5))?;
        self.0.add_one("words", Embedding { bag: false, padding: None }, &[tokens, table])
    }

    /// Projections into heads, attention, and the projection back, of `[batch, time, width]`; `turn` is applied to queries
    /// and keys.
    fn attention(
        &mut self,
        name: &str,
        x: ValueId,
        causal: bool,
        turn: impl Fn(&mut Net, &str, ValueId) -> Result<ValueId, BuildError>,
    ) -> Result<ValueId, BuildError> {
        let [batch, time, width] = *self.0.shape(x).dims() else { panic!("a stream has three dimensions") };
        let mut heads = Vec::new();
        for part in ["query", "key", "value"] {
            let flat = self.linear(&format!("{name}.{part}"), x, width, Activation::None)?;
            let shape = [batch, time, HEADS, width / HEADS];
            let cut = self.0.reshape(&format!("{name}.{part}_heads"), flat, shape)?;
            heads.push(if part == "value" { cut } else { turn(self, &format!("{name}.{part}"), cut)? });
        }
        let attended = self.0.add_one(&format!("{name}.scores"), Attention::new(causal, 0.5), &heads)?;
        let merged = self.0.reshape(&format!("{name}.merged"), attended, [batch, time, width])?;
        self.linear(&format!("{name}.output"), merged, width, Activation::None)
    }

    fn mlp(&mut self, name: &str, x: ValueId, hidden: usize) -> Result<ValueId, BuildError> {
        let width = self.0.shape(x).last();
        let inner = self.linear(&format!("{name}.up"), x, hidden, Activation::GeluTanh)?;
        self.linear(&format!("{name}.down"), inner, width, Activation::None)
    }

    /// Logits for `[batch, …]` labels, and their loss.
    fn classify(mut self, x: ValueId) -> Result<Graph, BuildError> {
        let rows = self.0.shape(x).dims()[..self.0.shape(x).rank() - 1].to_vec();
        let labels = self.0.input("labels", TensorType::new(DType::I64, Shape::new(rows)))?;
        let logits = self.linear("head", x, CLASSES, Activation::None)?;
        let loss = self.0.cross_entropy("loss", logits, labels, -100)?;
        Ok(self.0.finish([loss]))
    }
}

fn plain(_: &mut Net, _: &str, x: ValueId) -> Result<ValueId, BuildError> {
    Ok(x)
}

/// Queries and keys are normalized head by head, as in Qwen 3.
fn norm_of_heads() -> Result<Graph, BuildError> {
    let mut net = Net::new("heads");
    let tokens = net.tokens()?;
    let mut x = net.embed(tokens)?;
    for block in 0..BLOCKS {
        let name = format!("layers.{block}");
        let normed = net.rms_norm(&format!("{name}.before"), x)?;
        let branch = net.attention(&format!("{name}.attention"), normed, true, |net, name, x| {
            let x = net.rms_norm(&format!("{name}_norm"), x)?;
            net.0.add_one(&format!("{name}_turned"), Op::from(Rotary::new(100.0)), &[x])
        })?;
        x = net.add(&format!("{name}.middle"), x, branch)?;
        let normed = net.rms_norm(&format!("{name}.between"), x)?;
        let branch = net.mlp(&format!("{name}.mlp"), normed, 2 * WIDTH)?;
        x = net.add(&name, x, branch)?;
    }
    let x = net.rms_norm("norm", x)?;
    net.classify(x)
}

/// Everything but attention is computed on `[time, batch, width]`, labels included.
fn turned() -> Result<Graph, BuildError> {
    let mut net = Net::new("turned");
    let tokens = net.0.input("tokens", TensorType::new(DType::I64, [TIME, BATCH]))?;
    let words = net.embed(tokens)?;
    let places = net.0.param("places.weight", [TIME, 1, WIDTH], Init::Normal(0.2))?;
    let scale = net.0.param("scale", [WIDTH], Init::Ones)?;
    let x = net.add("embedded", words, places)?;
    let mut x = net.0.binary("scaled", Binary::Mul, x, scale)?;
    for block in 0..BLOCKS {
        let name = format!("layers.{block}");
        let outer = net.transpose(&format!("{name}.samples"), x, &[1, 0, 2])?;
        let branch = net.attention(&format!("{name}.attention"), outer, true, plain)?;
        let branch = net.transpose(&format!("{name}.steps"), branch, &[1, 0, 2])?;
        let sum = net.add(&format!("{name}.middle"), x, branch)?;
        let normed = net.norm(&format!("{name}.norm"), sum)?;
        let branch = net.mlp(&format!("{name}.mlp"), normed, 2 * WIDTH)?;
        let branch = net.0.add_one(&format!("{name}.dropped"), Dropout { rate: 0.1 }, &[branch])?;
        let sum = net.add(&format!("{name}.sum"), normed, branch)?;
        x = net.rms_norm(&name, sum)?;
    }
    net.classify(x)
}

/// Attention that sees all steps, norms behind each part, a pooled loss: as BERT.
fn encoder() -> Result<Graph, BuildError> {
    let mut net = Net::new("encoder");
    let tokens = net.tokens()?;
    let words = net.embed(tokens)?;
    let places = net.0.param("places.weight", [TIME, WIDTH], Init::Normal(0.2))?;
    let sum = net.add("embedded", words, places)?;
    let mut x = net.norm("first", sum)?;
    for block in 0..BLOCKS {
        let name = format!("encoder.layer.{block}");
        let branch = net.attention(&format!("{name}.attention"), x, false, plain)?;
        let sum = net.add(&format!("{name}.middle"), x, branch)?;
        let normed = net.norm(&format!("{name}.attention.norm"), sum)?;
        let branch = net.mlp(&format!("{name}.mlp"), normed, 2 * WIDTH)?;
        let sum = net.add(&format!("{name}.sum"), normed, branch)?;
        x = net.norm(&format!("{name}.norm"), sum)?;
    }
    net.classify(x)
}

/// Patches with a class token in front: as a vision Transformer.
fn vision() -> Result<Graph, BuildError> {
    let mut net = Net::new("vision");
    let image = net.0.input("image", TensorType::f32([BATCH, TIME - 1, 12]))?;
    let patches = net.linear("patches", image, WIDTH, Activation::None)?;
    let token = net.0.param("token", [1, 1, WIDTH], Init::Normal(0.2))?;
    let tokens = net.0.add_one("tokens", Broadcast { shape: Shape::new([BATCH, 1, WIDTH]) }, &[token])?;
    let joined = net.0.add_one("joined", Concat { axis: 1, blocks: 1 }, &[tokens, patches])?;
    let places = net.0.param("places", [TIME, WIDTH], Init::Normal(0.2))?;
    let mut x = net.add("embedded", joined, places)?;
    for block in 0..BLOCKS {
        let name = format!("blocks.{block}");
        let normed = net.norm(&format!("{name}.norm1"), x)?;
        let branch = net.attention(&format!("{name}.attention"), normed, false, plain)?;
        x = net.add(&format!("{name}.middle"), x, branch)?;
        let normed = net.norm(&format!("{name}.norm2"), x)?;
        let branch = net.mlp(&format!("{name}.mlp"), normed, 2 * WIDTH)?;
        x = net.add(&format!("{name}.end"), x, branch)?;
    }
    let x = net.norm("norm", x)?;
    let parts = net.0.add("taken", Split { axis: 1, sizes: vec![1, TIME - 1], blocks: 1 }, &[x])?;
    let x = net.0.reshape("class", parts[0], [BATCH, WIDTH])?;
    net.classify(x)
}

/// Tokens and channels are mixed in turn, by transposing: as MLP-Mixer.
fn mixer() -> Result<Graph, BuildError> {
    let mut net = Net::new("mixer");
    let image = net.0.input("image", TensorType::f32([BATCH, TIME, 12]))?;
    let mut x = net.linear("patches", image, WIDTH, Activation::None)?;
    for block in 0..BLOCKS {
        let name = format!("blocks.{block}");
        let normed = net.norm(&format!("{name}.norm1"), x)?;
        let turned = net.transpose(&format!("{name}.turned"), normed, &[0, 2, 1])?;
        let branch = net.mlp(&format!("{name}.tokens"), turned, 2 * TIME)?;
        let branch = net.transpose(&format!("{name}.back"), branch, &[0, 2, 1])?;
        x = net.add(&format!("{name}.middle"), x, branch)?;
        let normed = net.norm(&format!("{name}.norm2"), x)?;
        let branch = net.mlp(&format!("{name}.channels"), normed, 2 * WIDTH)?;
        x = net.add(&format!("{name}.end"), x, branch)?;
    }
    let x = net.norm("norm", x)?;
    let pooled =
        net.0.add_one("pooled", ReduceOp { kind: Reduce::Mean, axes: vec![1], keep: false }, &[x])?;
    net.classify(pooled)
}

/// Linear layers whose results are added to their inputs; no norms, no numbers in names.
fn residual() -> Result<Graph, BuildError> {
    let mut net = Net::new("residual");
    let x = net.0.input("x", TensorType::f32([BATCH, 12]))?;
    let mut x = net.linear("into", x, WIDTH, Activation::Relu)?;
    for block in ["first", "second", "third"] {
        let branch = net.mlp(block, x, 2 * WIDTH)?;
        let branch = net.0.unary(&format!("{block}.bounded"), Unary::Act(Activation::Tanh), branch)?;
        x = net.add(&format!("{block}.sum"), x, branch)?;
    }
    net.classify(x)
}
