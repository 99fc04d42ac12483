//! What the builder cannot check call by call, because it may still change: sizes, mode, arguments, processors.

use crate::flow::builder::{Builder, Insert};
use crate::flow::{FlowError, Mode, OpId, Patch, TaskKind};

/// That everything can be numbered; nothing else may be looked at before that holds.
pub(super) fn sizes(builder: &Builder, limit: u64) -> Result<(), Vec<FlowError>> {
    let functions = builder.ops.iter().map(|op| u64::from(op.function) + 1).max().unwrap_or(0);
    let ops = builder.ops.len() as u64;
    let sizes = [
        ("operations", ops),
        ("edges", builder.edges.len() as u64),
        // Each operation may get one more.
        ("carried edges", builder.carried.len() as u64 + ops),
        ("inputs", builder.inputs.len() as u64),
        ("gates", builder.gates.len() as u64),
        ("posts", builder.posts.len() as u64),
        ("posting operations", builder.posters.len() as u64),
        ("argument bytes", builder.args.len() as u64),
        ("functions", functions),
    ];
    let too_many = sizes.into_iter().filter(|&(_, found)| found > limit);
    let errors: Vec<_> = too_many
        .map(|(what, found)| FlowError::TooMany { flow: builder.name.clone(), what, found, limit })
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// All other errors, those of single calls first.
pub(super) fn contents(builder: &Builder) -> Vec<FlowError> {
    let mut errors = builder.errors.clone();
    mode(builder, &mut errors);
    processors(builder, &mut errors);
    builder.inserts.iter().for_each(|insert| interpolation(builder, insert, &mut errors));
    errors
}

fn mode(builder: &Builder, errors: &mut Vec<FlowError>) {
    match builder.mode {
        Mode::Pipelined { depth: 0 } => errors.push(FlowError::Depth { flow: builder.name.clone() }),
        Mode::Pipelined { .. } => {}
        mode => errors.extend(builder.carried.iter().map(|&(from, to)| FlowError::Carried {
            from: builder.describe(from),
            to: builder.describe(to),
            mode,
        })),
    }
}

fn processors(builder: &Builder, errors: &mut Vec<FlowError>) {
    for (at, op) in builder.ops.iter().enumerate() {
        let Some(processor) = op.processor else { continue };
        let name = || builder.describe(OpId(at as u32));
        if processor >= builder.processors {
            let (flow, processors) = (builder.name.clone(), builder.processors);
            errors.push(FlowError::Processor { op: name(), processor, flow, processors });
        } else if op.kind == TaskKind::Remote {
            errors.push(FlowError::Remote { op: name(), processor });
        }
    }
}

fn interpolation(builder: &Builder, insert: &Insert, errors: &mut Vec<FlowError>) {
    let op = || builder.describe(insert.op);
    let Insert { from, patch, .. } = insert;
    if from.start > from.end || from.end > u64::from(builder.run_args) {
        let (first, end, have) = (from.start, from.end, builder.run_args);
        errors.push(FlowError::RunArgs { op: op(), first, end, have });
        return;
    }
    let bytes = from.end - from.start;
    if *patch != Patch::Overwrite && bytes != 8 {
        errors.push(FlowError::PatchSize { op: op(), patch: *patch, bytes });
    }
    let args = builder.ops[insert.op.0 as usize].args;
    let have = (args.1 - args.0) as u32;
    let (first, end) = (u64::from(insert.at), u64::from(insert.at) + bytes);
    if end > u64::from(have) {
        errors.push(FlowError::OpArgs { op: op(), first, end, have });
    }
}
