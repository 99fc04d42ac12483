//! The programs of README and book, and the examples, as doc tests: they compile, and they run.
#![doc = include_str!("../../../README.md")]
#![doc = include_str!("../../../docs/src/own-model.md")]
//! ```
#![doc = include_str!("../../../examples/bert.rs")]
//! ```
//! ```
#![doc = include_str!("../../../examples/cnn.rs")]
//! ```
//! ```
#![doc = include_str!("../../../examples/custom_loss.rs")]
//! ```
//! ```
#![doc = include_str!("../../../examples/custom_operator.rs")]
//! ```
//! ```
#![doc = include_str!("../../../examples/dlrm.rs")]
//! ```
//! ```
#![doc = include_str!("../../../examples/evaluate.rs")]
//! ```
//! ```
#![doc = include_str!("../../../examples/fine_tune.rs")]
//! ```
//! ```
#![doc = include_str!("../../../examples/gpt.rs")]
//! ```
//! ```
#![doc = include_str!("../../../examples/gradients.rs")]
//! ```
//! ```
#![doc = include_str!("../../../examples/infer.rs")]
//! ```
//! ```
#![doc = include_str!("../../../examples/levels.rs")]
//! ```
//! ```
#![doc = include_str!("../../../examples/own_data.rs")]
//! ```
//! ```
#![doc = include_str!("../../../examples/own_model.rs")]
//! ```
//! ```
#![doc = include_str!("../../../examples/pipelined.rs")]
//! ```
//! ```
#![doc = include_str!("../../../examples/plan_file.rs")]
//! ```
//! ```
#![doc = include_str!("../../../examples/ranks.rs")]
//! ```
//! ```
#![doc = include_str!("../../../examples/resume.rs")]
//! ```
//! ```
#![doc = include_str!("../../../examples/transformer.rs")]
//! ```
//! ```
#![doc = include_str!("../../../examples/unet.rs")]
//! ```
