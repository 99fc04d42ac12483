//! The model on devices: every value has a tiling, every layer a placement.
//!
//! Meaning of a tiling (the reconstruction law): `value[x]` is the sum, over the partial tiles that own `x`, of any one
//! copy of each. A gradient has the opposite meaning on the two replica counts (gradient duality): as many additive
//! parts as the value has copies, as many identical copies as the value has partial sums.
//!
//! A tile lies on a [`DeviceGroup`]: one device, or several that all compute and hold the same. Unlike copies, which the tiling
//! counts and whose gradients are additive parts, the devices of a group have the same gradient too.
//!
//! What holds for every parallel graph, on top of the invariants of a flow:
//!
//! 1. every degree divides its extent (checked when a [`ParallelType`] is made);
//! 2. a layer names one group for each of its tasks, a source or parallel operator for each tile of its result;
//! 3. result tilings are what the operators' parallel rules give ([`TilingRule`]);
//! 4. the four parallel operators change degrees and never values.

mod device_group;
mod rule;
mod rules;
mod tiling;

pub(crate) use device_group::parse_device;
pub use device_group::{DeviceGroup, DeviceId, LayerPlacement, Microbatch};
pub use rule::{Axis, TileMap, TilingRule, place};
pub use tiling::{Coord, Dim, MAX_TILES, ParallelType};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::graph::{Graph, Layer, LayerGraph, LayerId, Update, Value, ValueId, VerifyError, verify_flow};
use crate::{Op, OpError, Shape, TensorType};

/// A model on devices.
pub type ParallelGraph = LayerGraph<ParallelType, LayerPlacement>;

/// Adds layers to a parallel graph one after the other; nothing is checked before [`ParallelGraph::verify`].
pub struct ParallelBuilder {
    graph: ParallelGraph,
    names: BTreeMap<String, usize>,
}

impl ParallelBuilder {
    /// An empty graph.
    pub fn new(name: &str) -> Self {
        let graph = LayerGraph {
            name: name.to_string(),
            layers: Default::default(),
            values: Default::default(),
            outputs: Vec::new(),
            updates: Vec::new(),
        };
        ParallelBuilder { graph, names: BTreeMap::new() }
    }

    /// The graph so far.
    pub fn graph(&self) -> &ParallelGraph {
        &self.graph
    }

    /// Adds a layer; each result is given with its name and type. A name already taken gets a number appended.
    pub fn add(
        &mut self,
        op: Op,
        operands: &[ValueId],
        results: Vec<(String, ParallelType)>,
        placement: LayerPlacement,
    ) -> Vec<ValueId> {
        let layer = crate::Id::from_index(self.graph.layers.len());
        let results: Vec<ValueId> = results
            .into_iter()
            .map(|(name, ty)| {
                let name = self.unused(name);
                self.graph.values.push(Value { name, ty, layer })
            })
            .collect();
        let operands = operands.to_vec();
        self.graph.layers.push(Layer { op, operands, results: results.clone(), label: placement });
        results
    }

    /// Lets training steps write a state.
    pub fn update(&mut self, update: Update) {
        self.graph.updates.push(update);
    }

    /// Ends the graph.
    pub fn finish(mut self, outputs: Vec<ValueId>) -> ParallelGraph {
        self.graph.outputs = outputs;
        self.graph
    }

    fn unused(&mut self, name: String) -> String {
        let mut candidate = name.clone();
        loop {
            match self.names.get_mut(&candidate) {
                None => {
                    self.names.insert(candidate.clone(), 1);
                    return candidate;
                }
                Some(uses) => {
                    *uses += 1;
                    candidate = format!("{name}_{uses}");
                }
            }
        }
    }
}

impl ParallelGraph {
    /// The model with every tensor whole and every layer on `device`; `placement` says with which microbatch each layer is due, and on
    /// which it works.
    pub fn on_one_device(
        graph: &Graph,
        device: DeviceId,
        placement: impl Fn(LayerId) -> (u32, Option<Microbatch>),
    ) -> ParallelGraph {
        let groups: Arc<[DeviceGroup]> = Arc::from([DeviceGroup::one(device)]);
        let layers = graph.layers.iter().map(|(id, layer)| {
            let (due, microbatch) = placement(id);
            Layer {
                op: layer.op.clone(),
                operands: layer.operands.clone(),
                results: layer.results.clone(),
                label: LayerPlacement { groups: Arc::clone(&groups), due, microbatch, batch: None },
            }
        });
        let values = graph.values.iter().map(|(_, value)| Value {
            name: value.name.clone(),
            ty: ParallelType::whole(&value.ty),
            layer: value.layer,
        });
        LayerGraph {
            name: graph.name.clone(),
            layers: layers.collect(),
            values: values.collect(),
            outputs: graph.outputs.clone(),
            updates: graph.updates.clone(),
        }
    }

    /// The tasks of a layer: for a source or parallel operator one for each tile of its result.
    pub fn rule(&self, layer: LayerId) -> Result<TilingRule, OpError> {
        let layer = &self.layers[layer];
        let Some(operator) = layer.op.operator().filter(|_| !layer.op.is_source()) else {
            let (extents, map) = self.ty(layer.results[0]).grid();
            return Ok(TilingRule { extents, operands: Vec::new(), results: vec![map], exact: true });
        };
        let operands: Vec<_> = layer.operands.iter().map(|&value| self.ty(value)).collect();
        let shapes: Vec<Shape> = layer.results.iter().map(|&value| self.ty(value).global().shape).collect();
        rules::rule(&layer.op, operator, &operands, &shapes)
    }

    /// The group of every tile of a value: all devices on which its layer computes the tile.
    pub fn groups(&self, value: ValueId) -> Result<Arc<[DeviceGroup]>, OpError> {
        let id = self.values[value].layer;
        let layer = &self.layers[id];
        let rule = self.rule(id)?;
        let slot = layer.results.iter().position(|&result| result == value).unwrap_or(0);
        Ok(tile_groups(self.ty(value), &rule.results[slot], &rule.extents, &layer.label.groups))
    }

    /// Checks every invariant of this file's head; all broken ones are reported.
    pub fn verify(&self) -> Result<(), Vec<VerifyError>> {
        verify_flow(self, |layer, operands| {
            let written: Vec<_> = layer.results.iter().map(|&value| self.ty(value)).collect();
            infer(layer, operands, &written)
        })
    }
}

/// The group of every tile of a slot whose tasks run on `groups`.
pub fn tile_groups(
    ty: &ParallelType,
    map: &TileMap,
    extents: &[usize],
    groups: &[DeviceGroup],
) -> Arc<[DeviceGroup]> {
    let mut devices: Vec<BTreeSet<DeviceId>> = vec![BTreeSet::new(); ty.tiles()];
    let mut only: Vec<Option<&DeviceGroup>> = vec![None; ty.tiles()];
    for (task, group) in groups.iter().enumerate() {
        let tile = ty.index(&map.coord(extents, &place(extents, task)));
        only[tile] = if devices[tile].is_empty() { Some(group) } else { None };
        devices[tile].extend(group.devices());
    }
    let group = |(only, devices): (Option<&DeviceGroup>, BTreeSet<DeviceId>)| {
        only.cloned().unwrap_or_else(|| DeviceGroup::new(devices))
    };
    only.into_iter().zip(devices).map(group).collect()
}

/// The result types of a layer by its parallel rule; a source may have any tiling.
fn infer(
    layer: &Layer<LayerPlacement>,
    operands: &[&ParallelType],
    written: &[&ParallelType],
) -> Result<Vec<ParallelType>, OpError> {
    if layer.op.is_parallel() {
        let result = moved(&layer.op, operands)?;
        return check_groups(layer, result.tiles()).map(|()| vec![result]);
    }
    let global = |types: &[&ParallelType]| types.iter().map(|ty| ty.global()).collect::<Vec<_>>();
    let results = layer.op.infer_or_keep(&global(operands), &global(written))?;
    let Some(operator) = layer.op.operator().filter(|_| !layer.op.is_source()) else {
        let tiles = written.first().map_or(1, |ty| ty.tiles());
        // A leaf is what it is written as; another source has the type that its operator states, and no partial sums.
        let is_own = |(ty, &written): (&TensorType, &&ParallelType)| {
            written.global() == *ty && (layer.op.is_leaf() || written.sum_degree() == 1)
        };
        if !results.iter().zip(written).all(is_own) {
            return Ok(results.iter().map(ParallelType::whole).collect());
        }
        return check_groups(layer, tiles).map(|()| written.iter().take(1).map(|&ty| ty.clone()).collect());
    };
    let shapes: Vec<_> = results.iter().map(|ty| ty.shape.clone()).collect();
    let rule = rules::rule(&layer.op, operator, operands, &shapes)?;
    check_groups(layer, rule.tasks())?;
    let tiling = |(ty, map): (&TensorType, &TileMap)| {
        map.tiling(ty, &rule.extents).ok_or_else(|| OpError {
            slot: "result".into(),
            found: ty.to_string(),
            wanted: format!("{}: its rule cuts it where it does not divide", layer.op.to_text().0),
            fix: "choose degrees that divide every extent".into(),
        })
    };
    results.iter().zip(&rule.results).map(tiling).collect()
}

fn check_groups(layer: &Layer<LayerPlacement>, tasks: usize) -> Result<(), OpError> {
    let groups = &layer.label.groups;
    if groups.len() == tasks && groups.iter().all(|group| !group.devices().is_empty()) {
        return Ok(());
    }
    Err(OpError {
        slot: "placement".into(),
        found: format!("{} device groups", groups.len()),
        wanted: format!("the layer has {tasks} tasks"),
        fix: "name one device group a task".into(),
    })
}

/// What a parallel operator makes of a tiling.
fn moved(op: &Op, operands: &[&ParallelType]) -> Result<ParallelType, OpError> {
    let [x] = operands else {
        let found = format!("one of {} operands", operands.len());
        let wanted = format!("{} takes one", op.to_text().0);
        return Err(OpError { slot: "input".into(), found, wanted, fix: "give it one operand".into() });
    };
    let wrong = |wanted: String, fix: &str| OpError {
        slot: "input".into(),
        found: x.to_string(),
        wanted: format!("{}: {wanted}", op.to_text().0),
        fix: fix.into(),
    };
    let mut degrees: Vec<usize> = x.dims().iter().map(|dim| dim.degree).collect();
    let (mut sum, mut copy) = (x.sum_degree(), x.copy_degree());
    let target = match op {
        Op::Repartition { dim, .. } | Op::Combine { dim, .. } => match degrees.get_mut(*dim) {
            Some(degree) => degree,
            None => return Err(wrong(format!("there is no dim {dim}"), "name one of its dims")),
        },
        Op::Replicate { .. } => &mut copy,
        _ => &mut sum,
    };
    match op {
        Op::Repartition { degree, .. } | Op::Replicate { degree } => {
            *target = target
                .checked_mul(*degree)
                .filter(|&product| (1..=MAX_TILES).contains(&product))
                .ok_or_else(|| {
                    wrong(
                        format!("its degree must be from 1 to {MAX_TILES}"),
                        "use a smaller degree of at least 1",
                    )
                })?;
        }
        Op::Combine { degree, .. } | Op::Reduction { degree } => {
            if *degree == 0 || !target.is_multiple_of(*degree) {
                let wanted = format!("a degree of {target} is not divisible by {degree}");
                return Err(wrong(wanted, "use a divisor of the degree"));
            }
            *target /= degree;
        }
        _ => unreachable!("only the four parallel operators move"),
    }
    ParallelType::tiled(&x.global(), &degrees, sum, copy).ok_or_else(|| {
        let wanted = format!("the new degree must divide the extent and make at most {MAX_TILES} tiles");
        wrong(wanted, "use a divisor of the extent")
    })
}
