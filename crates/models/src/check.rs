//! What a configuration must satisfy before a graph is built from it.

use phalanx_ir::graph::BuildError;
use phalanx_nn::NnError;

/// Why a configuration gives no graph.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum ModelError {
    /// A size is zero.
    #[error("{model}: `{field}` is 0; set it to at least 1")]
    Zero { model: &'static str, field: &'static str },
    /// A size is too small.
    #[error("{model}: `{field}` is {value}; set it to at least {least}")]
    Small { model: &'static str, field: &'static str, value: usize, least: usize },
    /// A size is too large.
    #[error("{model}: `{field}` is {value}; set it to at most {most}")]
    Large { model: &'static str, field: &'static str, value: usize, most: usize },
    /// A size is no multiple of another.
    #[error("{model}: `{field}` {value} is not a multiple of `{divisor}` {by}; {fix}")]
    NotDivisible {
        model: &'static str,
        field: &'static str,
        value: usize,
        divisor: &'static str,
        by: usize,
        fix: String,
    },
    /// A head cannot be cut in halves.
    #[error("{model}: `{field}` {value} is odd but rotary positions pair its halves; set it to {} or {}", value - 1, value + 1)]
    Odd { model: &'static str, field: &'static str, value: usize },
    /// The batch is longer than the model can see.
    #[error(
        "{model}: `time` {time} exceeds `context` {context}; use at most {context} tokens or a larger context"
    )]
    TooLong { model: &'static str, time: usize, context: usize },
    /// A tensor would be larger than any machine holds.
    #[error("{model}: a tensor of {sizes} elements is too large; make one of these sizes smaller")]
    TooLarge { model: &'static str, sizes: String },
    /// The model would have more blocks than anybody trains.
    #[error("{model}: `layers` is {layers}; use at most {MOST_LAYERS}")]
    TooDeep { model: &'static str, layers: usize },
    /// A real-valued setting is outside its range.
    #[error("{model}: `{field}` is {value}; use a value {range}")]
    Range { model: &'static str, field: &'static str, value: f32, range: &'static str },
    /// The family of the model does not have this.
    #[error("{model}: `{field}` is {value}; {wanted}")]
    Family { model: &'static str, field: &'static str, value: String, wanted: String },
    /// A text that is generated is longer than a sliding window.
    #[error(
        "{model}: {time} tokens exceed the sliding window of {window} tokens; generation goes on within the window only: \
         use at most {window} tokens"
    )]
    BeyondWindow { model: &'static str, time: usize, window: usize },
    /// No linear layer has such a name.
    #[error("lora: `{pattern}` matches no linear layer of the model; the closest names are {close}")]
    NoModule { pattern: String, close: String },
    /// A set of characters in a pattern is not closed or empty.
    #[error("lora: `{pattern}` is no pattern: close its brackets and put something between them")]
    Pattern { pattern: String },
    /// A layer cannot be built.
    #[error(transparent)]
    Build(Box<BuildError>),
    /// A model written as a function cannot be built.
    #[error(transparent)]
    Nn(Box<NnError>),
}

impl From<NnError> for ModelError {
    fn from(error: NnError) -> Self {
        ModelError::Nn(Box::new(error))
    }
}

impl From<BuildError> for ModelError {
    fn from(error: BuildError) -> Self {
        ModelError::Build(Box::new(error))
    }
}

/// More elements than any tensor may have: 256 Ti. Products of sizes below it never overflow.
const TOO_MANY: usize = 1 << 48;

/// The most blocks a model may have: all are written out in its graph.
const MOST_LAYERS: usize = 1 << 14;

/// Checks of one family's configuration.
pub(crate) struct Check(pub(crate) &'static str);

impl Check {
    pub(crate) fn positive(&self, sizes: &[(&'static str, usize)]) -> Result<(), ModelError> {
        match sizes.iter().find(|(_, size)| *size == 0) {
            Some(&(field, _)) => Err(ModelError::Zero { model: self.0, field }),
            None => Ok(()),
        }
    }

    pub(crate) fn divides(
        &self,
        (divisor, by): (&'static str, usize),
        (field, value): (&'static str, usize),
    ) -> Result<(), ModelError> {
        if value.is_multiple_of(by) {
            return Ok(());
        }
        let (below, above) = (value / by * by, value.div_ceil(by) * by);
        let fix = match below {
            0 => format!("set `{field}` to {above}"),
            _ => format!("set `{field}` to {below} or {above}"),
        };
        Err(ModelError::NotDivisible { model: self.0, field, value, divisor, by, fix })
    }

    /// A size has a lower bound.
    pub(crate) fn at_least(
        &self,
        (field, value): (&'static str, usize),
        least: usize,
    ) -> Result<(), ModelError> {
        match value >= least {
            true => Ok(()),
            false => Err(ModelError::Small { model: self.0, field, value, least }),
        }
    }

    /// A size has an upper bound.
    pub(crate) fn at_most(
        &self,
        (field, value): (&'static str, usize),
        most: usize,
    ) -> Result<(), ModelError> {
        match value <= most {
            true => Ok(()),
            false => Err(ModelError::Large { model: self.0, field, value, most }),
        }
    }

    /// A size is a multiple of two, or one less than that.
    pub(crate) fn parity(&self, (field, value): (&'static str, usize), even: bool) -> Result<(), ModelError> {
        if value.is_multiple_of(2) == even {
            return Ok(());
        }
        let wanted = if even { "use an even number" } else { "use an odd number" };
        Err(ModelError::Family { model: self.0, field, value: value.to_string(), wanted: wanted.into() })
    }

    /// The features of a stack of linear layers, whose first one has `inputs`.
    pub(crate) fn stack(
        &self,
        field: &'static str,
        inputs: usize,
        widths: &[usize],
    ) -> Result<(), ModelError> {
        self.layers(widths.len())?;
        widths.iter().try_for_each(|&width| self.positive(&[(field, width)]))?;
        let before = [inputs].into_iter().chain(widths.iter().copied());
        before.zip(widths).try_for_each(|(inputs, &width)| self.bounded(&[(field, inputs), (field, width)]))
    }

    /// The product of these sizes is the size of a tensor.
    pub(crate) fn bounded(&self, sizes: &[(&'static str, usize)]) -> Result<(), ModelError> {
        if sizes.iter().fold(1, |product: usize, (_, size)| product.saturating_mul(*size)) < TOO_MANY {
            return Ok(());
        }
        let sizes: Vec<String> = sizes.iter().map(|(field, size)| format!("`{field}` {size}")).collect();
        Err(ModelError::TooLarge { model: self.0, sizes: sizes.join(" x ") })
    }

    pub(crate) fn layers(&self, layers: usize) -> Result<(), ModelError> {
        match layers <= MOST_LAYERS {
            true => Ok(()),
            false => Err(ModelError::TooDeep { model: self.0, layers }),
        }
    }

    pub(crate) fn even(&self, field: &'static str, value: usize) -> Result<(), ModelError> {
        if value.is_multiple_of(2) {
            return Ok(());
        }
        Err(ModelError::Odd { model: self.0, field, value })
    }

    pub(crate) fn fits(&self, time: usize, context: usize) -> Result<(), ModelError> {
        if time <= context {
            return Ok(());
        }
        Err(ModelError::TooLong { model: self.0, time, context })
    }

    pub(crate) fn rate(&self, field: &'static str, value: f32) -> Result<(), ModelError> {
        if (0.0..1.0).contains(&value) {
            return Ok(());
        }
        Err(ModelError::Range { model: self.0, field, value, range: "from 0 to below 1" })
    }

    pub(crate) fn above_zero(&self, field: &'static str, value: f32) -> Result<(), ModelError> {
        if value > 0.0 && value.is_finite() {
            return Ok(());
        }
        Err(ModelError::Range { model: self.0, field, value, range: "above 0" })
    }
}
