//! Ranks and byte movement between devices. Knows devices by number and bytes by count, and no tensors.
//!
//! A [`Network`] is what one process of a job sees of the others: threads ([`local`]) or real processes ([`mpi`]). Unsafe
//! code is where bytes are moved by address: in these two and in [`Ball`].
//!
//! Devices of one process share memory, so that a transfer takes no longer than reading it. A [`Link`] says how long it
//! would take on a network; [`Traffic`] is the arithmetic of who holds up whom, used alike to predict a step and to
//! run one; a [`Wire`] holds real transfers back to it.

mod ball;
mod link;
pub mod local;
pub mod mpi;
mod network;
mod timer;
mod traffic;
mod wire;

pub use ball::Ball;
pub use link::{Link, LinkError};
pub use network::{Done, Hear, MAX_DIMS, Message, NetError, Network, Region, Transfers, Turn, Turns, Way};
pub use traffic::{Part, Traffic};
pub use wire::Wire;
