//! Processors that need no queue: those whose segments are leaves that follow each other anyway.
//!
//! If the last step of each segment of a processor has an early edge to the next segment, the processor can only run them
//! one after the other, as they are laid out. Then its cursor does: arrivals from the processor itself are left out of
//! the gates, nothing is queued, and the worker looks at the gate of its next segment alone. For a segment with one
//! predecessor elsewhere, one store on one cache line is all that passes between two processors.

use phalanx_program::flow::{Flow, Regime};

/// By processor: whether it runs its segments in the order in which they are laid out.
pub(super) fn processors(flow: &Flow) -> Vec<bool> {
    (0..flow.processors()).map(|processor| is_serial(flow, processor)).collect()
}

fn is_serial(flow: &Flow, processor: u32) -> bool {
    let (segments, steps) = (flow.segments(), flow.steps());
    flow.owned(processor).all(|number| {
        let segment = &segments[number as usize];
        let leaves = steps[segment.first as usize..segment.end as usize]
            .iter()
            .all(|step| step.regime == Regime::Leaf);
        let last = number + 1 == flow.owned(processor).end;
        leaves && (last || flow.early().of(segment.end - 1).contains(&(number + 1)))
    })
}

/// By segment: arrivals that its gate counts in a run, without those from the run before.
pub(super) fn arrivals(flow: &Flow, serial: &[bool]) -> Vec<u32> {
    let segments = flow.segments();
    let mut arrivals: Vec<u32> = segments.iter().map(|segment| segment.fan_in).collect();
    for (processor, _) in (0..).zip(serial).filter(|(_, serial)| **serial) {
        let owned = flow.owned(processor).map(|number| &segments[number as usize]);
        for step in owned.flat_map(|segment| segment.first..segment.end) {
            let own =
                flow.early().of(step).iter().filter(|&&to| segments[to as usize].processor == processor);
            own.for_each(|&to| arrivals[to as usize] -= 1);
        }
    }
    arrivals
}
