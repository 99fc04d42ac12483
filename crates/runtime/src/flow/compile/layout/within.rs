//! Arrivals within a run: of predecessors, and of the start where there is none.

use super::Places;
use crate::flow::builder::{Builder, Op};
use crate::flow::compile::Class;
use crate::flow::{Lists, TaskKind};

/// Which step releases which segments within a run. The fields become those of the flow.
pub(super) struct Within {
    pub roots: Vec<u32>,
    pub early: Lists,
    pub late: Lists,
    pub tokens: Lists,
}

/// Sorts the edges between segments by how they are released, and counts them where they arrive.
pub(super) fn arrivals(builder: &Builder, predecessors: &Lists, places: &mut Places) -> Within {
    let mut roots = Vec::new();
    let (mut early, mut late, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
    for segment in 0..places.segments.len() as u32 {
        let head = places.head(segment);
        let op = &builder.ops[head as usize];
        let before = predecessors.of(head);
        let mut private = true;
        for &from in before {
            let (source, step) = (&builder.ops[from as usize], places.step_of[from as usize]);
            let class = Class::of(source, op);
            match class {
                Class::Early | Class::Token => early.push((step, segment)),
                Class::Late => late.push((step, segment)),
            }
            if class == Class::Token {
                tokens.push((places.step_of[head as usize], step));
            }
            private &= source.processor == op.processor && released_by_worker(source, class);
        }
        if before.is_empty() {
            roots.push(segment);
        }
        let place = &mut places.segments[segment as usize];
        place.fan_in = before.len().max(1) as u32;
        place.private &= private;
    }
    let group = |pairs: Vec<_>| Lists::group(places.steps.len(), &pairs);
    Within { roots, early: group(early), late: group(late), tokens: group(tokens) }
}

/// Whether the worker that ran `source` is sure to be the one that arrives. What a blocking task attaches may complete
/// on any thread, and so may what is released late.
fn released_by_worker(source: &Op, class: Class) -> bool {
    class == Class::Token || source.kind == TaskKind::NonBlocking
}
