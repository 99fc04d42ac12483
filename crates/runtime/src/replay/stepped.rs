//! Runs of a program on the caller's thread, one operation at a time, in an order that a seed chooses.
//!
//! Every order that the program allows may come up, runs that overlap included. The bits must not depend on it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use phalanx_program::flow::{Flow, Id};

use crate::fault::{Fault, Outcome};
use crate::graph::{Stepper, Visit};
use crate::processor::panic_message;

use super::memory::{Kernels, Memory};

/// Does `runs`, which follow each other and start when all runs before them have ended; what became of each.
pub(super) fn step<K: Kernels>(flow: &Flow, memory: &Memory<K>, runs: &[u64], seed: u64) -> Vec<Outcome> {
    let execute = |visit: Visit<'_>| {
        let (operation, run) = (visit.op.index(), runs[visit.run as usize]);
        // SAFETY: the stepper keeps the orders of the flow, and its first run follows all runs before.
        let call = || unsafe { memory.execute(operation, run) };
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
