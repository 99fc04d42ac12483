//! What a plan's rules say about each value of a model. Everything that can be wrong with a rule is found here.

use std::collections::BTreeMap;

use phalanx_ir::graph::{Graph, ValueId};
use phalanx_ir::{Glob, Id, IdVec, Op};

use super::layout::{Machine, MeshAxis};
use crate::classes::Classes;
use crate::{Plan, PlanError, PlanRule, Said};

/// What the rules say about one value. Mesh axes with one place are left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Constraint {
    /// For some dimensions the axes that cut them.
    pub(crate) shard: BTreeMap<usize, Vec<MeshAxis>>,
    /// Axes that cut a parameter further while it is not in use.
    pub(crate) store: BTreeMap<usize, Vec<MeshAxis>>,
    /// What `store` cuts is joined anew in the backward pass.
    pub(crate) regather: bool,
}

/// Checks the mesh and gives the devices.
pub(super) fn machine(plan: &Plan) -> Result<Machine, PlanError> {
    let axes = &plan.mesh.axes;
    plan.mesh.check()?;
    let Some(pipeline) = &plan.pipeline else {
        return Ok(Machine::new(axes.iter().map(|(_, size)| *size).collect(), None));
    };
    let axis = axis(plan, "the pipeline", &pipeline.axis)?;
    let (stages, size) = (pipeline.stages.len(), axes[axis].1);
    if stages != size {
        return Err(PlanError::Stages { stages, axis: pipeline.axis.clone(), size });
    }
    Ok(Machine::new(axes.iter().map(|(_, size)| *size).collect(), Some(axis)))
}

/// What is said about every value of `model`.
pub(crate) fn constraints(model: &Graph, plan: &Plan) -> Result<IdVec<ValueId, Constraint>, PlanError> {
    let mut specs: IdVec<ValueId, Specs> = model.values().iter().map(|_| Specs::new()).collect();
    for rule in &plan.rules {
        let glob = pattern(&rule.pattern)?;
        let matched: Vec<_> = model.values().iter().filter(|(_, value)| glob.matches(&value.name)).collect();
        if matched.is_empty() {
            return Err(no_match(model, "a rule", &rule.pattern, &glob, "tensor"));
        }
        for (value, _) in matched {
            check(model, plan, rule, value)?;
            add_rule(model, plan, rule, value, &mut specs[value])?;
        }
    }
    specs.iter().map(|(value, specs)| constraint(model, plan, value, specs)).collect()
}

/// Reads a pattern.
pub(super) fn pattern(pattern: &str) -> Result<Glob, PlanError> {
    Glob::new(pattern).ok_or_else(|| PlanError::Pattern { pattern: pattern.into() })
}

/// The error for a pattern that matches nothing; it suggests up to three names.
pub(super) fn no_match(
    model: &Graph,
    place: &str,
    pattern: &str,
    glob: &Glob,
    wanted: &'static str,
) -> PlanError {
    let close = glob.closest(model.values().iter().map(|(_, value)| value.name.as_str()));
    PlanError::NoMatch { place: place.into(), pattern: pattern.into(), wanted, close }
}

/// The places in which a rule can cut a tensor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Shard(usize),
    Store(usize),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Shard(dim) => write!(f, "shard of dim {dim}"),
            Place::Store(dim) => write!(f, "store of dim {dim}"),
        }
    }
}

/// What rules said about a value so far, each with the rule.
type Specs<'a> = BTreeMap<Place, (&'a [String], &'a PlanRule)>;

fn places(rule: &PlanRule) -> impl Iterator<Item = (Place, &[String])> {
    let shard = rule.shard.iter().map(|(&dim, axes)| (Place::Shard(dim), axes.as_slice()));
    shard.chain(rule.store.iter().map(|(&dim, axes)| (Place::Store(dim), axes.as_slice())))
}

/// Whether a rule can be about a value at all.
fn check(model: &Graph, plan: &Plan, rule: &PlanRule, value: ValueId) -> Result<(), PlanError> {
    let (pattern, tensor) = (rule.pattern.clone(), model.values()[value].name.clone());
    let ty = model.ty(value);
    for (place, axes) in places(rule) {
        let (Place::Shard(dim) | Place::Store(dim)) = place;
        let rank = ty.shape.rank();
        if dim >= rank {
            return Err(PlanError::NoDim { pattern, tensor, ty: ty.to_string(), dim, rank });
        }
        for name in axes {
            axis(plan, &format!("rule `{pattern}`"), name)?;
            if plan.pipeline.as_ref().is_some_and(|pipeline| pipeline.axis == *name) {
                return Err(PlanError::PipelineAxis { pattern, axis: name.clone() });
            }
        }
    }
    let op = model.op_of(value);
    if !rule.store.is_empty() && !matches!(op, Op::Param(_)) {
        return Err(PlanError::NotStored { pattern, tensor, op: op.to_text().0.to_string() });
    }
    Ok(())
}

/// Adds what a rule says to what others said.
fn add_rule<'a>(
    model: &Graph,
    plan: &Plan,
    rule: &'a PlanRule,
    value: ValueId,
    specs: &mut Specs<'a>,
) -> Result<(), PlanError> {
    let said = |rule: &PlanRule, what: String| Said { what: what.into(), rule: rule.pattern.as_str().into() };
    let conflict = |other: &PlanRule, about: String, first: String, second: String| PlanError::Conflict {
        tensor: model.values()[value].name.clone(),
        about,
        first: said(other, first),
        second: said(rule, second),
    };
    let stored = specs.iter().find(|(place, _)| matches!(place, Place::Store(_))).map(|(_, (_, rule))| *rule);
    if let Some(other) = stored.filter(|other| !rule.store.is_empty() && other.regather != rule.regather) {
        let [first, second] = [other.regather, rule.regather].map(|regather| regather.to_string());
        return Err(conflict(other, "regather".into(), first, second));
    }
    for (place, axes) in places(rule) {
        match specs.get(&place) {
            Some((other, from)) if *other != axes => {
                return Err(conflict(from, place.to_string(), list(plan, other), list(plan, axes)));
            }
            _ => specs.insert(place, (axes, rule)),
        };
    }
    Ok(())
}

/// What rules said about one value, as mesh axes.
fn constraint(
    model: &Graph,
    plan: &Plan,
    value: ValueId,
    specs: &Specs<'_>,
) -> Result<Constraint, PlanError> {
    let tensor = || model.values()[value].name.clone();
    let mut used: BTreeMap<&str, Place> = BTreeMap::new();
    let mut constraint = Constraint { regather: true, ..Constraint::default() };
    for (&place, &(names, rule)) in specs {
        for name in names {
            if let Some(first) = used.insert(name, place) {
                let (first, second) = (first.to_string(), place.to_string());
                return Err(PlanError::AxisTwice { tensor: tensor(), axis: name.clone(), first, second });
            }
        }
        let axes = names.iter().filter_map(|name| plan.mesh.axes.iter().position(|(own, _)| own == name));
        let axes = axes.filter(|&axis| plan.mesh.axes[axis].1 > 1).collect();
        match place {
            Place::Shard(dim) => constraint.shard.insert(dim, axes),
            Place::Store(dim) => {
                constraint.regather = rule.regather;
                constraint.store.insert(dim, axes)
            }
        };
    }
    for (dim, &extent) in model.ty(value).shape.dims().iter().enumerate() {
        let axes: Vec<_> =
            [&constraint.shard, &constraint.store].iter().filter_map(|map| map.get(&dim)).flatten().collect();
        let degree: usize = axes.iter().map(|&&axis| plan.mesh.axes[axis].1).product();
        if !extent.is_multiple_of(degree) {
            let names: Vec<_> = axes.iter().map(|&&axis| plan.mesh.axes[axis].0.clone()).collect();
            let (ty, axes) = (model.ty(value).to_string(), list(plan, &names));
            return Err(PlanError::Indivisible { tensor: tensor(), ty, dim, extent, degree, axes });
        }
    }
    Ok(constraint)
}

/// Axes with their extents, for messages.
fn list(plan: &Plan, names: &[String]) -> String {
    let size =
        |name: &String| plan.mesh.axes.iter().find(|(own, _)| own == name).map_or(1, |(_, size)| *size);
    match names {
        [] => "whole".into(),
        names => names.iter().map(|name| format!("{name}={}", size(name))).collect::<Vec<_>>().join(" "),
    }
}

fn axis(plan: &Plan, place: &str, name: &str) -> Result<MeshAxis, PlanError> {
    plan.mesh.axes.iter().position(|(own, _)| own == name).ok_or_else(|| {
        let known: Vec<_> = plan.mesh.axes.iter().map(|(own, _)| format!("`{own}`")).collect();
        let known = if known.is_empty() { "no axes".into() } else { known.join(", ") };
        PlanError::UnknownAxis { place: place.into(), axis: name.into(), known }
    })
}

/// Into how many blocks the rules cut the batch: the most that cut the batch of an input.
pub(super) fn blocks(
    classes: &Classes<'_>,
    machine: &Machine,
    constraints: &IdVec<ValueId, Constraint>,
) -> usize {
    let inputs = classes.model.leaves(|op| matches!(op, Op::Input));
    let degree = |input: ValueId| {
        let axes = constraints[input].shard.get(&classes.batch_dim(input));
        axes.map_or(1, |axes| machine.degree(axes))
    };
    inputs.map(degree).max().unwrap_or(1)
}

/// For every layer of `model` its stage; none for what is everywhere.
pub(crate) fn stages(model: &Graph, plan: &Plan) -> Result<Vec<Option<usize>>, PlanError> {
    let Some(pipeline) = &plan.pipeline else { return Ok(vec![None; model.layers().len()]) };
    let mut globs: Vec<(usize, Glob)> = Vec::new();
    for (stage, patterns) in pipeline.stages.iter().enumerate() {
        for text in patterns {
            let glob = pattern(text)?;
            if !model.layers().ids().any(|layer| glob.matches(model.layer_name(layer))) {
                return Err(no_match(model, &format!("stage {stage}"), text, &glob, "layer"));
            }
            globs.push((stage, glob));
        }
    }
    let named = |name: &str| globs.iter().find(|(_, glob)| glob.matches(name)).map(|(stage, _)| *stage);
    let mut stages: Vec<Option<usize>> = Vec::new();
    for (id, layer) in model.layers().iter() {
        let of_operand = |value: &ValueId| stages[model.values()[*value].layer.index()];
        let latest = layer.operands.iter().filter_map(of_operand).max().unwrap_or(0);
        stages.push(match layer.op {
            Op::Input | Op::Constant(_) => None,
            _ if layer.op.is_source() => named(model.layer_name(id)),
            _ => Some(named(model.layer_name(id)).unwrap_or(latest)),
        });
    }
    for (id, layer) in model.layers().iter().rev() {
        if stages[id.index()].is_some() {
            continue;
        }
        let value = layer.results[0];
        let mut users = model.layers().iter().filter(|(_, user)| user.operands.contains(&value));
        let mut stage_of_user = || users.next().map(|(user, _)| stages[user.index()]);
        stages[id.index()] = match layer.op {
            Op::Param(_) => Some(stage_of_user().flatten().unwrap_or(0)),
            // Where its new value is made.
            Op::State(_) => {
                let update = model.updates().iter().find(|update| update.state == value);
                let own = update.map(|update| stages[model.values()[update.new].layer.index()]);
                Some(own.or_else(stage_of_user).flatten().unwrap_or(0))
            }
            // Only where it is used, but there without being sent in every step.
            Op::Table(_) | Op::Apply(_) => {
                let first = stage_of_user().flatten();
                first.filter(|_| std::iter::from_fn(stage_of_user).all(|stage| stage == first))
            }
            _ => None,
        };
    }
    Ok(stages)
}
