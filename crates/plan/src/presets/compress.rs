//! From specs about single tensors to few rules: layers that repeat under numbers share a pattern.

use phalanx_ir::Glob;
use phalanx_ir::graph::{Graph, ValueId};

use super::specs::{Spec, Specs};
use crate::plan::PlanRule;

/// The rules that give exactly these specs.
pub(super) fn rules(model: &Graph, specs: Specs<'_>) -> Vec<PlanRule> {
    let is_empty = |spec: &Spec| spec.shard.is_empty() && spec.store.is_empty();
    let mut groups: Vec<(String, Spec, Vec<ValueId>)> = Vec::new();
    for (value, spec) in specs.of.iter().filter(|(_, spec)| !is_empty(spec)) {
        let pattern = general(&model.values()[value].name);
        match groups.iter_mut().find(|(own, said, _)| *own == pattern && said == spec) {
            Some((_, _, values)) => values.push(value),
            None => groups.push((pattern, spec.clone(), vec![value])),
        }
    }
    groups.into_iter().flat_map(|(pattern, spec, values)| group(model, pattern, spec, values)).collect()
}

/// One rule with the pattern if it matches these values alone, else a rule for each.
fn group(model: &Graph, pattern: String, spec: Spec, values: Vec<ValueId>) -> Vec<PlanRule> {
    let rule = |pattern: String| {
        let Spec { shard, store, regather } = spec.clone();
        PlanRule { pattern, shard, store, regather }
    };
    let name = |value: &ValueId| model.values()[*value].name.clone();
    let glob = Glob::new(&pattern);
    let matched = |name: &str| glob.as_ref().is_some_and(|glob| glob.matches(name));
    let count = model.values().iter().filter(|(_, value)| matched(&value.name)).count();
    if values.len() > 1 && count == values.len() {
        return vec![rule(pattern)];
    }
    values.iter().map(|value| rule(name(value))).collect()
}

/// A name with every number between dots replaced by `*`.
pub(crate) fn general(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    let parts: Vec<_> = name.split('.').map(|part| if is_number(part) { "*" } else { part }).collect();
    parts.join(".")
}
