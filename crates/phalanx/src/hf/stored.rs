//! Which parameters a tensor of a model file consists of.
//!
//! Files of GPT-2, Phi-3 and GPT-NeoX hold query, key and value of a block as one tensor, side by side along the outputs,
//! GPT-NeoX head by head; those of Phi-3 also a gate with what it gates. The model has them apart. Every other tensor of a
//! file is one parameter, under the same name but for GPT-NeoX's head.

use std::borrow::Cow;

use phalanx_ir::graph::Graph;
use phalanx_ir::{Op, Shape};
use phalanx_models::{DecoderFamily, LlamaConfig, ModelConfig, ModelError};

/// A tensor of a model file: one parameter, or several side by side along an axis.
///
/// The parts agree in every extent but that of the axis, where the tensor has the sum of theirs: all of one part before
/// the next, or in equal blocks that have a piece of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    name: String,
    shape: Shape,
    axis: usize,
    blocks: usize,
    parts: Vec<(String, Shape)>,
}

/// Every trained tensor of a model as files hold it, in the order of the graph: what to ask [`super::read_weights`] for.
///
/// ```
/// # use phalanx::{hf, models::ModelConfig};
/// let tensors = hf::tensors(&ModelConfig::preset("gpt2", "small")?)?;
/// let attention = &tensors[4];
/// assert_eq!(attention.name(), "transformer.h.0.attn.c_attn.weight");
/// assert_eq!(attention.shape().dims(), [768, 3 * 768]);
/// assert_eq!(attention.parts()[1].0, "transformer.h.0.attn.k.weight");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn tensors(model: &ModelConfig) -> Result<Vec<Stored>, ModelError> {
    let graph = match model {
        // Two samples, so that a batch has a variance. What training needs alone is in files, too.
        ModelConfig::Zoo(choice) => return Ok(graph_tensors(&choice.training_graph(2)?)),
        _ => model.logits_graph(1, 1)?,
    };
    let mut tensors: Vec<Stored> = Vec::new();
    for value in graph.leaves(|op| matches!(op, Op::Param(_))) {
        let (param, shape) = (graph.values()[value].name.clone(), graph.ty(value).shape.clone());
        let Some(place) = place(model, &param, &shape) else {
            tensors.push(Stored::whole(param, shape));
            continue;
        };
        match tensors.iter_mut().find(|stored| stored.name == place.name) {
            Some(stored) => stored.append(param, shape),
            None => tensors.push(Stored::packed(place, param, shape)),
        }
    }
    Ok(tensors)
}

/// Every parameter and state of a graph, each as a tensor of its own.
pub fn graph_tensors(graph: &Graph) -> Vec<Stored> {
    let weights = graph.leaves(Op::is_weight);
    weights.map(|value| Stored::whole(&*graph.values()[value].name, graph.ty(value).shape.clone())).collect()
}

/// Where a parameter lies that is not a tensor under its own name.
struct Place {
    /// The tensor's name.
    name: String,
    /// Along which it stands beside others.
    axis: usize,
    /// See [`Stored`].
    blocks: usize,
}

fn place(model: &ModelConfig, param: &str, shape: &Shape) -> Option<Place> {
    let beside = |name: String, axis| Some(Place { name, axis, blocks: 1 });
    match model {
        ModelConfig::Gpt2(_) => beside(fused(param, "attn", &["q", "k", "v"], "c_attn")?, shape.rank() - 1),
        ModelConfig::Llama(LlamaConfig { family: DecoderFamily::Phi3, .. }) => {
            let attention = fused(param, "self_attn", &["q_proj", "k_proj", "v_proj"], "qkv_proj");
            beside(attention.or_else(|| fused(param, "mlp", &["gate_proj", "up_proj"], "gate_up_proj"))?, 0)
        }
        ModelConfig::Llama(LlamaConfig { family: DecoderFamily::GptNeox, heads, .. }) => match param {
            "lm_head.weight" => beside("embed_out.weight".into(), 0),
            _ => {
                let name = fused(param, "attention", &["q", "k", "v"], "query_key_value")?;
                Some(Place { name, axis: 0, blocks: *heads })
            }
        },
        _ => None,
    }
}

/// The name of the tensor for `PATH.{module}.{one of parts}.KIND`: `PATH.{module}.{whole}.KIND`.
fn fused(param: &str, module: &str, parts: &[&str], whole: &str) -> Option<String> {
    let (block, rest) = param.split_once(&format!(".{module}."))?;
    let (part, kind) = rest.split_once('.')?;
    parts.contains(&part).then(|| format!("{block}.{module}.{whole}.{kind}"))
}

impl Stored {
    /// A parameter stored alone, under its own name.
    pub fn whole(name: impl Into<String>, shape: Shape) -> Self {
        let name = name.into();
        Stored { parts: vec![(name.clone(), shape.clone())], name, shape, axis: 0, blocks: 1 }
    }

    /// A stored tensor with its first part; more are appended along its axis.
    fn packed(Place { name, axis, blocks }: Place, param: String, shape: Shape) -> Self {
        Stored { name, shape: shape.clone(), axis, blocks, parts: vec![(param, shape)] }
    }

    fn append(&mut self, param: String, shape: Shape) {
        let extent = self.shape.dims()[self.axis] + shape.dims()[self.axis];
        debug_assert_eq!(shape.with(self.axis, extent), self.shape.with(self.axis, extent), "{param} fits");
        self.shape = self.shape.with(self.axis, extent);
        self.parts.push((param, shape));
    }

    /// Its name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its shape in the file.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The parameters it consists of, with their shapes.
    pub fn parts(&self) -> &[(String, Shape)] {
        &self.parts
    }

    /// Cuts the elements of the tensor into those of each parameter.
    pub(crate) fn split(&self, values: Vec<f32>) -> Vec<(String, Vec<f32>)> {
        assert_eq!(values.len(), self.shape.elements(), "`{}` was checked when it was read", self.name);
        if let [(name, _)] = &self.parts[..] {
            return vec![(name.clone(), values)];
        }
        let empty = |(name, shape): &(String, Shape)| (name.clone(), Vec::with_capacity(shape.elements()));
        let mut parts: Vec<(String, Vec<f32>)> = self.parts.iter().map(empty).collect();
        let mut rest = &values[..];
        for _ in 0..self.rows() {
            for ((_, part), run) in parts.iter_mut().zip(self.runs()) {
                let (head, tail) = rest.split_at(run);
                part.extend_from_slice(head);
                rest = tail;
            }
        }
        parts
    }

    /// The elements of the tensor, from those of each parameter in the order of [`Self::parts`].
    pub fn join<'a>(&self, parts: &[&'a [f32]]) -> Cow<'a, [f32]> {
        assert_eq!(parts.len(), self.parts.len(), "all parts of `{}` are at hand", self.name);
        if let [whole] = parts {
            return Cow::Borrowed(whole);
        }
        let mut values = Vec::with_capacity(self.shape.elements());
        for row in 0..self.rows() {
            for (part, run) in parts.iter().zip(self.runs()) {
                values.extend_from_slice(&part[row * run..][..run]);
            }
        }
        Cow::Owned(values)
    }

    /// How often the parts alternate in memory.
    fn rows(&self) -> usize {
        self.shape.dims()[..self.axis].iter().product::<usize>() * self.blocks
    }

    /// How many elements of each part are contiguous in the tensor.
    fn runs(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().map(|(_, shape)| shape.dims()[self.axis..].iter().product::<usize>() / self.blocks)
    }

    /// The place along the axis of an element of a part that is at `index` of it along the axis.
    pub(super) fn position(&self, part: usize, index: usize) -> usize {
        let extents: Vec<usize> =
            self.parts.iter().map(|(_, shape)| shape.dims()[self.axis] / self.blocks).collect();
        let before: usize = extents[..part].iter().sum();
        index / extents[part] * extents.iter().sum::<usize>() + before + index % extents[part]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(axis: usize, shapes: [[usize; 2]; 2]) -> Stored {
        let [a, b] = shapes.map(Shape::from);
        let mut stored = Stored::packed(Place { name: "ab".into(), axis, blocks: 1 }, "a".into(), a);
        stored.append("b".into(), b);
        stored
    }

    #[test]
    fn parts_stand_side_by_side_along_the_axis() {
        let (a, b) = (vec![1.0, 2.0, 3.0, 4.0], vec![5.0, 6.0]);
        for (axis, shapes, shape, whole) in [
            (0, [[2, 2], [1, 2]], [3, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            (1, [[2, 2], [2, 1]], [2, 3], vec![1.0, 2.0, 5.0, 3.0, 4.0, 6.0]),
        ] {
            let stored = stored(axis, shapes);
            assert_eq!(stored.shape().dims(), shape);
            assert_eq!(*stored.join(&[&a, &b]), whole);
            assert_eq!(stored.split(whole), [("a".into(), a.clone()), ("b".into(), b.clone())]);
        }
    }

    #[test]
    fn parts_alternate_in_blocks() {
        let place = Place { name: "ab".into(), axis: 0, blocks: 2 };
        let mut stored = Stored::packed(place, "a".into(), Shape::from([4, 1]));
        stored.append("b".into(), Shape::from([2, 1]));
        let (a, b) = (vec![1.0, 2.0, 3.0, 4.0], vec![5.0, 6.0]);
        let whole = vec![1.0, 2.0, 5.0, 3.0, 4.0, 6.0];
        assert_eq!(stored.shape().dims(), [6, 1]);
        assert_eq!(*stored.join(&[&a, &b]), whole);
        for (part, values) in [&a, &b].into_iter().enumerate() {
            let found: Vec<f32> =
                (0..values.len()).map(|index| whole[stored.position(part, index)]).collect();
            assert_eq!(found, *values);
        }
        assert_eq!(stored.split(whole), [("a".into(), a), ("b".into(), b)]);
    }

    #[test]
    fn a_whole_parameter_is_not_copied() {
        let (stored, values) = (Stored::whole("w", Shape::from([2])), vec![1.0, 2.0]);
        assert!(matches!(stored.join(&[&values]), Cow::Borrowed(_)));
        assert_eq!(stored.split(values.clone()), [("w".to_string(), values)]);
    }
}
