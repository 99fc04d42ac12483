//! The command. Jobs of many processes (`ranks`) and the commands of the book (`docs`) have binaries of their own.

mod common;
#[allow(dead_code, clippy::unwrap_used, reason = "`ranks` uses all of it")]
#[path = "ranks/mpi.rs"]
mod mpi;

mod artifact;
mod bench_checkpoints;
mod bench_copies;
mod bench_tasks;
mod check;
mod ckpt;
mod commands;
mod costs;
mod data;
mod fine_tune;
mod hashes;
mod launch;
mod overlap;
mod permissions;
mod plans;
mod precision;
mod profile;
mod restarts;
mod resume;
mod schedule;
mod train;
mod watch;
mod zoo;
