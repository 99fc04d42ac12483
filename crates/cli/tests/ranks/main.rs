//! Many processes: the same bits, every way in which a job can end badly, and how it goes on then.
//!
//! The tests start real jobs under Open MPI's and MPICH's launchers, which `cargo xtask test` installs.
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
mod ports;
