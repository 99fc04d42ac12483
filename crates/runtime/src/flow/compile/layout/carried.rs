//! Arrivals from the run before: those declared, and in pipelined flows what orders each segment after itself.

use super::Places;
use crate::flow::builder::Builder;
use crate::flow::compile::Class;
use crate::flow::{DIRECT, Lists, Mode, TaskKind};

/// By step: segments of the next run to arrive at, which are counted there. An operation that a carried edge enters
/// heads its segment.
pub(super) fn arrivals(builder: &Builder, predecessors: &Lists, places: &mut Places) -> Lists {
    let mut pairs: Vec<_> = builder
        .carried
        .iter()
        .map(|&(from, to)| (places.step_of[from.0 as usize], places.segment_of[to.0 as usize]))
        .collect();
    if matches!(builder.mode, Mode::Pipelined { .. }) {
        order_after_itself(builder, predecessors, places, &mut pairs);
    }
    let carried = Lists::group(places.steps.len(), &pairs).without_repeats(places.segments.len());
    for (at, step) in places.steps.iter().enumerate() {
        let source = &builder.ops[step.op.0 as usize];
        for &segment in carried.of(at as u32) {
            let segment = &mut places.segments[segment as usize];
            segment.carried_in += 1;
            // Only a non-blocking operation is complete while its worker still holds it.
            segment.private &=
                source.kind == TaskKind::NonBlocking && source.processor == Some(segment.processor);
        }
    }
    carried
}

/// Adds an edge from the end of every segment to itself, but not where a closed chain of them implies it.
fn order_after_itself(builder: &Builder, predecessors: &Lists, places: &Places, pairs: &mut Vec<(u32, u32)>) {
    let closed = closed(places, pairs);
    for (owner, &(first, end)) in places.owned.iter().enumerate() {
        let implied =
            closed[owner] && (first + 1..end).all(|next| linked(builder, predecessors, places, next));
        if !implied {
            pairs.extend((first..end).map(|segment| (places.last_step(segment), segment)));
        }
    }
}

/// By processor, and one more for the direct ones: whether its last step of a run releases its first segment of the
/// next. Direct segments have no order among them and are never closed.
fn closed(places: &Places, pairs: &[(u32, u32)]) -> Vec<bool> {
    let mut closed = vec![false; places.owned.len()];
    for &(step, segment) in pairs {
        let processor = places.segments[segment as usize].processor;
        if processor != DIRECT {
            let (first, end) = places.owned[processor as usize];
            closed[processor as usize] |= segment == first && step == places.last_step(end - 1);
        }
    }
    closed
}

/// Whether a segment starts only when the one before it is complete. A token does not count: it holds back device work,
/// and not even that if the segment is skipped.
fn linked(builder: &Builder, predecessors: &Lists, places: &Places, segment: u32) -> bool {
    let head = places.head(segment);
    let last = places.steps[places.last_step(segment - 1) as usize].op.0;
    let class = || Class::of(&builder.ops[last as usize], &builder.ops[head as usize]);
    predecessors.of(head).contains(&last) && class() != Class::Token
}
