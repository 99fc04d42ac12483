//! What an exchange file becomes.

use phalanx_ir::TensorType;
use phalanx_ir::graph::Graph;
pub use safetensors::Dtype as StoredDtype;

/// A model read from an exchange file.
#[derive(Clone, Debug)]
pub struct ImportedModel {
    /// What the module's class is called.
    pub name: String,
    /// The graph to train: its first output is the scalar loss.
    pub train: Graph,
    /// The graph to evaluate, if one was exported: the same parameters and states, which it only reads. Its first output is
    /// the loss, too.
    pub eval: Option<Graph>,
    /// What is fed before each step, in the order of the file. A graph may use only some of them: see
    /// [`Graph::find`](phalanx_ir::graph::LayerGraph::find).
    pub inputs: Vec<ImportedInput>,
    /// All tensors of the module's `state_dict`, in its order, aliases of tied ones left out.
    pub weights: Vec<ImportedWeight>,
    /// The names of the outputs behind the loss, the same in both graphs' `outputs()`, but only those of `eval` if there is
    /// such a graph.
    pub outputs: Vec<String>,
    /// Layers of the training graph that draw random numbers, in order.
    pub random: Vec<RandomLayer>,
}

/// A tensor fed before each step.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedInput {
    /// Its name in the graphs.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// Whether it is not an argument of the module but computed from arguments by the host: by the exported prologue.
    pub is_computed: bool,
}

/// A tensor of a `state_dict`. Its name in the graphs is its first name in the module.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedWeight {
    /// Its first name in the module, and its name in the graphs.
    pub name: String,
    /// Other names of the same tensor.
    pub aliases: Vec<String>,
    /// What becomes of it.
    pub kind: WeightKind,
    /// Its element type; trained tensors and states are `F32`.
    pub dtype: StoredDtype,
    /// Its extents, those of the graph's parameter or state as well.
    pub shape: Vec<usize>,
    /// Its elements when the module was exported: row-major, little-endian.
    pub bytes: Vec<u8>,
}

impl ImportedWeight {
    /// Its elements, if they are 32-bit floats.
    pub fn floats(&self) -> Option<Vec<f32>> {
        let read = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
        (self.dtype == StoredDtype::F32).then(|| self.bytes.as_chunks::<4>().0.iter().map(read).collect())
    }
}

/// What becomes of a tensor of a `state_dict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightKind {
    /// A parameter of the graph.
    Trained,
    /// A state of the graph, which steps write.
    State,
    /// An integer that each training step raises by one: what it was when exported and the number of steps since.
    Counter,
    /// It stays as it is: frozen, or used by no layer.
    Constant,
}

/// A layer that draws random numbers by its name, the seed, the step and the index of an element.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomLayer {
    /// The layer's name.
    pub name: String,
    /// The name of the node in the exchange file.
    pub node: String,
    /// The share of elements that become zero, of a dropout; else none.
    pub rate: Option<f32>,
    /// The extents of the tensor whose elements are numbered.
    pub shape: Vec<usize>,
    /// For each dimension of the node's result, in order, split as `shape` is: which dimension of `shape` it is. The
    /// identity if the layer numbers elements as PyTorch does.
    pub order: Vec<usize>,
}
