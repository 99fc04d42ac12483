//! Waits for everything that an operation must come after.
//!
//! Given are operations in an order, with waits that point backward in it. Of two that touch the same bytes, one of them
//! writing, the later one gets a wait for the earlier one, unless lanes and other waits imply it: as in the verifier's look
//! for races, but what is not ordered is put in order. Waits that others imply are dropped, given ones too.

use std::collections::BTreeMap;

use crate::builder::append;
use crate::verify::{Arenas, Clocks, uses};
use crate::{Program, Wait};

/// Gives every operation the waits it needs, and no others, if operations run as `order` says.
pub(crate) fn settle(program: &mut Program, order: &[Wait]) {
    let waits = needed(program, order);
    program.waits.clear();
    for (operation, waits) in program.operations.iter_mut().zip(&waits) {
        operation.waits = append(&mut program.waits, waits);
    }
}

/// By operation: the waits it needs.
fn needed(program: &Program, order: &[Wait]) -> Vec<Vec<Wait>> {
    let mut waits: Vec<Vec<Wait>> = vec![Vec::new(); program.operations.len()];
    let (mut arenas, mut clocks) = (Arenas::new(program), Clocks::of_any_waits(program));
    for &at in order {
        let mut latest: BTreeMap<u32, u32> = BTreeMap::new();
        let mut after = |Wait { lane, position }: Wait| {
            let latest = latest.entry(lane).or_default();
            *latest = (*latest).max(position);
        };
        let operation = &program.operations[program.index_of(at)];
        program.waits(operation).iter().for_each(|&wait| after(wait));
        for (slice, writes) in uses(program, operation) {
            if let Some(arenas) = &mut arenas {
                let row = arenas.conflicts(at, slice, writes, &mut after);
                arenas.note(at, slice, writes, &row);
            }
        }
        let after = latest.into_iter().map(|(lane, position)| Wait { lane, position });
        let open: Vec<Wait> = after.filter(|&wait| !clocks.knows(at.lane, wait)).collect();
        let is_implied = |wait: &Wait| open.iter().any(|&other| clocks.knew_at(other, *wait));
        let needed: Vec<Wait> = open.iter().copied().filter(|wait| !is_implied(wait)).collect();
        needed.iter().for_each(|&wait| clocks.wait(at.lane, wait));
        clocks.complete(at);
        waits[program.index_of(at)] = needed;
    }
    waits
}
