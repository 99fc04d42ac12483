//! From a model and a plan to a parallel graph.
//!
//! Needs: a verified model, any plan.
//! Gives: the same outputs from as many devices as the mesh has, or the first thing in the plan that cannot be. What an
//! operator cannot take as the plan has it is joined before it. The same model and plan always give the same graph.
//!
//! `resolve` applies rules to names, `decide` finds every layer's tasks and layouts (`signature` knows the operators),
//! `emit` writes the layers and the parallel operators between them.

mod decide;
mod emit;
mod layout;
mod resolve;
mod signature;

use phalanx_ir::graph::Graph;
use phalanx_ir::parallel::ParallelGraph;

pub(crate) use resolve::{Constraint, constraints, stages as stages_of};

use crate::classes::Classes;
use crate::microbatch::{split_batch, whole_batch};
use crate::{Plan, PlanError};

/// Lays `model` out as `plan` says.
pub fn parallelize(model: &Graph, plan: &Plan) -> Result<ParallelGraph, PlanError> {
    let mut machine = resolve::machine(plan)?;
    let constraints = resolve::constraints(model, plan)?;
    let stages = resolve::stages(model, plan)?;
    let classes = Classes::new(model);
    let blocks = resolve::blocks(&classes, &machine, &constraints);
    let unrolled = match plan.microbatches {
        1 => whole_batch(model),
        count => split_batch(&classes, count, blocks)?,
    };
    let context = decide::Context {
        model,
        classes: &classes,
        plan,
        machine: &machine,
        constraints: &constraints,
        stages: &stages,
        blocks,
    };
    let decided = decide::decide(&context, &unrolled)?;
    Ok(emit::emit(model.name(), &mut machine, &decided))
}
