//! Processors that need no queue: those whose segments are non-blocking and follow each other anyway.
//!
//! If the last step of each segment of a processor has an early edge to the next segment, the processor can only run
//! them one after the other, as they are laid out. Then its cursor does: arrivals from the processor itself are left
//! out of the gates, nothing is queued, and the worker looks at the gate of its next segment alone. For a segment with
//! one predecessor elsewhere, one store on one cache line is all that passes between two processors.

use crate::flow::{DIRECT, Flow, Lists, TaskKind};

/// By processor: whether it runs its segments in the order in which they are laid out.
pub(super) fn processors(flow: &Flow) -> Vec<bool> {
    (0..flow.processors()).map(|processor| is_serial(flow, processor)).collect()
}

fn is_serial(flow: &Flow, processor: u32) -> bool {
    let (segments, steps) = (flow.segments(), flow.steps());
    flow.owned(processor).all(|number| {
        let segment = &segments[number as usize];
        let nonblocking = steps[segment.first as usize..segment.end as usize]
            .iter()
            .all(|step| step.kind == TaskKind::NonBlocking);
        let last = number + 1 == flow.owned(processor).end;
        nonblocking && (last || flow.early().of(segment.end - 1).contains(&(number + 1)))
    })
}

/// By step: the segments it arrives at when its body has returned. The order of a serial processor stands for its own
/// edges, but not for those of direct steps that it does.
pub(super) fn arrivals(flow: &Flow, serial: &[bool]) -> Lists {
    let segments = flow.segments();
    let processor_of: Vec<u32> = (segments.iter())
        .flat_map(|segment| std::iter::repeat_n(segment.processor, (segment.end - segment.first) as usize))
        .collect();
    flow.early().clone().retained(|step, to| {
        let from = processor_of[step as usize];
        from != segments[to as usize].processor || from == DIRECT || !serial[from as usize]
    })
}

/// By segment: how many of these and other arrivals its gate counts in a run, without those from the run before.
pub(super) fn counts(flow: &Flow, arrivals: &Lists) -> Vec<u32> {
    let mut counts: Vec<u32> = flow.segments().iter().map(|segment| segment.fan_in).collect();
    flow.early().items().iter().for_each(|&to| counts[to as usize] -= 1);
    arrivals.items().iter().for_each(|&to| counts[to as usize] += 1);
    counts
}
