//! From answers about single tensors to few rules: layers that repeat under numbers share a pattern.

use phalanx_ir::graph::{Graph, ValueId};

use super::answers::{Answer, Answers};
use crate::glob::Glob;
use crate::plan::Rule;

/// The rules that give exactly these answers.
pub(super) fn rules(model: &Graph, answers: Answers<'_>) -> Vec<Rule> {
    let is_empty = |answer: &Answer| answer.shard.is_empty() && answer.store.is_empty();
    let mut groups: Vec<(String, Answer, Vec<ValueId>)> = Vec::new();
    for (value, answer) in answers.of.iter().filter(|(_, answer)| !is_empty(answer)) {
        let pattern = general(&model.values()[value].name);
        match groups.iter_mut().find(|(own, said, _)| *own == pattern && said == answer) {
            Some((_, _, values)) => values.push(value),
            None => groups.push((pattern, answer.clone(), vec![value])),
        }
    }
    groups.into_iter().flat_map(|(pattern, answer, values)| group(model, pattern, answer, values)).collect()
}

/// One rule with the pattern if it matches these values alone, else a rule for each.
fn group(model: &Graph, pattern: String, answer: Answer, values: Vec<ValueId>) -> Vec<Rule> {
    let rule = |pattern: String| {
        let Answer { shard, store, again } = answer.clone();
        Rule { pattern, shard, store, again }
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
fn general(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    let parts: Vec<_> = name.split('.').map(|part| if is_number(part) { "*" } else { part }).collect();
    parts.join(".")
}
