//! Gives everything its place: steps, segments, and the lists between them.
//!
//! Steps of a segment lie together, segments of a processor lie together in a topological order, and arguments lie in
//! the order of steps, so that a processor walks memory forward.

mod carried;
mod places;
mod within;

use places::Places;

use super::fuse::Chains;
use crate::flow::builder::{Builder, Insert};
use crate::flow::{Flow, Interpolation, Lists};

/// Lays out chains of operations with the given predecessors.
pub(super) fn lay_out(builder: Builder, predecessors: &Lists, chains: &Chains) -> Flow {
    let mut places = Places::new(&builder, chains);
    let within = within::arrivals(&builder, predecessors, &mut places);
    let carried = carried::arrivals(&builder, predecessors, &mut places);
    let inputs = inputs(&builder, &mut places);
    Flow {
        mode: builder.mode,
        processors: builder.processors,
        label_of: builder.ops.iter().map(|op| op.label).collect(),
        roots: within.roots,
        early: within.early,
        late: within.late,
        carried,
        tokens: within.tokens,
        posts: posts(&builder, &places),
        n_posts: builder.posts.len() as u32,
        inputs,
        args: args(&builder, &places),
        run_args: builder.run_args,
        interpolations: interpolations(&builder, &places),
        functions: builder.ops.iter().map(|op| op.function + 1).max().unwrap_or(0),
        name: builder.name,
        labels: builder.labels,
        steps: places.steps,
        segments: places.segments,
        owned: places.owned,
    }
}

/// By input: the segments it opens, which are counted there. An operation with an input heads its segment.
fn inputs(builder: &Builder, places: &mut Places) -> Lists {
    let gates: Vec<_> =
        builder.gates.iter().map(|&(input, op)| (input.0, places.segment_of[op.0 as usize])).collect();
    let inputs = Lists::group(builder.inputs.len(), &gates).without_repeats(places.segments.len());
    inputs.items().iter().for_each(|&segment| places.segments[segment as usize].fan_in += 1);
    inputs
}

/// By step: the posts it is part of.
fn posts(builder: &Builder, places: &Places) -> Lists {
    let posters: Vec<_> =
        builder.posters.iter().map(|&(op, post)| (places.step_of[op.0 as usize], post.0)).collect();
    Lists::group(places.steps.len(), &posters).without_repeats(builder.posts.len())
}

/// The arguments of all operations in the order of steps.
fn args(builder: &Builder, places: &Places) -> Vec<u8> {
    let mut args = Vec::with_capacity(builder.args.len());
    for step in &places.steps {
        let (first, end) = builder.ops[step.op.0 as usize].args;
        args.extend_from_slice(&builder.args[first..end]);
    }
    args
}

/// In the order of declaration, since a later one may change what an earlier one has written.
fn interpolations(builder: &Builder, places: &Places) -> Vec<Interpolation> {
    let place = |insert: &Insert| {
        let step = &places.steps[places.step_of[insert.op.0 as usize] as usize];
        Interpolation {
            // Both fit: they lie within the run's arguments, whose size is a `u32`.
            from: insert.from.start as u32,
            bytes: (insert.from.end - insert.from.start) as u32,
            to: step.args.0 + insert.at,
            patch: insert.patch,
        }
    };
    builder.inserts.iter().map(place).collect()
}
