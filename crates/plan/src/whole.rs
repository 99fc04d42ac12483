//! Which parameters a plan leaves whole along an axis that cuts others, because they do not divide.

use std::collections::BTreeSet;
use std::fmt;

use phalanx_ir::Op;
use phalanx_ir::graph::{Graph, ValueId};

use crate::classes::Classes;
use crate::parallelize::{Constraint, constraints};
use crate::presets::{Features, STORES, general};
use crate::{Plan, PlanError};

/// Parameters that every device along a mesh axis has whole, because they do not divide.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LeftWhole {
    /// The axis.
    pub axis: String,
    /// How many devices are along it.
    pub size: usize,
    /// Names of the parameters, in the order of the model.
    pub parameters: Vec<String>,
    /// How many parameters the model has.
    pub of: usize,
}

/// For every axis that stores parameters cut, those of which no dimension divides; for every other axis that cuts some,
/// those with a vocabulary that does not. What could be cut and is not is the plan's choice, and not listed.
pub fn left_whole(model: &Graph, plan: &Plan) -> Result<Vec<LeftWhole>, PlanError> {
    let constraints = constraints(model, plan)?;
    let parameters: Vec<ValueId> = model.leaves(|op| matches!(op, Op::Param(_))).collect();
    let classes = Classes::new(model);
    let features = Features::new(model, &classes);
    let mut list = Vec::new();
    for (number, (axis, size)) in plan.mesh.axes.iter().enumerate().filter(|(_, (_, size))| *size > 1) {
        let stores = |said: &Constraint| said.store.values().flatten().any(|axis| *axis == number);
        let cuts =
            |said: &Constraint| stores(said) || said.shard.values().flatten().any(|axis| *axis == number);
        // Of presets the axis is known by its name, even if nothing divides.
        let is_stored = axis == STORES || parameters.iter().any(|&parameter| stores(&constraints[parameter]));
        let is_used = parameters.iter().any(|&parameter| cuts(&constraints[parameter]));
        let divides = |parameter: ValueId, dim: usize| {
            let said = &constraints[parameter];
            let axes = [&said.shard, &said.store].into_iter().filter_map(|map| map.get(&dim)).flatten();
            let degree: usize = axes.map(|&axis| plan.mesh.axes[axis].1).product();
            model.ty(parameter).shape.dims()[dim].is_multiple_of(degree * size)
        };
        let is_whole = |&parameter: &ValueId| {
            let dims: Vec<usize> = match is_stored {
                true => (0..model.ty(parameter).shape.rank()).collect(),
                false => features.vocabulary_of(parameter).filter(|_| is_used).into_iter().collect(),
            };
            let may_be_cut = is_stored || !dims.is_empty();
            may_be_cut && !cuts(&constraints[parameter]) && !dims.iter().any(|&dim| divides(parameter, dim))
        };
        let whole = parameters.iter().copied().filter(is_whole);
        let whole: Vec<_> = whole.map(|parameter| model.values()[parameter].name.clone()).collect();
        if !whole.is_empty() {
            list.push(LeftWhole { axis: axis.clone(), size: *size, parameters: whole, of: parameters.len() });
        }
    }
    Ok(list)
}

/// The most patterns of names that a text shows.
const SHOWN: usize = 4;

impl fmt::Display for LeftWhole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeftWhole { axis, size, parameters, of } = self;
        let mut seen = BTreeSet::new();
        let patterns: Vec<_> = parameters.iter().map(|name| general(name)).collect();
        let patterns: Vec<_> = patterns.into_iter().filter(|pattern| seen.insert(pattern.clone())).collect();
        let shown = patterns.iter().take(SHOWN).map(|pattern| format!("`{pattern}`")).collect::<Vec<_>>();
        let more = match patterns.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        write!(
            f,
            "{} of {of} parameters are whole on every device along {axis}={size}, because what could be cut of them is \
             not divisible by {size}: {}{more}",
            parameters.len(),
            shown.join(", ")
        )
    }
}
