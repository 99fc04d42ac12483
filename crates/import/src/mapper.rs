//! From nodes to layers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use phalanx_ir::graph::{Graph, ValueId};
use phalanx_ir::{Init, Shape, TensorType};

use crate::call::Call;
use crate::emit::{Emitter, Problem};
use crate::format::{Exchange, Leaf, Node, Reference, Role, Section};
use crate::layout::Logical;
use crate::rules::{rule, way_out};
use crate::tensors::{Constant, Stored, dtype};
use crate::{ImportError, RandomLayer, UnsupportedOperator, patterns, prune};

/// What a reference stands for.
#[derive(Clone)]
pub(crate) enum Held {
    Tensor(Logical),
    Constant(Rc<Constant>),
}

/// A graph, and what is known beside it.
pub(crate) struct Mapped {
    pub(crate) graph: Graph,
    pub(crate) random: Vec<RandomLayer>,
}

/// Maps a list of nodes.
pub(crate) fn map(file: &Exchange, section: &Section, stored: &Stored<'_>) -> Result<Mapped, ImportError> {
    let mut mapper = Mapper::new(file, section);
    mapper.leaves(stored)?;
    for node in &patterns::recognized(&section.nodes, &file.leaves) {
        mapper.node(node)?;
    }
    if !mapper.unsupported.is_empty() {
        return Err(ImportError::Unsupported(mapper.unsupported));
    }
    mapper.finish()
}

struct Mapper<'a> {
    file: &'a Exchange,
    section: &'a Section,
    emit: Emitter,
    held: HashMap<Reference, Held>,
    states: HashMap<String, ValueId>,
    /// Where slices cut a value, by dimension.
    cuts: HashMap<(Reference, usize), BTreeSet<usize>>,
    unsupported: Vec<UnsupportedOperator>,
}

impl<'a> Mapper<'a> {
    fn new(file: &'a Exchange, section: &'a Section) -> Self {
        let emit = Emitter::new(&sanitized(&file.name));
        let cuts = crate::rules::slice_cuts(&section.nodes);
        Mapper {
            file,
            section,
            emit,
            held: HashMap::new(),
            states: HashMap::new(),
            cuts,
            unsupported: Vec::new(),
        }
    }

    /// Adds the tensors that nodes read.
    fn leaves(&mut self, stored: &Stored<'_>) -> Result<(), ImportError> {
        let used = used(self.section);
        for leaf in self.file.leaves.iter().filter(|leaf| used.contains(&leaf.name)) {
            let held = self.leaf(leaf, stored)?;
            self.held.insert(Reference { v: leaf.name.clone(), i: 0 }, held);
        }
        Ok(())
    }

    fn leaf(&mut self, leaf: &Leaf, stored: &Stored<'_>) -> Result<Held, ImportError> {
        let wrong = |problem| ImportError::Tensor { name: leaf.name.clone(), problem };
        if !Shape::new(&leaf.shape[..]).is_bounded() || leaf.shape.contains(&0) {
            return Err(wrong(format!("no tensor has the shape {:?}", leaf.shape)));
        }
        let name = sanitized(&leaf.name);
        let id = match leaf.role {
            Role::Fixed | Role::Constant | Role::Counter => {
                return Ok(Held::Constant(Rc::new(stored.of(leaf)?)));
            }
            Role::Input | Role::Computed => {
                let Some(dtype) = dtype(&leaf.dtype) else {
                    return Err(wrong(format!(
                        "inputs of type {} are not supported: use float32, int64, int32 or bool",
                        leaf.dtype
                    )));
                };
                self.emit.builder.input(&name, TensorType::new(dtype, leaf.shape.clone()))
            }
            Role::Param => self.emit.builder.param(&name, leaf.shape.clone(), Init::Zeros),
            Role::State => self.emit.builder.state(&name, leaf.shape.clone(), Init::Zeros),
        };
        let id = id.map_err(|error| wrong(error.to_string()))?;
        if leaf.role == Role::State {
            self.states.insert(leaf.name.clone(), id);
        }
        Ok(Held::Tensor(Logical::plain(id, &leaf.shape)))
    }

    fn node(&mut self, node: &Node) -> Result<(), ImportError> {
        self.emit.path = sanitized(&node.module);
        self.emit.node = node.name.clone();
        let (held, cuts) = (&self.held, &self.cuts);
        let unknown =
            node.results.iter().find(|typed| dtype(&typed.dtype).is_none() && typed.dtype != "none");
        let made = match rule(&node.op) {
            Some(_) if unknown.is_some() => Err(Problem::Unsupported(format!(
                "it gives elements of type {}: use float32",
                unknown.map_or("", |typed| &typed.dtype)
            ))),
            None => Err(Problem::Unsupported(way_out(&node.op))),
            Some(rule) => rule(&mut Call {
                node,
                emit: &mut self.emit,
                held: &|reference| held.get(reference).cloned(),
                cuts: &|reference, dim| {
                    cuts.get(&(reference.clone(), dim)).into_iter().flatten().copied().collect()
                },
            }),
        };
        match made.and_then(|results| checked(node, results)) {
            Ok(results) => {
                for (i, result) in results.into_iter().enumerate() {
                    if let Some(result) = result {
                        self.held.insert(Reference { v: node.name.clone(), i }, Held::Tensor(result));
                    }
                }
                Ok(())
            }
            Err(Problem::Missing) if self.unsupported.is_empty() => {
                Err(failed(node, "an argument is made by no earlier node".into()))
            }
            Err(Problem::Missing) => Ok(()),
            Err(Problem::Unsupported(hint)) => {
                self.note(node, hint);
                Ok(())
            }
            Err(Problem::Broken(problem)) => Err(failed(node, problem)),
        }
    }

    /// Notes an operator without counterpart; those with the same reason are counted.
    fn note(&mut self, node: &Node, hint: String) {
        let operator = crate::rules::base(&node.op).to_string();
        let same = |other: &&mut UnsupportedOperator| other.operator == operator && other.hint == hint;
        if let Some(other) = self.unsupported.iter_mut().find(same) {
            other.count += 1;
            return;
        }
        let (source, code, module) = (node.source.clone(), node.code.clone(), node.module.clone());
        self.unsupported.push(UnsupportedOperator { operator, count: 1, source, code, module, hint });
    }

    fn finish(mut self) -> Result<Mapped, ImportError> {
        let end = |problem: String| ImportError::Format { place: "outputs".into(), reason: problem };
        let loss = self.output(&self.section.loss.clone(), "loss").map_err(end)?;
        if self.emit.builder.shape(loss).rank() != 0 {
            return Err(end(format!("the loss is {}, not a scalar", self.emit.builder.ty(loss))));
        }
        let mut outputs = vec![loss];
        for output in &self.section.outputs {
            outputs.push(self.output(&output.value, &output.name).map_err(end)?);
        }
        for update in &self.section.updates {
            let is_done =
                self.states.get(&update.state).is_some_and(|state| self.emit.updated.contains(state));
            if is_done {
                continue;
            }
            let new = self.output(&update.value, &format!("{}.next", update.state)).map_err(end)?;
            let state = self.states.get(&update.state);
            let state = *state.ok_or_else(|| end(format!("`{}` is no state", update.state)))?;
            self.emit.builder.update(state, new).map_err(|error| end(error.to_string()))?;
        }
        let graph = prune::pruned(self.emit.builder.finish(outputs));
        let kept: BTreeSet<&str> = graph.values().iter().map(|(_, value)| &*value.name).collect();
        let random = self.emit.random.into_iter().filter(|layer| kept.contains(&*layer.name)).collect();
        Ok(Mapped { graph, random })
    }

    /// An output as one value in PyTorch's order, under this name.
    fn output(&mut self, reference: &Reference, name: &str) -> Result<ValueId, String> {
        let held = self.held.get(reference).cloned();
        let held = held.ok_or_else(|| format!("`{}` is made by no node", reference.v))?;
        self.emit.path = sanitized(name);
        let text = |problem| match problem {
            Problem::Broken(text) | Problem::Unsupported(text) => text,
            Problem::Missing => "it is missing".to_string(),
        };
        let logical = match held {
            Held::Tensor(logical) => logical,
            Held::Constant(constant) => self.emit.table(&sanitized(name), &constant).map_err(text)?,
        };
        let id = self.emit.plain(&logical).map_err(text)?;
        if self.emit.builder.op_of(id).is_leaf() {
            return Ok(id);
        }
        self.emit.builder.rename(id, &sanitized(name));
        Ok(id)
    }
}

/// Checks results against what the file says about them.
fn checked(node: &Node, results: Vec<Option<Logical>>) -> Result<Vec<Option<Logical>>, Problem> {
    for (index, result) in results.iter().enumerate() {
        let (Some(result), Some(typed)) = (result, node.results.get(index)) else { continue };
        if result.shape() != typed.shape {
            let (found, wanted) = (result.shape(), &typed.shape);
            return Err(Problem::Broken(format!("result {index} is {found:?}, the file says {wanted:?}")));
        }
    }
    Ok(results)
}

fn failed(node: &Node, problem: String) -> ImportError {
    let (name, op) = (node.name.clone(), node.op.clone());
    ImportError::Node { node: name, op, line: node.source.clone(), problem }
}

/// The names of all leaves and nodes that are read.
fn used(section: &Section) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for node in &section.nodes {
        node.args.values().for_each(|value| references(value, &mut names));
    }
    names.insert(section.loss.v.clone());
    names.extend(section.outputs.iter().map(|output| output.value.v.clone()));
    names.extend(section.updates.iter().flat_map(|update| [update.state.clone(), update.value.v.clone()]));
    names
}

fn references(value: &serde_json::Value, names: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Array(list) => list.iter().for_each(|value| references(value, names)),
        value => names.extend(crate::call::reference(value).map(|reference| reference.v)),
    }
}

/// A name as graphs have it.
pub(crate) fn sanitized(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '_' }).collect()
}

/// How often each operator is used.
pub(crate) fn census(section: &Section) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for node in &section.nodes {
        *counts.entry(crate::rules::base(&node.op).to_string()).or_default() += 1;
    }
    counts
}
