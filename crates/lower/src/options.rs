//! What the passes need to know besides the graph.

use phalanx_ir::Precision;

/// What the step is for.
#[derive(Clone, Debug, PartialEq)]
pub enum Goal {
    /// The model's outputs.
    Infer,
    /// The model's outputs and the gradients of its first one, kept for the host.
    Gradients,
    /// The loss, and parameters updated by it.
    Train(Optimizer),
}

/// How parameters follow their gradients. The learning rate is fed with every step.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Optimizer {
    /// The rule.
    pub rule: UpdateRule,
    /// Weight decay.
    pub decay: f32,
    /// Which parameters decay.
    pub decays: Decays,
    /// The largest gradient norm let through; `None` for no clipping.
    pub clip: Option<f32>,
    /// Gradients stay readable after the step.
    pub keep_gradients: bool,
    /// Patterns for the names of parameters that stay as they are; see [`Optimizer::frozen`].
    pub frozen: Vec<String>,
    /// Parameters with another learning rate or decay; see [`Optimizer::group`].
    pub groups: Vec<ParameterGroup>,
}

/// Parameters whose learning rate or decay is not that of the others.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterGroup {
    /// A pattern for their names.
    pub pattern: String,
    /// What their learning rate is multiplied by.
    pub rate: f32,
    /// Their weight decay; that of the optimizer if absent.
    pub decay: Option<f32>,
}

/// The usual optimizers, with no decay and no clipping; the methods set what is to be different.
impl Optimizer {
    /// An optimizer with this rule.
    pub fn new(rule: UpdateRule) -> Self {
        let (frozen, groups) = (Vec::new(), Vec::new());
        Optimizer { rule, decay: 0.0, decays: Decays::All, clip: None, keep_gradients: false, frozen, groups }
    }

    /// Stochastic gradient descent with momentum.
    pub fn sgd(momentum: f32) -> Self {
        Optimizer::new(UpdateRule::Sgd { momentum, nesterov: false })
    }

    /// Adam with the usual constants.
    pub fn adam() -> Self {
        Optimizer::new(UpdateRule::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, decoupled: false })
    }

    /// AdamW with the usual constants and this weight decay.
    pub fn adamw(decay: f32) -> Self {
        let rule = UpdateRule::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, decoupled: true };
        Optimizer::new(rule).decay(decay)
    }

    /// Weight decay.
    #[must_use]
    pub fn decay(self, decay: f32) -> Self {
        Optimizer { decay, ..self }
    }

    /// Which parameters decay.
    #[must_use]
    pub fn decays(self, decays: Decays) -> Self {
        Optimizer { decays, ..self }
    }

    /// The largest gradient norm let through; `None` for no clipping.
    #[must_use]
    pub fn clip(self, clip: Option<f32>) -> Self {
        Optimizer { clip, ..self }
    }

    /// Gradients stay readable after the step.
    #[must_use]
    pub fn keep_gradients(self, keep_gradients: bool) -> Self {
        Optimizer { keep_gradients, ..self }
    }

    /// Parameters that stay as they are, by patterns for their names: `*` is any text. They have no gradient and no state.
    /// A pattern after `!` means parameters that are trained; if the first one does, all others are frozen. The last pattern
    /// that matches a name counts.
    ///
    /// ```
    /// # use phalanx_lower::Optimizer;
    /// let but_embeddings = Optimizer::adamw(0.1).frozen(["*wte*", "*wpe*"]);
    /// let last_block_alone = Optimizer::adamw(0.1).frozen(["!*.h.11.*"]);
    /// ```
    #[must_use]
    pub fn frozen<P: Into<String>>(self, patterns: impl IntoIterator<Item = P>) -> Self {
        Optimizer { frozen: patterns.into_iter().map(Into::into).collect(), ..self }
    }

    /// Parameters whose names match a pattern get `rate` times the learning rate, and another weight decay if it is given.
    /// The last group that matches a name counts.
    ///
    /// ```
    /// # use phalanx_lower::Optimizer;
    /// let slow_body = Optimizer::adamw(0.1).group("body.*", 0.1, None).group("*.bias", 1.0, Some(0.0));
    /// ```
    #[must_use]
    pub fn group(mut self, pattern: impl Into<String>, rate: f32, decay: Option<f32>) -> Self {
        self.groups.push(ParameterGroup { pattern: pattern.into(), rate, decay });
        self
    }
}

/// Which parameters decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decays {
    /// All of them.
    All,
    /// Those with two dimensions or more: no biases, no norm weights.
    Matrices,
}

/// An update rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UpdateRule {
    /// Stochastic gradient descent.
    Sgd {
        /// Decay of the velocity; zero for none.
        momentum: f32,
        /// Nesterov's look-ahead.
        nesterov: bool,
    },
    /// Adam; `decoupled` makes it AdamW.
    Adam {
        /// Decay of the first moment.
        beta1: f32,
        /// Decay of the second moment.
        beta2: f32,
        /// Added to the root of the second moment.
        eps: f32,
        /// Weight decay acts on the parameter, not on the gradient.
        decoupled: bool,
    },
}

/// Leaves of the sums that a plan may split, by class of axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaves {
    /// Sums over rows: weight and bias gradients, losses.
    pub batch: usize,
    /// Sums over features: matrix products.
    pub feature: usize,
    /// Sums over time inside the batch: gradients of biases and norm weights.
    pub sequence: usize,
}

/// Everything the passes need to know besides the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct LowerOptions {
    /// What the step is for.
    pub goal: Goal,
    /// How sums are cut.
    pub leaves: Leaves,
    /// What matrix products are computed in.
    pub precision: Precision,
    /// Seed of dropout.
    pub seed: u64,
    /// Cuts that do not follow the leaves of a sum are allowed; the bits then depend on the plan.
    pub free_bits: bool,
    /// Tasks are joined: element-wise ones, and the last linear layer with its loss. The bits do not depend on it.
    pub fuse: bool,
    /// Which movements are joined.
    pub buckets: BucketSizes,
    /// Devices of a node, inside of which bytes move faster than between two; none if all are equally near. The bits do
    /// not depend on it.
    pub node: Option<usize>,
}

/// Which movements are small, and how many of them make a large one. The bits do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketSizes {
    /// Movements that touch at most this many bytes on each device are small.
    pub small: usize,
    /// A bucket is full when it touches this many bytes on each device: what waits in it stays in memory.
    pub full: usize,
    /// Movements of parameters can come before they are needed: those up to this size on each device go with earlier ones
    /// until they touch this many bytes together; none for zero.
    pub early: usize,
}

impl Default for BucketSizes {
    fn default() -> Self {
        BucketSizes { small: 16 << 10, full: 256 << 10, early: 0 }
    }
}
