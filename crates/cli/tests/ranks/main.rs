//! Many processes: the same bits, every way in which a job can end badly, and how it goes on then.
//!
//! The tests start real jobs under the launchers that this machine has, Open MPI's and MPICH's; one that lacks its launcher
//! says so and passes. `cargo xtask test` installs both.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod chain;
mod elastic;
mod faults;
mod hosts;
mod mpi;
mod outputs;
