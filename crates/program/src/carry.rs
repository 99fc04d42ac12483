//! Which operations wait for ones of the run before, so that runs may overlap.
//!
//! The verifier tells which operations would overtake others of the run before; making each wait for what it overtakes
//! is enough, but more than needed: what is waited for may itself be after something that is waited for too. So in a
//! second look, with exact knowledge, every carried wait is dropped that the others imply. A carried wait can be implied
//! only by waits of the same operation or of ones before it, as paths from one run to the next cross once and never go
//! back; so one pass in an order of execution leaves none that is implied, and the result depends on no choice.

use crate::builder::append;
use crate::verify::{Clocks, Overtake, walk};
use crate::{Program, ProgramError, Wait};

/// Checks a program without carried waits and adds the fewest that it needs.
pub(crate) fn carry(program: &mut Program) -> Result<(), Vec<ProgramError>> {
    let overtakes = program.overtakes()?;
    if !overtakes.is_empty() {
        set_carried(program, overtakes);
        let needed = needed(program);
        set_carried(program, needed);
    }
    Ok(())
}

/// Gives every second operation a carried wait for the last of its first ones in each lane.
fn set_carried(program: &mut Program, mut overtakes: Vec<Overtake>) {
    let key =
        |Overtake { first, second }: &Overtake| (second.lane, second.position, first.lane, first.position);
    overtakes.sort_unstable_by_key(|overtake| std::cmp::Reverse(key(overtake)));
    overtakes.dedup_by_key(|Overtake { first, second }| (second.lane, second.position, first.lane));
    program.carried.clear();
    let (mut rest, mut waits) = (overtakes, Vec::new());
    for lane in 0..program.lanes.len() {
        let operations = program.lanes[lane].operations.clone();
        for (position, index) in (0..).zip(operations) {
            let second = Wait { lane: lane as u32, position };
            waits.clear();
            while let Some(next) = rest.pop_if(|next| next.second == second) {
                waits.push(next.first);
            }
            program.operations[index as usize].carried = append(&mut program.carried, &waits);
        }
    }
}

/// The carried waits that no others imply.
fn needed(program: &Program) -> Vec<Overtake> {
    let (mut clocks, mut needed) = (Clocks::new(program), Vec::new());
    let wait = |clocks: &mut Clocks<'_>, at: Wait| {
        let operation = &program.operations[program.index_of(at)];
        program.waits(operation).iter().for_each(|&wait| clocks.wait(at.lane, wait));
        operation
    };
    walk(program, |at| {
        wait(&mut clocks, at);
        clocks.complete(at);
    });
    clocks.next_run();
    walk(program, |second| {
        let operation = wait(&mut clocks, second);
        let carried = program.carried(operation);
        clocks.carry(second.lane, carried, |first| needed.push(Overtake { first, second }));
        clocks.complete(second);
    });
    needed
}
