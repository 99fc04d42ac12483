//! Parallel graphs without a plan: degrees, sums, copies, parallel operators and groups changed at random.
//!
//! Parallel operators never change values, so whatever of this is legal still computes the model.

use phalanx::ir::graph::{LayerId, Update, ValueId};
use phalanx::ir::parallel::{
    DeviceGroup, DeviceId, LayerPlacement, ParallelBuilder, ParallelGraph, ParallelType,
};
use phalanx::ir::{Id, Op, OpError, TensorType};
use phalanx_testkit::Rng;

/// Devices that groups are drawn from.
const DEVICES: usize = 6;
/// More tiles than this are not worth a test's time.
const MOST_TILES: usize = 48;
/// How many operators may be put before one layer.
const MOST_REPAIRS: usize = 6;

/// The text of a graph with one or two of its degrees, dimensions or devices replaced by small numbers.
pub fn mutate_text(graph: &ParallelGraph, rng: &mut Rng) -> String {
    let mut text = graph.to_string();
    for _ in 0..1 + rng.below(2) {
        let marks = ["/", "degree=", " sum ", " copy ", " dim=", " dev", "dev["];
        let ends = marks.iter().flat_map(|mark| text.match_indices(mark).map(|(at, mark)| at + mark.len()));
        let is_number = |&at: &usize| text[at..].starts_with(|c: char| c.is_ascii_digit());
        let numbers: Vec<usize> = ends.filter(is_number).collect();
        if !numbers.is_empty() {
            let start = rng.choose(&numbers);
            let digits = text[start..].bytes().take_while(u8::is_ascii_digit).count();
            text.replace_range(start..start + digits, &rng.below(7).to_string());
        }
    }
    text
}

/// The graph with changes here and there, and all that follows from them where the rules allow it.
pub fn mutate(graph: &ParallelGraph, rng: &mut Rng) -> ParallelGraph {
    let rarely = rng.choose(&[3, 8, 20]);
    let builder = ParallelBuilder::new(graph.name());
    let mut mutation = Mutation { graph, rng, rarely, builder, values: Vec::new() };
    for layer in graph.layers().ids() {
        mutation.layer(layer);
    }
    for &Update { state, new } in graph.updates() {
        let [state, new] = [state, new].map(|value| mutation.values[value.index()]);
        mutation.builder.update(Update { state, new });
    }
    let outputs = graph.outputs().iter().map(|output| mutation.values[output.index()]).collect();
    mutation.builder.finish(outputs)
}

struct Mutation<'a> {
    graph: &'a ParallelGraph,
    rng: &'a mut Rng,
    /// A change happens once in so many chances.
    rarely: usize,
    builder: ParallelBuilder,
    /// What each value of the old graph became.
    values: Vec<ValueId>,
}

impl Mutation<'_> {
    fn layer(&mut self, id: LayerId) {
        let layer = &self.graph.layers()[id];
        let mut op = layer.op.clone();
        let mut operands: Vec<_> = layer.operands.iter().map(|value| self.values[value.index()]).collect();
        if op.is_parallel() && self.rng.once_in(self.rarely) {
            self.values.push(operands[0]);
            return;
        }
        if op.is_parallel() && self.rng.once_in(self.rarely) {
            op = self.parallel_op(operands[0]);
        }
        if !operands.is_empty() && self.rng.once_in(self.rarely) {
            let slot = self.rng.below(operands.len());
            let between = self.parallel_op(operands[slot]);
            operands[slot] =
                self.convert(between, operands[slot], &layer.label, "between").unwrap_or(operands[slot]);
        }
        let old: Vec<_> = layer.results.iter().map(|&value| self.graph.ty(value).clone()).collect();
        let (types, tasks) = match op.is_leaf() {
            true => self.leaf_types(&old),
            false => self.repaired(&op, &mut operands, &old, &layer.label),
        };
        let label = self.placement(&layer.label, tasks);
        let is_changed = |(slot, value): (usize, &ValueId)| {
            self.graph.outputs().contains(value) && types[slot] != old[slot]
        };
        let changed = layer.results.iter().enumerate().any(is_changed);
        let suffix = if changed && !op.is_leaf() { ".computed" } else { "" };
        let name = |value: &ValueId| format!("{}{suffix}", self.graph.values()[*value].name);
        let results = layer.results.iter().map(name).zip(types).collect();
        let made = self.builder.add(op, &operands, results, label);
        for (slot, value) in made.into_iter().enumerate() {
            let name = &self.graph.values()[layer.results[slot]].name;
            let value = if suffix.is_empty() { value } else { self.restored(value, &old[slot], name) };
            self.values.push(value);
        }
    }

    fn ty(&self, value: ValueId) -> ParallelType {
        self.builder.graph().ty(value).clone()
    }

    /// A parallel operator that may or may not suit the value.
    fn parallel_op(&mut self, value: ValueId) -> Op {
        let (rank, degree) = (self.ty(value).dims().len(), self.rng.choose(&[2, 2, 2, 4, 3]));
        let dim = self.rng.below(rank.max(1));
        let regather = self.rng.once_in(2);
        let ops = [
            Op::Repartition { dim, degree },
            Op::Combine { dim, degree, regather },
            Op::Replicate { degree },
            Op::Reduction { degree },
        ];
        self.rng.choose(&ops)
    }

    /// Applies a parallel operator, if it can be.
    fn convert(&mut self, op: Op, value: ValueId, label: &LayerPlacement, word: &str) -> Option<ValueId> {
        let ty = moved(&op, &self.ty(value))?;
        let name = format!("{}.{word}", self.builder.graph().values()[value].name);
        let label = self.placement(label, ty.tiles());
        Some(self.builder.add(op, &[value], vec![(name, ty)], label)[0])
    }

    /// Types of a leaf: the old ones, or now and then any.
    fn leaf_types(&mut self, old: &[ParallelType]) -> (Vec<ParallelType>, usize) {
        let mut ty = old[0].clone();
        if self.rng.once_in(self.rarely) {
            let degrees: Vec<_> = ty.dims().iter().map(|_| self.rng.choose(&[1, 1, 2, 3, 4])).collect();
            let [sum, copy] = [0; 2].map(|_| if self.rng.once_in(6) { 2 } else { 1 });
            ty = ParallelType::tiled(&ty.global(), &degrees, sum, copy).unwrap_or(ty);
        }
        let tiles = ty.tiles();
        (vec![ty], tiles)
    }

    /// Result types and number of tasks after doing what the rules' errors say; the old types if that leads nowhere.
    fn repaired(
        &mut self,
        op: &Op,
        operands: &mut [ValueId],
        old: &[ParallelType],
        label: &LayerPlacement,
    ) -> (Vec<ParallelType>, usize) {
        for _ in 0..MOST_REPAIRS {
            let types: Vec<_> = operands.iter().map(|&operand| self.ty(operand)).collect();
            let error = match infer(op, &types, old) {
                Ok(found) if found.1 <= MOST_TILES => return found,
                Ok(_) => break,
                Err(error) => error,
            };
            let Some(slot) = (0..operands.len()).find(|&slot| op.slot(slot) == error.slot) else { break };
            let Some(repair) = parallel_op_of(&error.fix) else { break };
            let Some(value) = self.convert(repair, operands[slot], label, "repaired") else { break };
            operands[slot] = value;
        }
        (old.to_vec(), label.groups.len())
    }

    /// Brings an output back to its old tiling, under its old name, if that takes no more than three operators.
    fn restored(&mut self, value: ValueId, old: &ParallelType, name: &str) -> ValueId {
        let ty = self.ty(value);
        let mut ops = Vec::new();
        if ty.sum_degree() > 1 {
            ops.push(Op::Reduction { degree: ty.sum_degree() });
        }
        for (dim, cut) in ty.dims().iter().enumerate().filter(|(_, cut)| cut.degree > 1) {
            ops.push(Op::Combine { dim, degree: cut.degree, regather: false });
        }
        for (dim, cut) in old.dims().iter().enumerate().filter(|(_, cut)| cut.degree > 1) {
            ops.push(Op::Repartition { dim, degree: cut.degree });
        }
        let (last, mut value) = (ops.len(), value);
        for (at, op) in ops.into_iter().enumerate() {
            let Some(ty) = moved(&op, &self.ty(value)) else { return value };
            let (groups, name) = (self.groups(ty.tiles()), if at + 1 == last { name } else { "restored" });
            let label = LayerPlacement { groups: groups.into(), due: 0, microbatch: None, batch: None };
            value = self.builder.add(op, &[value], vec![(name.into(), ty)], label)[0];
        }
        value
    }

    /// The placement with its own groups if there are as many, else with others.
    fn placement(&mut self, label: &LayerPlacement, tasks: usize) -> LayerPlacement {
        if label.groups.len() == tasks && !self.rng.once_in(self.rarely) {
            return label.clone();
        }
        LayerPlacement { groups: self.groups(tasks).into(), ..label.clone() }
    }

    fn groups(&mut self, tasks: usize) -> Vec<DeviceGroup> {
        let mut device = || DeviceId::from_index(self.rng.below(DEVICES));
        (0..tasks).map(|task| DeviceGroup::new((0..1 + task % 2).map(|_| device()))).collect()
    }
}

/// What a parallel operator makes of a tiling.
fn moved(op: &Op, ty: &ParallelType) -> Option<ParallelType> {
    let mut degrees: Vec<_> = ty.dims().iter().map(|dim| dim.degree).collect();
    let (mut sum, mut copy) = (ty.sum_degree(), ty.copy_degree());
    let divide = |target: &mut usize, degree: usize| {
        let divides = target.is_multiple_of(degree);
        *target /= degree;
        divides
    };
    let legal = match *op {
        Op::Repartition { dim, degree } => degrees.get_mut(dim).map(|target| *target *= degree).is_some(),
        Op::Combine { dim, degree, .. } => degrees.get_mut(dim).is_some_and(|target| divide(target, degree)),
        Op::Replicate { degree } => {
            copy *= degree;
            true
        }
        Op::Reduction { degree } => divide(&mut sum, degree),
        _ => false,
    };
    let ty = ParallelType::tiled(&ty.global(), &degrees, sum, copy).filter(|_| legal)?;
    (ty.tiles() <= MOST_TILES).then_some(ty)
}

/// Result types and number of tasks of a layer by its rule.
fn infer(
    op: &Op,
    operands: &[ParallelType],
    old: &[ParallelType],
) -> Result<(Vec<ParallelType>, usize), OpError> {
    let refused = |fix: &str| OpError {
        slot: String::new(),
        found: String::new(),
        wanted: String::new(),
        fix: fix.to_string(),
    };
    if op.is_parallel() {
        let ty = moved(op, &operands[0]).ok_or_else(|| refused("use another degree"))?;
        let tiles = ty.tiles();
        return Ok((vec![ty], tiles));
    }
    let label = LayerPlacement { groups: [].into(), due: 0, microbatch: None, batch: None };
    let mut builder = ParallelBuilder::new("alone");
    let operands: Vec<_> = operands
        .iter()
        .map(|ty| builder.add(Op::Input, &[], vec![("x".into(), ty.clone())], label.clone())[0])
        .collect();
    let globals: Vec<TensorType> = old.iter().map(ParallelType::global).collect();
    let results = globals.iter().map(|ty| ("y".into(), ParallelType::whole(ty))).collect();
    builder.add(op.clone(), &operands, results, label);
    let rule = builder.graph().rule(LayerId::from_index(operands.len()))?;
    let types = rule.results.iter().zip(&globals).map(|(map, ty)| map.tiling(ty, &rule.extents));
    let types: Option<Vec<_>> = types.collect();
    Ok((types.ok_or_else(|| refused("choose degrees that divide"))?, rule.tasks()))
}

/// The operator that an error's advice names, such as `apply combine dim=1 degree=2`.
fn parallel_op_of(fix: &str) -> Option<Op> {
    let mut words = fix.strip_prefix("apply ")?.split(' ');
    let name = words.next()?;
    let attributes: Vec<(&str, usize)> = words
        .filter_map(|word| word.split_once('='))
        .filter_map(|(key, n)| Some((key, n.parse().ok()?)))
        .collect();
    let attribute = |key: &str| attributes.iter().find(|(other, _)| *other == key).map(|&(_, n)| n);
    let degree = attribute("degree")?;
    Some(match name {
        "repartition" => Op::Repartition { dim: attribute("dim")?, degree },
        "combine" => Op::Combine { dim: attribute("dim")?, degree, regather: false },
        "replicate" => Op::Replicate { degree },
        "reduction" => Op::Reduction { degree },
        _ => return None,
    })
}
