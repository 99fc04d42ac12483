//! Whole programs: gradients, bits, plans, checkpoints, parity with PyTorch. One binary, because each would link
//! everything; `replay`, whose allocator counts for the whole process, has one of its own.

mod training;

mod bits;
mod check;
mod ckpt;
mod classes;
mod costs;
mod data;
mod decoders;
mod fine_tune;
mod fuse_loss;
mod fusion;
mod generate;
mod gradients;
mod images;
mod malformed;
mod movements;
mod mutants;
mod nn;
mod one_answer;
mod operators;
mod overlap;
mod plans;
mod precision;
mod random_plans;
mod ranks;
mod recompute;
mod report;
mod states;
mod structures;
mod watch;
