//! Arrivals as bodies of a graph's operations.
//!
//! Which barrier, and with what value, the operation's arguments say. So one function serves all arrivals of a graph,
//! and interpolations give each run a handle and a value of its own.

use std::sync::Arc;

use phalanx_runtime::parts::without_promise;
use phalanx_runtime::{Context, Function};

use super::{Arrival, Barrier, BarrierError, Barriers};

/// Bytes of the arguments of an arrival.
const ARGS: usize = 24;

impl Barriers {
    /// Where in the arguments of an arrival the handle starts, for an interpolation of [`Barrier::to_bytes`].
    pub const HANDLE_AT: u32 = 0;

    /// Where in the arguments of an arrival the value starts, for an interpolation of an `i64`.
    pub const VALUE_AT: u32 = 16;

    /// The arguments of an operation that arrives once at `barrier` with `value`.
    pub fn args(barrier: Barrier, value: i64) -> [u8; ARGS] {
        let mut args = [0; ARGS];
        args[..Barriers::VALUE_AT as usize].copy_from_slice(&barrier.to_bytes());
        args[Barriers::VALUE_AT as usize..].copy_from_slice(&value.to_ne_bytes());
        args
    }

    /// The body of operations that arrive, each as its arguments say. It never waits, so the operation can be
    /// non-blocking or direct; it fails if the barrier does not take the arrival.
    pub fn function(self: &Arc<Self>) -> Function {
        let barriers = Arc::clone(self);
        Box::new(move |context| barriers.arrive_with_args(context))
    }

    fn arrive_with_args(self: &Arc<Self>, context: &Context<'_>) {
        let args = context.args();
        let (Some((&handle, value)), ARGS) = (args.split_first_chunk(), args.len()) else {
            let n = args.len();
            return context.fail(format_args!("{n} bytes of arguments for an arrival; use `Barriers::args`"));
        };
        let value = value.first_chunk().copied().map_or(0, i64::from_ne_bytes);
        let barrier = Barrier::from_bytes(handle);
        let mut outcome = Ok(());
        // A waiter of the barrier has promised nothing.
        without_promise(|| {
            outcome = match self.has(barrier) {
                true => self.arrive(barrier, Arrival { value, ..Arrival::default() }),
                false => Err(BarrierError::Unknown(barrier)),
            };
        });
        if let Err(error) = outcome {
            context.fail(error);
        }
    }

    /// Whether there ever was a barrier of this number: arguments may hold anything, and the table grows to what it is
    /// asked for.
    fn has(&self, barrier: Barrier) -> bool {
        barrier.index < self.tallies.used()
    }
}

impl Barrier {
    /// The handle as arguments of an operation hold it.
    pub fn to_bytes(self) -> [u8; 16] {
        let word = u128::from(self.stamp) << 64 | u128::from(self.generation) << 32 | u128::from(self.index);
        word.to_ne_bytes()
    }

    fn from_bytes(bytes: [u8; 16]) -> Barrier {
        let word = u128::from_ne_bytes(bytes);
        Barrier { index: word as u32, generation: (word >> 32) as u32, stamp: (word >> 64) as u64 }
    }
}
