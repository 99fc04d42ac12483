//! Plans, presets and microbatches.

mod microbatches;
mod plans;
mod presets;
mod random;
mod structures;
mod unchanged;
