//! Ranks and byte movement between devices. Knows devices by number and bytes by count, and no tensors.
//!
//! A [`Network`] is what one process of a job sees of the others: threads ([`local`]) or real processes ([`mpi`]).
//! Unsafe code is where bytes are moved by address: in these two.
//!
//! Devices of one process share memory, so that a transfer takes no longer than reading it. A [`Throttle`] delays
//! transfers back to the time that a link of a network would take.

pub mod local;
pub mod mpi;
mod network;
mod throttle;
mod timer;

pub use network::{
    Advance, AlertCallback, Done, DriverWork, Message, NetError, Network, Region, Transfers, Way,
};
pub use throttle::Throttle;
