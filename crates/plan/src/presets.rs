//! Presets: short names for the usual plans.
//!
//! A name such as `fsdp2-tp2-pp2` is parsed into parts with sizes; each part adds to the spec for every tensor (`specs`),
//! and equal specs of repeated layers become one rule with a pattern (`compress`). No preset knows a model's names: what can
//! be cut follows from classes of axes (`classes`). `weights` says which layers make and take in features, `features` and
//! `sequence` cut them, `stages` finds the stages of a pipeline.

mod compress;
mod features;
mod sequence;
mod specs;
mod stages;
mod weights;

use phalanx_ir::Op;
use phalanx_ir::graph::Graph;

pub(crate) use compress::general;
pub(crate) use features::Features;

use crate::PlanError;
use crate::classes::Classes;
use crate::plan::{Mesh, Plan};
use specs::Specs;

/// Names of all presets, each with one line about it. `one` stands alone; the others can be joined, as in `dp2-tp4`.
pub const PRESETS: &[(&str, &str)] = &[
    ("one", "one device, nothing is cut"),
    ("dp", "data parallel: the batch is cut, every device has all parameters"),
    (
        "fsdp",
        "fully sharded (ZeRO-3): the batch is cut, and parameters are stored cut and joined for each use",
    ),
    ("zero1", "as fsdp, but parameters are joined once a step and kept for the backward pass"),
    ("tp", "tensor parallel (Megatron): heads, hidden features and vocabulary are cut"),
    ("sp", "as tp, and the residual stream is cut along the sequence"),
    ("pp", "pipeline: blocks are dealt to stages, the batch goes through in microbatches"),
];

/// The mesh axis along which parameters are stored cut.
pub(crate) const STORES: &str = "fsdp";

/// The mesh axes in their order, each with the presets that use it.
const AXES: &[(&str, &[&str])] =
    &[("pp", &["pp"]), ("dp", &["dp"]), (STORES, &["fsdp", "zero1"]), ("tp", &["tp", "sp"])];

/// The most microbatches that a preset chooses: sums over the batch have 8 reduction blocks unless the user says otherwise,
/// and a microbatch is a whole number of them.
const MOST_MICROBATCHES: usize = 8;

/// The plan called `name` for `model` on `devices` devices.
///
/// Parts are joined by `-` in any order, each with its size; a part without size takes what the others leave.
///
/// ```
/// # use phalanx_ir::{TensorType, Unary, graph::Builder};
/// # use phalanx_ops::Layers;
/// # let mut model = Builder::new("line");
/// # let x = model.input("x", TensorType::f32([4, 2]))?;
/// # let y = model.unary("y", Unary::Exp, x)?;
/// # let model = model.finish([y]);
/// let plan = phalanx_plan::preset("dp", 4, &model)?;
/// assert_eq!(plan.mesh.axes, [("dp".to_string(), 4)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn preset(name: &str, devices: usize, model: &Graph) -> Result<Plan, PlanError> {
    let parts = Parts::parse(name, devices)?;
    let mut plan = Plan { name: name.into(), mesh: parts.mesh(), ..Plan::default() };
    plan.mesh.check()?;
    let (mut specs, classes) = (Specs::new(model), Classes::new(model));
    if let Some((axis, part, size)) = parts.on("tp") {
        let features = Features::new(model, &classes);
        features.cut(&mut specs, axis, size)?;
        if part == "sp" {
            sequence::cut_sequence(&features, &mut specs, axis, size)?;
        }
    }
    for axis in ["dp", STORES].into_iter().filter(|axis| parts.on(axis).is_some()) {
        specs.cut_batch(&classes, axis);
    }
    if let Some((axis, part, size)) = parts.on(STORES) {
        specs.store_parameters(axis, size, part == "fsdp");
    }
    plan.rules = compress::rules(model, specs);
    if let Some((axis, _, stages)) = parts.on("pp") {
        plan.pipeline = Some(stages::pipeline(model, axis, stages)?);
        plan.microbatches = microbatches(model, &classes, &parts, MOST_MICROBATCHES.min(2 * stages));
    }
    Ok(plan)
}

/// The most microbatches up to `most` into which every data shard of the batch can be cut: a power of two, since sums over
/// the batch are trees over powers of two.
fn microbatches(model: &Graph, classes: &Classes<'_>, parts: &Parts<'_>, most: usize) -> usize {
    let shards: usize =
        ["dp", STORES].iter().filter_map(|axis| parts.on(axis)).map(|(_, _, size)| size).product();
    let batches: Vec<usize> = model
        .leaves(|op| matches!(op, Op::Input))
        .map(|input| model.ty(input).shape.dims().get(classes.batch_dim(input)).copied().unwrap_or(1))
        .collect();
    let divides = |count: &usize| batches.iter().all(|batch| batch.is_multiple_of(count * shards));
    (1..=most).rev().filter(|count| count.is_power_of_two()).find(divides).unwrap_or(1)
}

/// The parts of a preset's name with their sizes.
struct Parts<'a>(Vec<(&'a str, usize)>);

impl<'a> Parts<'a> {
    fn parse(name: &'a str, devices: usize) -> Result<Parts<'a>, PlanError> {
        let mut parts: Vec<(&str, Option<usize>)> = Vec::new();
        for text in name.split('-') {
            let part = split_size(text).ok_or_else(|| {
                let known: Vec<_> = PRESETS.iter().map(|(name, _)| *name).collect();
                PlanError::UnknownPreset { name: name.into(), part: text.into(), known: known.join(", ") }
            })?;
            if let Some((other, _)) = parts.iter().find(|(other, _)| excludes(other, part.0)) {
                let (first, second) = (other.to_string(), part.0.to_string());
                return Err(PlanError::Exclusive { name: name.into(), first, second });
            }
            parts.push(part);
        }
        let given = parts.iter().filter_map(|(_, size)| *size).fold(1, usize::saturating_mul);
        let open: Vec<&str> =
            parts.iter().filter(|(_, size)| size.is_none()).map(|(part, _)| *part).collect();
        let rest = devices.checked_div(given).filter(|rest| rest * given == devices && *rest > 0);
        match (open.as_slice(), rest) {
            ([], _) if given != devices => {
                Err(PlanError::Devices { name: name.into(), wanted: given, devices })
            }
            ([], _) | ([_], Some(_)) => {
                let rest = rest.unwrap_or(1);
                Ok(Parts(parts.into_iter().map(|(part, size)| (part, size.unwrap_or(rest))).collect()))
            }
            _ => Err(PlanError::Unsized { name: name.into(), part: open[0].into(), devices }),
        }
    }

    /// The part that uses this mesh axis, if there is one: axis, part, size.
    fn on(&self, axis: &'static str) -> Option<(&'static str, &'a str, usize)> {
        let (_, users) = AXES.iter().find(|(own, _)| *own == axis)?;
        self.0.iter().find(|(part, _)| users.contains(part)).map(|&(part, size)| (axis, part, size))
    }

    fn mesh(&self) -> Mesh {
        let axes = AXES.iter().filter_map(|(axis, _)| self.on(axis));
        Mesh { axes: axes.map(|(axis, _, size)| (axis.to_string(), size)).collect() }
    }
}

/// A part such as `dp4`: its name and its size, if it has one. `one` is always of one device.
fn split_size(text: &str) -> Option<(&str, Option<usize>)> {
    let (name, _) = PRESETS.iter().find(|(name, _)| text.starts_with(name))?;
    let (name, size) = text.split_at(name.len());
    match (name, size) {
        ("one", "") => Some((name, Some(1))),
        ("one", _) => None,
        (_, "") => Some((name, None)),
        _ => size.parse().ok().filter(|&size: &usize| size > 0).map(|size| (name, Some(size))),
    }
}

/// Whether two parts cannot be in one name.
fn excludes(a: &str, b: &str) -> bool {
    a == "one" || b == "one" || AXES.iter().any(|(_, users)| users.contains(&a) && users.contains(&b))
}
