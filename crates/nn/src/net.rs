//! Places in the tree of names, and what all places of a model share: the builder and the first error.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::panic::Location;
use std::rc::Rc;

use phalanx_ir::graph::{Builder, Graph, ValueId};
use phalanx_ir::{DType, Init, Op, Shape, Table, TensorType};

use crate::{NnError, Tensor};

/// The line of a call.
pub(crate) type Line = &'static Location<'static>;

/// What all places and tensors of a model share.
pub(crate) struct Shared {
    /// Taken when the model is complete.
    pub(crate) builder: Option<Builder>,
    error: Option<NnError>,
    training: bool,
    batch: usize,
    /// Names that a line has chosen.
    chosen: BTreeMap<String, Line>,
    frozen: Vec<String>,
    metrics: Vec<(String, ValueId)>,
    outputs: Vec<(String, ValueId)>,
}

impl Shared {
    /// Adds layers, unless an earlier call has failed; the values they give.
    pub(crate) fn add(
        &mut self,
        line: Line,
        add: impl FnOnce(&mut Builder) -> Result<Vec<ValueId>, String>,
    ) -> Vec<ValueId> {
        let Some(builder) = self.builder.as_mut().filter(|_| self.error.is_none()) else { return Vec::new() };
        add(builder).unwrap_or_else(|problem| {
            self.error = Some(NnError::new(line, problem));
            Vec::new()
        })
    }

    /// Keeps an error, if it is the first one.
    pub(crate) fn fail(&mut self, line: Line, problem: impl Into<String>) {
        if self.builder.is_some() {
            self.error.get_or_insert_with(|| NnError::new(line, problem));
        }
    }

    /// Notes that a line has chosen a name; another line that chooses the same is an error.
    pub(crate) fn choose(&mut self, line: Line, name: &str) {
        if let Some(other) = self.chosen.insert(name.to_string(), line) {
            let problem = format!(
                "`{name}` is made a second time, the first time at {}:{}: use another place, or pass on what was made there",
                other.file(),
                other.line()
            );
            self.fail(line, problem);
        }
    }
}

/// A place in a model: a path, under which parameters and layers are named.
///
/// A place is cheap to clone. What [`Net::init`] and [`Net::frozen`] say holds for the places below, too.
#[derive(Clone)]
pub struct Net {
    pub(crate) shared: Rc<RefCell<Shared>>,
    path: Rc<str>,
    init: Option<Init>,
    frozen: bool,
}

impl Net {
    fn new(name: &str, batch: usize, training: bool) -> Net {
        let shared = Shared {
            builder: Some(Builder::new(name)),
            error: None,
            training,
            batch,
            chosen: BTreeMap::new(),
            frozen: Vec::new(),
            metrics: Vec::new(),
            outputs: Vec::new(),
        };
        Net { shared: Rc::new(RefCell::new(shared)), path: "".into(), init: None, frozen: false }
    }

    /// The place `name` below this one; the number of a repeated block is a name, too.
    pub fn at(&self, name: impl Display) -> Net {
        Net { path: self.name_of(&name.to_string()).into(), ..self.clone() }
    }

    /// The same place, where weights of linear layers and tables start like this, and biases at zero.
    pub fn init(&self, init: Init) -> Net {
        Net { init: Some(init), ..self.clone() }
    }

    /// The same place, where parameters stay as they start: they get no gradient and no optimizer state.
    pub fn frozen(&self) -> Net {
        Net { frozen: true, ..self.clone() }
    }

    /// The path, with dots.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether the graph is for training: with dropout, and with statistics of the batch.
    pub fn training(&self) -> bool {
        self.shared.borrow().training
    }

    /// Samples in a step.
    pub fn batch(&self) -> usize {
        self.shared.borrow().batch
    }

    /// How weights start here; `usual` if the place says nothing.
    pub(crate) fn weight_init(&self, usual: Init) -> Init {
        self.init.unwrap_or(usual)
    }

    /// How biases start here; `usual` if the place says nothing.
    pub(crate) fn bias_init(&self, usual: Init) -> Init {
        if self.init.is_some() { Init::Zeros } else { usual }
    }

    /// The name of something at this place.
    fn name_of(&self, name: &str) -> String {
        match (&*self.path, name) {
            ("", name) => name.to_string(),
            (path, "") => path.to_string(),
            (path, name) => format!("{path}.{name}"),
        }
    }

    /// A tensor that is fed before each step, of any shape; the batch is usually its first dimension.
    #[track_caller]
    pub fn input(&self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Tensor {
        self.leaf(name, Op::Input, TensorType::new(dtype, shape))
    }

    /// An input of ids, i64 `[batch, time]`.
    #[track_caller]
    pub fn tokens(&self, name: &str, time: usize) -> Tensor {
        self.input(name, DType::I64, [self.batch(), time])
    }

    /// A parameter: f32 numbers that are trained, unless the place is frozen.
    #[track_caller]
    pub fn param(&self, name: &str, shape: impl Into<Shape>, init: Init) -> Tensor {
        let param = self.leaf(name, Op::Param(init), TensorType::f32(shape));
        if self.frozen {
            self.shared.borrow_mut().frozen.push(self.name_of(name));
        }
        param
    }

    /// A tensor with the elements of a table, which nothing changes.
    #[track_caller]
    pub fn table(&self, name: &str, shape: impl Into<Shape>, table: Table) -> Tensor {
        let ty = TensorType::new(table.dtype(), shape);
        self.leaf(name, Op::Table(table), ty)
    }

    #[track_caller]
    fn leaf(&self, name: &str, op: Op, ty: TensorType) -> Tensor {
        let (line, name) = (Location::caller(), self.name_of(name));
        let mut shared = self.shared.borrow_mut();
        shared.choose(line, &name);
        let add = |builder: &mut Builder| match builder.leaf(&name, op, ty) {
            Ok(value) => Ok(vec![value]),
            Err(error) => Err(error.to_string()),
        };
        let id = shared.add(line, add).first().copied();
        Tensor::new(&self.shared, &self.path, id)
    }

    /// Any operator with one result, as a layer called by this place.
    #[track_caller]
    pub fn apply(&self, op: impl Into<Op>, operands: &[&Tensor]) -> Tensor {
        let op = op.into();
        let name = self.layer_name(&op);
        self.shared.borrow_mut().choose(Location::caller(), &name);
        Tensor::layer(&self.shared, &self.path, &name, op, operands, 1).swap_remove(0)
    }

    /// Any operator with this many results.
    #[track_caller]
    pub fn apply_many(&self, op: impl Into<Op>, operands: &[&Tensor], results: usize) -> Vec<Tensor> {
        let op = op.into();
        let name = self.layer_name(&op);
        self.shared.borrow_mut().choose(Location::caller(), &name);
        Tensor::layer(&self.shared, &self.path, &name, op, operands, results)
    }

    /// The path, or what the operator is called where there is none.
    fn layer_name(&self, op: &Op) -> String {
        if self.path.is_empty() { op.to_text().0.to_string() } else { self.path.to_string() }
    }

    /// A number of every step that can be read by name, such as an accuracy; evaluations give its mean over batches.
    #[track_caller]
    pub fn metric(&self, name: &str, value: &Tensor) {
        let line = Location::caller();
        if value.rank() > 0 && value.id.is_some() {
            let problem =
                format!("metric `{name}` is {}, but it must be one number: use mean_all", value.describe());
            self.shared.borrow_mut().fail(line, problem);
        }
        if let Some(id) = self.readable(line, name, value) {
            self.shared.borrow_mut().metrics.push((name.to_string(), id));
        }
    }

    /// A tensor of every step that can be read by name.
    #[track_caller]
    pub fn output(&self, name: &str, value: &Tensor) {
        if let Some(id) = self.readable(Location::caller(), name, value) {
            self.shared.borrow_mut().outputs.push((name.to_string(), id));
        }
    }

    /// A value that can be an output: not a leaf. Its name must be new among outputs.
    #[track_caller]
    fn readable(&self, line: Line, name: &str, value: &Tensor) -> Option<ValueId> {
        let known = |all: &[(String, ValueId)]| all.iter().any(|(known, _)| known == name);
        let is_taken = {
            let shared = self.shared.borrow();
            name == LOSS || known(&shared.metrics) || known(&shared.outputs)
        };
        if is_taken {
            let problem = format!("an output is called `{name}` already: use another name");
            self.shared.borrow_mut().fail(line, problem);
        }
        let value = if value.is_leaf() { value.identity() } else { value.clone() };
        value.id
    }
}

/// What the first output of a training graph is called in reports.
const LOSS: &str = "loss";

/// A graph that a function has built.
#[derive(Clone, Debug)]
pub struct BuiltModel {
    /// The graph. Its first outputs are what the function returned: the loss, if it is for training.
    pub graph: Graph,
    /// What [`Net::metric`] made readable: the name, and that of the value in the graph.
    pub metrics: Vec<(String, String)>,
    /// What [`Net::output`] made readable, likewise.
    pub outputs: Vec<(String, String)>,
    /// The parameters of frozen places.
    pub frozen: Vec<String>,
}

impl BuiltModel {
    /// A model that exists as a graph: every output but the first is readable under its own name.
    pub fn of_graph(graph: Graph) -> BuiltModel {
        let more = graph.outputs().iter().skip(1).map(|&output| graph.values()[output].name.clone());
        let outputs = more.map(|name| (name.clone(), name)).collect();
        BuiltModel { graph, metrics: Vec::new(), outputs, frozen: Vec::new() }
    }
}

/// Builds the training graph of a model for `batch` samples at once: the function returns the loss, a scalar.
#[track_caller]
pub fn build_training(
    name: &str,
    batch: usize,
    model: impl FnOnce(&Net) -> Tensor,
) -> Result<BuiltModel, NnError> {
    let line = Location::caller();
    let net = Net::new(name, batch, true);
    let loss = model(&net);
    if loss.id.is_some() && (loss.rank() > 0 || loss.dtype() != DType::F32) {
        let problem = format!("the loss is {}, but it must be one f32 number: use mean_all", loss.describe());
        net.shared.borrow_mut().fail(loss.line.unwrap_or(line), problem);
    }
    finish(net, line, vec![loss])
}

/// Builds a graph without training, such as one for evaluation: the function returns its first outputs.
#[track_caller]
pub fn build_evaluation<T: Into<Vec<Tensor>>>(
    name: &str,
    batch: usize,
    model: impl FnOnce(&Net) -> T,
) -> Result<BuiltModel, NnError> {
    let net = Net::new(name, batch, false);
    let outputs = model(&net).into();
    finish(net, Location::caller(), outputs)
}

impl From<Tensor> for Vec<Tensor> {
    fn from(tensor: Tensor) -> Self {
        vec![tensor]
    }
}

fn finish(net: Net, line: Line, outputs: Vec<Tensor>) -> Result<BuiltModel, NnError> {
    if let Some(error) = net.shared.borrow_mut().error.take() {
        return Err(error);
    }
    if let Some(stranger) = outputs.iter().find(|output| !Rc::ptr_eq(&output.shared, &net.shared)) {
        let problem = "the model returns a tensor of another model: return one that was made by its `net`";
        return Err(NnError::new(stranger.line.unwrap_or(line), problem));
    }
    let outputs: Vec<Tensor> =
        outputs.into_iter().map(|output| if output.is_leaf() { output.identity() } else { output }).collect();
    let mut shared = net.shared.borrow_mut();
    let (metrics, more) = (std::mem::take(&mut shared.metrics), std::mem::take(&mut shared.outputs));
    let mut ids: Vec<ValueId> = Vec::new();
    let readable = metrics.iter().chain(&more).map(|(_, id)| *id);
    for id in outputs.iter().filter_map(|output| output.id).chain(readable) {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    let Some(builder) = shared.builder.take() else {
        return Err(NnError::new(line, "the model is complete already"));
    };
    let graph = builder.finish(ids);
    let named = |all: Vec<(String, ValueId)>| {
        all.into_iter().map(|(name, id)| (name, graph.values()[id].name.clone())).collect()
    };
    let (metrics, outputs, frozen) = (named(metrics), named(more), std::mem::take(&mut shared.frozen));
    match graph.verify() {
        Ok(()) => Ok(BuiltModel { graph, metrics, outputs, frozen }),
        Err(errors) => Err(NnError::new(line, errors.first().map(ToString::to_string).unwrap_or_default())),
    }
}
