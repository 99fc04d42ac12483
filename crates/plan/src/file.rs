//! Plans as text: a TOML file. `Plan::parse(plan.to_text())` is the plan again.
//!
//! Reading goes through serde, so that unknown keys and wrong types are reported with their line; writing is by hand, so
//! that a plan reads well and its axes keep their order.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::PlanError;
use crate::plan::{Mesh, Pipeline, Plan, PlanRule};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    name: String,
    #[serde(default = "one")]
    microbatches: usize,
    #[serde(default)]
    mesh: BTreeMap<String, Spanned<usize>>,
    #[serde(default, rename = "rule")]
    rules: Vec<FileRule>,
    pipeline: Option<FilePipeline>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRule {
    #[serde(rename = "match")]
    pattern: String,
    #[serde(default)]
    shard: BTreeMap<String, Axes>,
    #[serde(default)]
    store: BTreeMap<String, Axes>,
    // The name was `again` up to version 0.1.
    #[serde(default = "yes", alias = "again")]
    regather: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePipeline {
    axis: String,
    stages: Vec<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "an axis like \"dp\" or a list of axes")]
enum Axes {
    One(String),
    Many(Vec<String>),
}

fn one() -> usize {
    1
}

fn yes() -> bool {
    true
}

impl Plan {
    /// Reads a plan from TOML. Whether it fits a model is seen by [`crate::parallelize`].
    ///
    /// ```
    /// let plan = phalanx_plan::Plan::parse("[mesh]\ndp = 4\n[[rule]]\nmatch = \"x\"\nshard = { 0 = \"dp\" }")?;
    /// assert_eq!(plan.mesh.devices(), 4);
    /// # Ok::<(), phalanx_plan::PlanError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Plan, PlanError> {
        let unread = |error: toml::de::Error| PlanError::Text { reason: error.to_string().trim().into() };
        check_keys(text, &DeTable::parse(text).map_err(unread)?)?;
        let file: File = toml::from_str(text).map_err(unread)?;
        // The table is sorted by name; the order of axes is that of the text.
        let mut axes: Vec<_> = file.mesh.into_iter().collect();
        axes.sort_by_key(|(_, size)| size.span().start);
        let mesh = Mesh { axes: axes.into_iter().map(|(name, size)| (name, size.into_inner())).collect() };
        mesh.check()?;
        let rules: Result<Vec<PlanRule>, _> = file.rules.into_iter().map(rule).collect();
        let pipeline = file.pipeline.map(|FilePipeline { axis, stages }| Pipeline { axis, stages });
        let (name, microbatches) = (file.name, file.microbatches);
        Ok(Plan { name, mesh, microbatches, rules: rules?, pipeline })
    }

    /// Writes the plan as TOML.
    pub fn to_text(&self) -> String {
        let mut text = format!("name = {}\nmicrobatches = {}\n", quoted(&self.name), self.microbatches);
        // Writing to a string cannot fail.
        let _ = self.write_tables(&mut text);
        text
    }

    fn write_tables(&self, text: &mut String) -> std::fmt::Result {
        if !self.mesh.axes.is_empty() {
            writeln!(text, "\n[mesh]")?;
        }
        for (name, size) in &self.mesh.axes {
            writeln!(text, "{} = {size}", key(name))?;
        }
        if let Some(Pipeline { axis, stages }) = &self.pipeline {
            writeln!(text, "\n[pipeline]\naxis = {}\nstages = [", quoted(axis))?;
            for stage in stages {
                writeln!(text, "  {},", list(stage))?;
            }
            writeln!(text, "]")?;
        }
        self.rules.iter().try_for_each(|rule| write_rule(text, rule))
    }
}

/// The keys of a plan, of a rule and of the pipeline.
const KEYS: [&str; 5] = ["name", "microbatches", "mesh", "rule", "pipeline"];
const RULE_KEYS: [&str; 5] = ["match", "shard", "store", "regather", "again"];
const PIPELINE_KEYS: [&str; 2] = ["axis", "stages"];

/// Checks that a plan has only keys that mean something.
fn check_keys(text: &str, file: &Spanned<DeTable<'_>>) -> Result<(), PlanError> {
    let check = |table: &DeTable<'_>, known: &[&str], place| {
        let unknown = table.keys().find(|key| !known.contains(&key.get_ref().as_ref()));
        unknown.map_or(Ok(()), |key| Err(unknown_key(text, key, known, place)))
    };
    check(file.get_ref(), &KEYS, "of a plan")?;
    for (key, value) in file.get_ref() {
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("pipeline", DeValue::Table(table)) => check(table, &PIPELINE_KEYS, "of a pipeline")?,
            ("rule", DeValue::Array(rules)) => {
                let mut tables = rules.iter().filter_map(|rule| rule.get_ref().as_table());
                tables.try_for_each(|table| check(table, &RULE_KEYS, "of a rule"))?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn unknown_key(text: &str, key: &Spanned<Cow<'_, str>>, known: &[&str], place: &'static str) -> PlanError {
    let line = text[..key.span().start].matches('\n').count() + 1;
    let hint = match nearest(key.get_ref(), known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("use one of {}", known.join(", ")),
    };
    PlanError::UnknownKey { line, key: key.get_ref().to_string(), place, hint }
}

/// The name that is most like `text`, if one is.
pub fn nearest<'a>(text: &str, names: &[&'a str]) -> Option<&'a str> {
    let scores = names.iter().map(|name| (strsim::jaro(text, name), *name));
    let best = scores.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(score, _)| *score > 0.8).map(|(_, name)| name)
}

fn rule(rule: FileRule) -> Result<PlanRule, PlanError> {
    let FileRule { pattern, shard, store, regather } = rule;
    let (shard, store) = (dims(&pattern, shard)?, dims(&pattern, store)?);
    Ok(PlanRule { pattern, shard, store, regather })
}

fn dims(pattern: &str, axes: BTreeMap<String, Axes>) -> Result<BTreeMap<usize, Vec<String>>, PlanError> {
    let dim = |(key, axes): (String, Axes)| {
        let axes = match axes {
            Axes::One(axis) => vec![axis],
            Axes::Many(axes) => axes,
        };
        match key.parse() {
            Ok(dim) => Ok((dim, axes)),
            Err(_) => Err(PlanError::NotADim { pattern: pattern.into(), key }),
        }
    };
    axes.into_iter().map(dim).collect()
}

fn write_rule(text: &mut String, rule: &PlanRule) -> std::fmt::Result {
    writeln!(text, "\n[[rule]]\nmatch = {}", quoted(&rule.pattern))?;
    for (word, dims) in [("shard", &rule.shard), ("store", &rule.store)] {
        let dim = |(dim, axes): (&usize, &Vec<String>)| match axes.as_slice() {
            [axis] => format!("{dim} = {}", quoted(axis)),
            axes => format!("{dim} = {}", list(axes)),
        };
        if !dims.is_empty() {
            writeln!(text, "{word} = {{ {} }}", dims.iter().map(dim).collect::<Vec<_>>().join(", "))?;
        }
    }
    if !rule.store.is_empty() || !rule.regather {
        writeln!(text, "regather = {}", rule.regather)?;
    }
    Ok(())
}

fn list(items: &[String]) -> String {
    format!("[{}]", items.iter().map(|item| quoted(item)).collect::<Vec<_>>().join(", "))
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

/// A name as a TOML key.
fn key(name: &str) -> String {
    let bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    if bare { name.into() } else { quoted(name) }
}
