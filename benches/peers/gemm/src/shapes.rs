//! The measured shapes.

use std::fmt;

use phalanx_ir::Activation;
use phalanx_kernels::matmul::MatmulParams;

/// One product `a [m, k] b [k, n]`, or a batch of them.
#[derive(Clone, Copy)]
pub struct Shape {
    pub batch: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub trans_a: bool,
    pub trans_b: bool,
    pub leaves: usize,
    /// Ours adds a bias; the peers do not.
    pub bias: bool,
    /// Ours applies an activation; the peers do not.
    pub activation: Activation,
}

impl Shape {
    pub fn params(&self) -> MatmulParams {
        MatmulParams {
            batch: self.batch,
            m: self.m,
            n: self.n,
            k: self.k,
            trans_a: self.trans_a,
            trans_b: self.trans_b,
            leaves: self.leaves,
            bias: self.bias,
            activation: self.activation,
            ..MatmulParams::PLAIN
        }
    }

    /// Calls `run` with the slices of every product of the batch.
    pub fn each(&self, a: &[f32], b: &[f32], c: &mut [f32], run: impl Fn(&[f32], &[f32], &mut [f32])) {
        for ((a, b), c) in a
            .chunks_exact(self.m * self.k)
            .zip(b.chunks_exact(self.k * self.n))
            .zip(c.chunks_exact_mut(self.m * self.n))
        {
            run(a, b, c);
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |transposed| if transposed { 'T' } else { 'N' };
        write!(f, "{}{} ", letter(self.trans_a), letter(self.trans_b))?;
        if self.batch > 1 {
            write!(f, "{}*", self.batch)?;
        }
        write!(f, "{}x{}x{}", self.m, self.n, self.k)?;
        if self.leaves > 1 {
            write!(f, " leaves={}", self.leaves)?;
        }
        if self.bias {
            write!(f, " +bias")?;
        }
        if self.activation != Activation::None {
            write!(f, " {:?}", self.activation)?;
        }
        Ok(())
    }
}

fn plain(m: usize, n: usize, k: usize) -> Shape {
    Shape {
        batch: 1,
        m,
        n,
        k,
        trans_a: false,
        trans_b: false,
        leaves: 1,
        bias: false,
        activation: Activation::None,
    }
}

/// Every measured shape.
pub fn shapes() -> Vec<Shape> {
    let mut shapes = vec![];
    for size in [256, 512, 1024, 2048] {
        for (trans_a, trans_b) in [(false, false), (false, true), (true, false), (true, true)] {
            shapes.push(Shape { trans_a, trans_b, ..plain(size, size, size) });
        }
    }
    // (tokens, outputs, inputs) of linear layers: forward, input gradient, weight gradient.
    for (t, o, i) in [
        (2048, 1152, 384),
        (2048, 384, 384),
        (2048, 1536, 384),
        (2048, 384, 1536),
        (2048, 256, 384),
        (512, 3072, 768),
    ] {
        let leaves = if t == 2048 { 8 } else { 1 };
        shapes.push(plain(t, o, i));
        shapes.push(Shape { trans_b: true, ..plain(t, i, o) });
        shapes.push(Shape { trans_a: true, ..plain(i, o, t) });
        shapes.push(Shape { trans_a: true, leaves, ..plain(i, o, t) });
    }
    shapes.push(Shape { bias: true, ..plain(2048, 384, 384) });
    shapes.push(Shape { bias: true, activation: Activation::GeluTanh, ..plain(2048, 1536, 384) });
    shapes.push(plain(64, 64, 64));
    shapes.push(Shape { batch: 48, ..plain(64, 64, 64) });
    shapes.push(Shape { batch: 48, trans_b: true, ..plain(128, 128, 64) });
    shapes.push(plain(1, 1024, 1024));
    shapes.push(plain(7, 5, 3));
    shapes.push(plain(128, 10, 784));
    shapes.push(plain(1000, 1000, 1000));
    shapes.push(plain(512, 8192, 384));
    shapes.push(Shape { trans_b: true, ..plain(512, 384, 8192) });
    shapes
}
