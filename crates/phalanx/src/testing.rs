//! What every operator must pass, for the author of one: results against its meaning in double precision, gradients against
//! finite differences of that, the same bits on any number of cores and for every cut, and illegal cuts refused. Cuts are each
//! dimension of each operand in 2 and in 4, and each pair of dimensions in halves.

use std::collections::BTreeMap;
use std::fmt;

use phalanx_ir::graph::{Builder, Graph};
use phalanx_ir::parallel::{DeviceGroup, DeviceId, LayerPlacement, ParallelBuilder, ParallelType};
use phalanx_ir::{Binary, Cuts, DType, Id, Init, Op, Reduce, Shape, Tensor, TensorType};
use phalanx_lower::LowerError;
use phalanx_ops::{Layers, ReduceOp};
use phalanx_plan::{Plan, PlanRule};

use crate::pipeline::{CompileError, Settings};
use crate::{Error, Feed, Flavor, Goal, Session};

/// Distance of finite differences; their error is about its square and 1e-11 of the loss.
const STEP: f64 = 1e-5;

/// The largest error of single precision, relative to the largest element or to one.
const TOLERANCE: f64 = 2048.0 * f32::EPSILON as f64 / 2.0;

/// The loss of the model that an operator is checked in.
const LOSS: &str = "loss";

/// What is wrong with an operator.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CheckError {
    /// It cannot be built, compiled or run.
    #[error(transparent)]
    Run(#[from] Error),
    /// Nothing can be learned from it: no operand or no result is a float.
    #[error("`{op}` has no operand and result of floats")]
    Nothing { op: String },
    /// A value differs from the one in double precision.
    #[error("`{op}` on {setting}: {tensor}[{element}] is {found}, expected {expected}")]
    Value { op: String, setting: String, tensor: String, element: usize, found: f64, expected: f64 },
    /// The bits depend on cores or cuts.
    #[error("`{op}` on {setting}: {tensor} has other bits than on one core of one device")]
    Bits { op: String, setting: String, tensor: String },
    /// Its cuts allow what its rule refuses, or the other way round.
    #[error("`{op}`: {setting} is {found}, against what its cuts say")]
    Cut {
        op: String,
        /// The operands that are cut.
        setting: String,
        /// `legal` or `illegal`.
        found: &'static str,
    },
}

/// Checks an operator on operands of these types; see the head of the file.
pub fn check_operator(op: impl Into<Op>, operands: &[TensorType]) -> Result<(), CheckError> {
    let check = Check::new(op.into(), operands)?;
    check.check_rules()?;
    let one = check.run(&Plan::default(), 1, Flavor::Fast)?;
    let gradients = check.gradients();
    for flavor in [Flavor::Reference, Flavor::Fast] {
        let found = check.run(&Plan::default(), 1, flavor)?;
        check.compare(&format!("{flavor:?} kernels"), &found, &gradients)?;
    }
    for cores in 2..=4 {
        let found = check.run(&Plan::default(), cores, Flavor::Fast)?;
        check.same_bits(&format!("{cores} cores"), &one, &found)?;
    }
    for cuts in check.choices() {
        let found = match check.run(&plan(&cuts), 1, Flavor::Fast) {
            // Strict bits refuse a cut off the leaves of a sum.
            Err(Error::Compile(CompileError::Lower(LowerError::Unaligned { .. }))) => continue,
            found => found?,
        };
        check.same_bits(&setting(&cuts), &one, &found)?;
    }
    Ok(())
}

/// One dimension of an operand in equal parts.
#[derive(Clone, Copy)]
struct OperandCut {
    slot: usize,
    dim: usize,
    degree: usize,
}

impl fmt::Display for OperandCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OperandCut { slot, dim, degree } = self;
        write!(f, "dimension {dim} of operand {slot} in {degree}")
    }
}

/// The cuts for people.
fn setting(cuts: &[OperandCut]) -> String {
    cuts.iter().map(|cut| cut.to_string()).collect::<Vec<_>>().join(" and ")
}

/// A plan that cuts operands like this, each along an axis of its own.
fn plan(cuts: &[OperandCut]) -> Plan {
    let rule = |(axis, cut): (usize, &OperandCut)| {
        let shard = [(cut.dim, vec![format!("axis{axis}")])].into();
        PlanRule { pattern: format!("x{}", cut.slot), shard, ..PlanRule::default() }
    };
    let mut rules: Vec<PlanRule> = cuts.iter().enumerate().map(rule).collect();
    if let [first, second] = &mut rules[..]
        && first.pattern == second.pattern
    {
        first.shard.append(&mut second.shard);
        rules.truncate(1);
    }
    let axes = cuts.iter().enumerate().map(|(axis, cut)| (format!("axis{axis}"), cut.degree)).collect();
    Plan { name: "cut".into(), mesh: phalanx_plan::Mesh { axes }, rules, ..Plan::default() }
}

struct Check {
    op: Op,
    operands: Vec<TensorType>,
    graph: Graph,
    inputs: BTreeMap<String, Tensor>,
}

impl Check {
    /// The operator in a model whose loss is the sum of its float results, each weighted.
    fn new(op: Op, operands: &[TensorType]) -> Result<Check, CheckError> {
        let mut model = Builder::new("check");
        let mut values = Vec::new();
        for (slot, ty) in operands.iter().enumerate() {
            let leaf = if ty.dtype == DType::F32 { Op::Param(Init::Zeros) } else { Op::Input };
            values.push(model.leaf(&format!("x{slot}"), leaf, ty.clone()).map_err(Error::from)?);
        }
        let results = model.add("y", op.clone(), &values).map_err(Error::from)?;
        let mut loss = None;
        for (slot, result) in results.into_iter().enumerate() {
            if model.ty(result).dtype == DType::F32 {
                let term = weighted(&mut model, slot, result).map_err(Error::from)?;
                loss = Some(match loss {
                    None => term,
                    Some(sum) => model.binary(LOSS, Binary::Add, sum, term).map_err(Error::from)?,
                });
            }
        }
        let is_trained = operands.iter().any(|ty| ty.dtype == DType::F32);
        let Some(loss) = loss.filter(|_| is_trained) else {
            return Err(CheckError::Nothing { op: op.to_text().0.to_string() });
        };
        let graph = model.finish([loss]);
        let inputs = draw(&graph, &op, operands);
        Ok(Check { op, operands: operands.to_vec(), graph, inputs })
    }

    fn name(&self) -> String {
        self.op.to_text().0.to_string()
    }

    /// Loss and gradients of a run, by name.
    fn run(&self, plan: &Plan, cores: usize, flavor: Flavor) -> Result<BTreeMap<String, Vec<f32>>, Error> {
        let settings = Settings::new(Goal::Gradients).cores(cores).plan(plan.clone());
        let mut session = Session::with_kernels(&self.graph, &settings, flavor)?;
        for leaf in self.graph.leaves(Op::is_leaf) {
            let name = &self.graph.values()[leaf].name;
            let data = &self.inputs[name].data;
            match self.graph.ty(leaf).dtype {
                DType::I64 => {
                    session.feed(name, Feed::I64(&data.iter().map(|&x| x as i64).collect::<Vec<_>>()))?
                }
                DType::I32 => {
                    session.feed(name, Feed::I32(&data.iter().map(|&x| x as i32).collect::<Vec<_>>()))?
                }
                DType::Bool => {
                    session.feed(name, Feed::Bool(&data.iter().map(|&x| x != 0.0).collect::<Vec<_>>()))?
                }
                _ => session.feed(name, Feed::F32(&data.iter().map(|&x| x as f32).collect::<Vec<_>>()))?,
            }
        }
        session.run()?;
        let loss = self.graph.values()[self.graph.outputs()[0]].name.clone();
        let gradients = self.floats().map(|slot| format!("x{slot}.grad"));
        let names = std::iter::once(loss).chain(gradients);
        names.map(|name| Ok((name.clone(), session.read(&name)?.into_owned()))).collect()
    }

    fn floats(&self) -> impl Iterator<Item = usize> {
        (0..self.operands.len()).filter(|&slot| self.operands[slot].dtype == DType::F32)
    }

    /// Loss and gradients in double precision: by the operator's meaning, and by finite differences of it.
    fn gradients(&self) -> BTreeMap<String, Tensor> {
        let mut expected = BTreeMap::new();
        for slot in self.floats() {
            let name = format!("x{slot}");
            let mut inputs = self.inputs.clone();
            let point = inputs[&name].clone();
            let mut loss_at = |element: usize, x: f64| {
                let mut moved = point.clone();
                moved.data[element] = x;
                inputs.insert(name.clone(), moved);
                loss(&self.graph, &inputs)
            };
            let slope =
                |(at, &x): (usize, &f64)| (loss_at(at, x + STEP) - loss_at(at, x - STEP)) / (2.0 * STEP);
            let slopes: Vec<f64> = point.data.iter().enumerate().map(slope).collect();
            expected.insert(format!("{name}.grad"), Tensor::new(point.shape.clone(), slopes));
        }
        let name = self.graph.values()[self.graph.outputs()[0]].name.clone();
        expected.insert(name, Tensor::scalar(loss(&self.graph, &self.inputs)));
        expected
    }

    fn compare(
        &self,
        setting: &str,
        found: &BTreeMap<String, Vec<f32>>,
        expected: &BTreeMap<String, Tensor>,
    ) -> Result<(), CheckError> {
        for (tensor, found) in found {
            let expected = &expected[tensor].data;
            let scale = expected.iter().fold(1.0, |scale: f64, x| scale.max(x.abs()));
            for (element, (&found, &expected)) in found.iter().zip(expected).enumerate() {
                let found = f64::from(found);
                if (found - expected).abs() <= scale * TOLERANCE {
                    continue;
                }
                let (op, setting, tensor) = (self.name(), setting.to_string(), tensor.clone());
                return Err(CheckError::Value { op, setting, tensor, element, found, expected });
            }
        }
        Ok(())
    }

    fn same_bits(
        &self,
        setting: &str,
        one: &BTreeMap<String, Vec<f32>>,
        found: &BTreeMap<String, Vec<f32>>,
    ) -> Result<(), CheckError> {
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let other = one.iter().find(|(name, values)| bits(values) != bits(&found[*name]));
        other.map_or(Ok(()), |(tensor, _)| {
            let (op, setting, tensor) = (self.name(), setting.to_string(), tensor.clone());
            Err(CheckError::Bits { op, setting, tensor })
        })
    }

    /// Every dimension that can be cut in 2 or 4, and every pair of dimensions in halves.
    fn choices(&self) -> Vec<Vec<OperandCut>> {
        let of = |degree: usize| {
            let dims = |(slot, ty): (usize, &TensorType)| {
                let fits = |dim: &usize| ty.shape.dims()[*dim].is_multiple_of(degree);
                let cut = |dim| OperandCut { slot, dim, degree };
                (0..ty.shape.rank()).filter(fits).map(cut).collect::<Vec<_>>()
            };
            self.operands.iter().enumerate().flat_map(dims).collect::<Vec<_>>()
        };
        let halves = of(2);
        let pairs = (0..halves.len()).flat_map(|at| halves[at + 1..].iter().map(move |&other| (at, other)));
        let pairs: Vec<_> = pairs.map(|(at, other)| vec![halves[at], other]).collect();
        halves.into_iter().chain(of(4)).map(|cut| vec![cut]).chain(pairs).collect()
    }

    /// All cuts, the other operands as the operator's cuts want them: legal only if all have an axis.
    fn check_rules(&self) -> Result<(), CheckError> {
        let Some(operator) = self.op.operator() else { return Ok(()) };
        let types = self.op.infer(&self.operands).map_err(|error| wrong(&self.op, error))?;
        let operands: Vec<&Shape> = self.operands.iter().map(|ty| &ty.shape).collect();
        let results: Vec<&Shape> = types.iter().map(|ty| &ty.shape).collect();
        let cuts = operator.cuts(&operands, &results);
        let limits = cuts.limits(&operands, &results);
        let axis = |cut: &OperandCut| cuts.operands[cut.slot][cut.dim];
        let refused = cuts.refused.map(|(refused, _)| refused);
        let fits = |cut: &OperandCut| {
            let divides = |axis: usize| limits[axis].iter().all(|limit| limit.is_multiple_of(cut.degree));
            axis(cut).is_some_and(|axis| divides(axis) && refused != Some(axis))
        };
        for choice in self.choices() {
            if let [first, second] = &choice[..]
                && axis(first).is_some_and(|first| axis(second) == Some(first))
            {
                continue;
            }
            let tilings = self.tiled(&cuts, &choice);
            let legal = tilings.is_some_and(|tilings| self.is_legal(&tilings, &types));
            if legal != choice.iter().all(fits) {
                let found = if legal { "legal" } else { "illegal" };
                return Err(CheckError::Cut { op: self.name(), setting: setting(&choice), found });
            }
        }
        Ok(())
    }

    /// The operands cut like this: along an axis all that run along it, with copies of those that do not.
    fn tiled(&self, cuts: &Cuts, choice: &[OperandCut]) -> Option<Vec<ParallelType>> {
        let tiled = |(slot, dims): (usize, &Vec<Option<usize>>)| {
            let part = |cut: &OperandCut, dim: usize| match cuts.operands[cut.slot][cut.dim] {
                Some(axis) => dims[dim] == Some(axis),
                None => (cut.slot, cut.dim) == (slot, dim),
            };
            let degree =
                |dim: usize| choice.iter().filter(|cut| part(cut, dim)).map(|cut| cut.degree).product();
            let degrees: Vec<usize> = (0..dims.len()).map(degree).collect();
            let misses = |cut: &&OperandCut| {
                let axis = cuts.operands[cut.slot][cut.dim];
                axis.is_some() && !dims.contains(&axis) && !cuts.shared.contains(&slot)
            };
            let copies = choice.iter().filter(misses).map(|cut| cut.degree).product();
            ParallelType::tiled(&self.operands[slot], &degrees, 1, copies)
        };
        cuts.operands.iter().enumerate().map(tiled).collect()
    }

    fn is_legal(&self, operands: &[ParallelType], results: &[TensorType]) -> bool {
        let on = |tiles: usize| {
            let groups: Vec<_> =
                (0..tiles).map(|device| DeviceGroup::new([DeviceId::from_index(device)])).collect();
            LayerPlacement::on(groups)
        };
        let mut builder = ParallelBuilder::new("check");
        let leaf = |(slot, ty): (usize, &ParallelType)| {
            builder.add(Op::Input, &[], vec![(format!("x{slot}"), ty.clone())], on(ty.tiles()))[0]
        };
        let values: Vec<_> = operands.iter().enumerate().map(leaf).collect();
        let result = |(slot, ty): (usize, &TensorType)| (format!("y{slot}"), ParallelType::whole(ty));
        let layer =
            builder.add(self.op.clone(), &values, results.iter().enumerate().map(result).collect(), on(1));
        let graph = builder.graph();
        graph.rule(graph.values()[layer[0]].layer).is_ok()
    }
}

fn wrong(op: &Op, source: phalanx_ir::OpError) -> Error {
    let (layer, op) = ("y".to_string(), op.to_text().0.to_string());
    phalanx_ir::graph::BuildError::Op { layer, op, source: Box::new(source) }.into()
}

/// The sum of a result's elements, each with its own weight.
fn weighted(
    model: &mut Builder,
    slot: usize,
    result: phalanx_ir::graph::ValueId,
) -> Result<phalanx_ir::graph::ValueId, phalanx_ir::graph::BuildError> {
    // As one list, so that no inner dimension of the sum is cut.
    let count = model.shape(result).elements();
    let list = model.reshape(&format!("list{slot}"), result, [count])?;
    let weights = model.input(&format!("w{slot}"), TensorType::f32([count]))?;
    let product = model.binary(&format!("product{slot}"), Binary::Mul, list, weights)?;
    let sum = ReduceOp { kind: Reduce::Sum, axes: vec![0], keep: false };
    model.add_one(&format!("{LOSS}{slot}"), sum, &[product])
}

/// Leaves of the model: floats of magnitude 0.1 to 1 that single precision holds, indices in their range.
fn draw(graph: &Graph, op: &Op, operands: &[TensorType]) -> BTreeMap<String, Tensor> {
    let shapes: Vec<&Shape> = operands.iter().map(|ty| &ty.shape).collect();
    let bound = op.operator().and_then(|operator| operator.index_bound(&shapes));
    let mut state: u64 = 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1 << 24) as f64
    };
    let mut leaves = BTreeMap::new();
    for leaf in graph.leaves(Op::is_leaf) {
        let (name, ty) = (graph.values()[leaf].name.clone(), graph.ty(leaf));
        let below =
            bound.as_ref().filter(|bound| name == format!("x{}", bound.slot)).map_or(2, |bound| bound.below);
        let tensor = Tensor::from_fn(&ty.shape, |_| match ty.dtype {
            DType::F32 => {
                let sign = if next() < 0.5 { -1.0 } else { 1.0 };
                f64::from((sign * (0.1 + 0.9 * next())) as f32)
            }
            _ => (next() * below as f64).floor(),
        });
        leaves.insert(name, tensor);
    }
    leaves
}

/// The loss in double precision.
fn loss(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> f64 {
    let mut values: Vec<Tensor> = Vec::new();
    for (_, layer) in graph.layers().iter() {
        match layer.op.operator() {
            None => values.push(inputs[&graph.values()[layer.results[0]].name].clone()),
            Some(operator) => {
                let operands: Vec<&Tensor> =
                    layer.operands.iter().map(|value| &values[value.index()]).collect();
                let shapes: Vec<Shape> =
                    layer.results.iter().map(|&value| graph.ty(value).shape.clone()).collect();
                let results = operator.evaluate(&operands, &shapes);
                values.extend(results);
            }
        }
    }
    values[graph.outputs()[0].index()].data[0]
}
