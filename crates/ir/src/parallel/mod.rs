//! The model on devices: every value has a tiling, every layer a placement.
//!
//! Meaning of a tiling (the reconstruction law): `value[x]` is the sum, over the partial tiles that own `x`, of any one
//! copy of each. A gradient has the opposite meaning on the two replica counts: as many additive parts as the value has
//! copies, as many identical copies as the value has partial sums.
//!
//! What holds for every parallel graph, on top of the invariants of a flow:
//!
//! 1. every degree divides its extent (checked when a [`ParallelType`] is made);
//! 2. a layer names one device for each of its tasks, as many as its results have tiles;
//! 3. result tilings are what the operators' parallel rules give. The rules known so far keep every tensor whole.

use std::fmt;
use std::str::FromStr;

use crate::graph::{
    Flow, Graph, Label, Layer, LayerId, Value, VerifyError, parse_flow, print_flow, verify_flow,
};
use crate::text::{Cursor, ParseError};
use crate::{DType, Id, OpError, Shape, TensorType};

crate::id! {
    /// A device: some cores and one memory.
    pub struct DeviceId("dev");
}

/// One dimension of a tiled tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    /// The global extent.
    pub size: usize,
    /// Into how many equal blocks it is cut.
    pub degree: usize,
}

/// Element type and tiling of a value; prints as `f32[64/2, 10] sum 4 copy 3`, degrees of one left out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ParallelType {
    dtype: DType,
    dims: Vec<Dim>,
    sum_degree: usize,
    copy_degree: usize,
}

impl ParallelType {
    /// A tiling; `None` if a degree is zero or does not divide its extent.
    pub fn new(dtype: DType, dims: Vec<Dim>, sum_degree: usize, copy_degree: usize) -> Option<Self> {
        let legal = dims.iter().all(|dim| dim.degree > 0 && dim.size.is_multiple_of(dim.degree));
        (legal && sum_degree > 0 && copy_degree > 0).then_some(ParallelType {
            dtype,
            dims,
            sum_degree,
            copy_degree,
        })
    }

    /// The whole tensor as one tile.
    pub fn whole(ty: &TensorType) -> Self {
        let dims = ty.shape.dims().iter().map(|&size| Dim { size, degree: 1 }).collect();
        ParallelType { dtype: ty.dtype, dims, sum_degree: 1, copy_degree: 1 }
    }

    /// The tensor's type without its tiling.
    pub fn global(&self) -> TensorType {
        TensorType::new(self.dtype, Shape::new(self.dims.iter().map(|dim| dim.size).collect::<Vec<_>>()))
    }

    /// The type of one tile.
    pub fn tile(&self) -> TensorType {
        let dims: Vec<_> = self.dims.iter().map(|dim| dim.size / dim.degree).collect();
        TensorType::new(self.dtype, Shape::new(dims))
    }

    /// How many tiles there are, partial sums and copies counted.
    pub fn tiles(&self) -> usize {
        self.dims.iter().map(|dim| dim.degree).product::<usize>() * self.sum_degree * self.copy_degree
    }
}

impl fmt::Display for ParallelType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self
            .dims
            .iter()
            .map(|dim| match dim.degree {
                1 => dim.size.to_string(),
                degree => format!("{}/{degree}", dim.size),
            })
            .collect();
        write!(f, "{}[{}]", self.dtype, dims.join(", "))?;
        if self.sum_degree > 1 {
            write!(f, " sum {}", self.sum_degree)?;
        }
        if self.copy_degree > 1 {
            write!(f, " copy {}", self.copy_degree)?;
        }
        Ok(())
    }
}

impl Label for ParallelType {
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        let dtype = cursor.parse("an element type (f32, bf16, i32, i64, bool)")?;
        cursor.expect("[")?;
        let dims = if cursor.peek("]") { Vec::new() } else { cursor.list(parse_dim)? };
        cursor.expect("]")?;
        let sum = if cursor.eat("sum ") { cursor.parse("a sum degree")? } else { 1 };
        let copy = if cursor.eat("copy ") { cursor.parse("a copy degree")? } else { 1 };
        match ParallelType::new(dtype, dims, sum, copy) {
            Some(ty) => Ok(ty),
            None => cursor.error("a degree is zero or does not divide its extent"),
        }
    }
}

fn parse_dim(cursor: &mut Cursor<'_>) -> Result<Dim, ParseError> {
    let word = cursor.word()?;
    let (size, degree) = word.split_once('/').unwrap_or((word, "1"));
    match (size.parse(), degree.parse()) {
        (Ok(size), Ok(degree)) => Ok(Dim { size, degree }),
        _ => cursor.error(format!("`{word}` is not an extent like 64 or 64/2")),
    }
}

/// Where and when a layer's tasks run; prints as ` on dev0, dev1 microbatch 2`, microbatch 0 left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The device of each task, in the order of its tiles.
    pub devices: Vec<DeviceId>,
    /// Which part of the batch the layer works on.
    pub microbatch: u32,
}

impl Label for Placement {
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices: Vec<_> = self.devices.iter().map(DeviceId::to_string).collect();
        write!(f, " on {}", devices.join(", "))?;
        match self.microbatch {
            0 => Ok(()),
            microbatch => write!(f, " microbatch {microbatch}"),
        }
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        cursor.expect("on")?;
        let devices = cursor.list(parse_device)?;
        let microbatch = if cursor.eat("microbatch ") { cursor.parse("a microbatch")? } else { 0 };
        Ok(Placement { devices, microbatch })
    }
}

/// Takes a device such as `dev3`.
pub(crate) fn parse_device(cursor: &mut Cursor<'_>) -> Result<DeviceId, ParseError> {
    let word = cursor.word()?;
    match word.strip_prefix("dev").and_then(|number| number.parse::<u32>().ok()) {
        Some(number) => Ok(DeviceId::from_index(number as usize)),
        None => cursor.error(format!("`{word}` is not a device like dev0")),
    }
}

/// A model on devices.
pub type ParallelGraph = Flow<ParallelType, Placement>;

impl ParallelGraph {
    /// The model with every tensor whole and every layer on `device`; `microbatch` tells each layer's.
    pub fn on_one_device(
        graph: &Graph,
        device: DeviceId,
        microbatch: impl Fn(LayerId) -> u32,
    ) -> ParallelGraph {
        let layers = graph.layers.iter().map(|(id, layer)| Layer {
            op: layer.op.clone(),
            operands: layer.operands.clone(),
            results: layer.results.clone(),
            label: Placement { devices: vec![device], microbatch: microbatch(id) },
        });
        let values = graph.values.iter().map(|(_, value)| Value {
            name: value.name.clone(),
            ty: ParallelType::whole(&value.ty),
            layer: value.layer,
        });
        Flow {
            name: graph.name.clone(),
            layers: layers.collect(),
            values: values.collect(),
            outputs: graph.outputs.clone(),
        }
    }

    /// Checks every invariant of this file's head; all broken ones are reported.
    pub fn verify(&self) -> Result<(), Vec<VerifyError>> {
        verify_flow(self, |layer, operands| {
            let tiles = layer.results.first().map_or(1, |&value| self.ty(value).tiles());
            if layer.label.devices.len() != tiles {
                return Err(OpError {
                    slot: "placement".into(),
                    found: format!("{} devices", layer.label.devices.len()),
                    wanted: format!("the layer has {tiles} tasks"),
                    fix: "name one device a task".into(),
                });
            }
            let written: Vec<_> = layer.results.iter().map(|&value| self.ty(value)).collect();
            infer(layer, operands, &written)
        })
    }
}

/// The parallel rule of a layer: whole operands give whole results; a leaf may have any tiling.
fn infer(
    layer: &Layer<Placement>,
    operands: &[&ParallelType],
    written: &[&ParallelType],
) -> Result<Vec<ParallelType>, OpError> {
    if let Some(slot) = operands.iter().position(|ty| ty.tiles() != 1) {
        return Err(OpError {
            slot: layer.op.slot(slot),
            found: operands[slot].to_string(),
            wanted: "its operator has a rule for whole tensors only".into(),
            fix: "give it with every degree 1".into(),
        });
    }
    let global = |types: &[&ParallelType]| types.iter().map(|ty| ty.global()).collect::<Vec<_>>();
    let results = layer.op.infer_or_keep(&global(operands), &global(written))?;
    match layer.op.is_leaf() {
        true => Ok(written.iter().take(1).map(|&ty| ty.clone()).collect()),
        false => Ok(results.iter().map(ParallelType::whole).collect()),
    }
}

impl fmt::Display for ParallelGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print_flow(self, "parallel", f)
    }
}

impl FromStr for ParallelGraph {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        parse_flow(text, "parallel")
    }
}
