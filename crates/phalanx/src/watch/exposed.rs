//! Communication that is not hidden: how long a device that could compute stands still for a transfer.
//!
//! Where the lane that computes also receives, that is the wait for each receive and the receive itself; where transfers
//! have lanes of their own, the time before each operation that waits for one of them. All of it is read from a profile,
//! also while a run goes on: the operations of a lane follow each other, so of what a later run has begun to overwrite at
//! most one gap is missed.

use phalanx_program::{ARRIVE, Operation, Program, RECEIVE, Wait};

use crate::Profile;

/// The gaps to add up, by device.
#[derive(Debug)]
pub struct Exposed(Vec<Vec<Gap>>);

/// From the end of an operation on.
#[derive(Clone, Copy, Debug)]
struct Gap {
    /// The operation, by its position in the program.
    after: usize,
    until: Until,
}

#[derive(Clone, Copy, Debug)]
enum Until {
    /// The next operation begins.
    NextBegins,
    /// The next operation, a transfer, has ended.
    NextEnds,
}

impl Exposed {
    /// The gaps of a program; nothing if no device waits for another one.
    pub fn of(program: &Program) -> Option<Exposed> {
        let lanes = program.homes().map(|home| {
            let positions = home.operations.start as usize..home.operations.end as usize;
            positions.clone().zip(positions.skip(1)).filter_map(|(after, next)| {
                let next = &program.operations()[next];
                let until = match is_transfer(program, next) {
                    true => Until::NextEnds,
                    false if waits_for_transfer(program, next) => Until::NextBegins,
                    false => return None,
                };
                Some(Gap { after, until })
            })
        });
        let lanes: Vec<Vec<Gap>> = lanes.map(Iterator::collect).collect();
        lanes.iter().any(|gaps| !gaps.is_empty()).then_some(Exposed(lanes))
    }

    /// Seconds of the device that waited longest, in the last run that `profile` measured.
    pub fn seconds(&self, profile: &Profile) -> f64 {
        let waited = |gap: &Gap| {
            let (begin, (start, end)) = (profile.span(gap.after).1, profile.span(gap.after + 1));
            match gap.until {
                Until::NextBegins => start.saturating_sub(begin),
                Until::NextEnds => end.saturating_sub(begin),
            }
        };
        let longest = self.0.iter().map(|gaps| gaps.iter().map(waited).sum::<u64>()).max();
        longest.unwrap_or(0) as f64 / 1e9
    }
}

fn is_transfer(program: &Program, operation: &Operation) -> bool {
    matches!(program.kernel(operation), RECEIVE | ARRIVE)
}

fn waits_for_transfer(program: &Program, operation: &Operation) -> bool {
    let is_one = |wait: &Wait| {
        let lane = &program.lanes()[wait.lane as usize];
        is_transfer(program, &program.operations_of(lane)[wait.position as usize])
    };
    program.waits(operation).iter().chain(program.carried(operation)).any(is_one)
}
