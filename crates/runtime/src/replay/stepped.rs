//! Runs of a program on the caller's thread, one operation at a time, in an order that a seed chooses.
//!
//! Every order that the program allows may come up, runs that overlap included. The bits must not depend on it.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::fault::{Fault, Outcome};
use crate::flow::{Flow, Id};
use crate::graph::{Stepper, Visit};
use crate::processor::panic_message;

use super::memory::{Kernels, Memory};

/// Shown an operation's position in the program and the slices it has just written, in order.
pub(super) type See<'a> = dyn FnMut(usize, &[&[u8]]) + 'a;

/// Does `runs`, which follow each other and start when all runs before them have ended; what became of each. `see` is
/// called after every operation.
pub(super) fn step<K: Kernels>(
    flow: &Flow,
    memory: &Memory<K>,
    runs: &[u64],
    seed: u64,
    see: Option<&mut See<'_>>,
) -> Vec<Outcome> {
    let see = RefCell::new(see);
    let execute = |visit: Visit<'_>| {
        let (operation, run) = (visit.op.index(), runs[visit.run as usize]);
        let call = || {
            // SAFETY: the stepper keeps the orders of the flow, and its first run follows all runs before.
            unsafe { memory.execute(operation, run) };
            if let Some(see) = &mut *see.borrow_mut() {
                // SAFETY: operations run on this thread, one after the other, and this one has ended.
                see(operation, &unsafe { memory.written(operation) });
            }
        };
        catch_unwind(AssertUnwindSafe(call))
            .map_err(|panic| Fault::failed(flow.label(visit.op), panic_message(&*panic)))
    };
    let mut stepper =
        Stepper::new(flow, vec![Box::new(execute)], seed).expect("a program's flow calls one function");
    for _ in runs {
        stepper.launch(&[]).expect("a program's flow takes no arguments");
    }
    while stepper.step() {}
    let ended = |run: usize| stepper.outcome(run as u64).cloned().unwrap_or(Ok(()));
    (0..runs.len()).map(ended).collect()
}
