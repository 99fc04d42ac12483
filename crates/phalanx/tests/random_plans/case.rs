//! Random models, fed and run: what comes out, to the bit.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use phalanx::ir::graph::{Graph, ValueId};
use phalanx::ir::{DType, Id, Op};
use phalanx::pipeline::Settings;
use phalanx::{Error, Feed, Goal, Leaves, Optimizer, Plan, Session};
use phalanx_testkit::Tensor;
use phalanx_testkit::generate::{provide_tables, random_graph_of, random_inputs};

/// Extents that most cuts divide, and some that few do.
const EXTENTS: [usize; 9] = [1, 2, 4, 4, 8, 8, 3, 5, 6];

/// Extents with several elements in a leaf of a sum.
const LARGE_EXTENTS: [usize; 5] = [2, 4, 12, 16, 32];

/// Leaves for eight devices along every axis.
const LEAVES: Leaves = Leaves { batch: 8, feature: 8, sequence: 8 };

/// Outputs, gradients and new states by name, as bits.
pub type Bits = BTreeMap<String, Vec<u32>>;

/// A model with its inputs and what one device makes of them.
pub struct Case {
    pub model: Graph,
    goal: Goal,
    inputs: BTreeMap<String, Tensor>,
    /// What one device computes.
    pub expected: Bits,
}

impl Case {
    /// The model of a seed. Every other one returns all it computes, so that nothing of it is fused away; every third one
    /// has one input of floats, so that its batch can be cut.
    pub fn new(seed: u64) -> Case {
        let extents = if seed % 8 == 7 { &LARGE_EXTENTS[..] } else { &EXTENTS };
        let tame = random_graph_of(seed, extents);
        let inputs = random_inputs(&tame, seed);
        let model = rewritten(&tame, Rewrite { all: !seed.is_multiple_of(2), batch: seed.is_multiple_of(3) });
        let trained = depends_on_param(&model);
        let goal = match (trained, model.updates().is_empty()) {
            (false, _) => Goal::Infer,
            (true, true) => Goal::Gradients,
            // Only training sets states.
            (true, false) => Goal::Train(Optimizer::sgd(0.0).keep_gradients(true)),
        };
        let mut case = Case { model, goal, inputs, expected: Bits::new() };
        let session = Session::new(&case.model, &case.settings(Plan::default()));
        case.expected =
            case.run(session.unwrap_or_else(|error| panic!("seed {seed}: {error}\n{}", case.model)));
        case
    }

    pub fn settings(&self, plan: Plan) -> Settings {
        Settings::new(self.goal.clone()).plan(plan).leaves(LEAVES).cores(1).seed(3)
    }

    /// Feeds and runs a session of the model; all outputs, gradients and states.
    pub fn run(&self, mut session: Session) -> Bits {
        for (name, tensor) in &self.inputs {
            let fed = feed_tensor(&mut session, name, tensor);
            let has_port = session.program().ports().iter().any(|port| port.name == *name);
            // What no layer uses has no port.
            assert_eq!(fed.is_ok(), has_port, "{name}: {:?}", fed.err());
        }
        session.run().expect("the run completes");
        let name = |value: ValueId| self.model.values()[value].name.clone();
        let params = self.model.leaves(|op| matches!(op, Op::Param(_))).map(|param| name(param) + ".grad");
        let states = self.model.updates().iter().map(|update| name(update.state));
        let outputs = self.model.outputs().iter().map(|&output| name(output));
        let read = |name: String| {
            let bits = session.read(&name).ok()?.iter().map(|&x| canonical(x)).collect();
            Some((name, bits))
        };
        outputs.chain(params).chain(states).filter_map(read).collect()
    }

    /// How `found` differs from what one device computes.
    fn difference(&self, found: &Bits) -> Option<String> {
        let is_missing = |name: &&String| name.ends_with(".grad") && !found.contains_key(*name);
        if let Some(name) = self.expected.keys().find(is_missing) {
            return Some(format!("{name} is missing"));
        }
        let differs = |&(name, bits): &(&String, &Vec<u32>)| self.expected.get(name) != Some(bits);
        let (name, bits) = found.iter().find(differs)?;
        let floats = |bits: &[u32]| bits.iter().map(|&bits| f32::from_bits(bits)).collect::<Vec<_>>();
        let expected = self.expected.get(name).map(|bits| floats(bits));
        Some(format!("{name} is {:?}\nnot {expected:?}", floats(bits)))
    }

    /// Compiles with `compile` and runs; a panic is an outcome too.
    pub fn outcome(&self, compile: impl FnOnce() -> Result<Session, Error>) -> Outcome {
        let attempt = catch_unwind(AssertUnwindSafe(|| compile().map(|session| self.run(session))));
        match attempt {
            Err(panic) => Outcome::Panicked(message(&*panic)),
            Ok(Err(error)) => Outcome::Refused(Box::new(error)),
            Ok(Ok(found)) => match self.difference(&found) {
                None => Outcome::Same,
                Some(what) => Outcome::Different(what),
            },
        }
    }
}

/// Feeds a tensor to the port of this name, in its type.
pub fn feed_tensor(session: &mut Session, name: &str, tensor: &Tensor) -> Result<(), Error> {
    let port = session.program().ports().iter().find(|port| port.name == name);
    let numbers = tensor.data.iter();
    match port.map(|port| port.ty.dtype) {
        Some(DType::I64) => session.feed(name, Feed::I64(&numbers.map(|&x| x as i64).collect::<Vec<_>>())),
        Some(DType::I32) => session.feed(name, Feed::I32(&numbers.map(|&x| x as i32).collect::<Vec<_>>())),
        Some(DType::Bool) => session.feed(name, Feed::Bool(&numbers.map(|&x| x != 0.0).collect::<Vec<_>>())),
        _ => session.feed(name, Feed::F32(&numbers.map(|&x| x as f32).collect::<Vec<_>>())),
    }
}

/// What came of a model laid out somehow.
pub enum Outcome {
    /// It runs and gives the bits of one device.
    Same,
    /// It runs and gives other bits.
    Different(String),
    /// It does not compile.
    Refused(Box<Error>),
    /// It does neither.
    Panicked(String),
}

/// All numbers that are none count as one.
fn canonical(x: f32) -> u32 {
    if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
}

/// What a panic says.
pub fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default()
}

/// The model's text with the first float leaf as its only float input: more of such models have a batch.
fn with_one_input(text: &str) -> String {
    let mut first = true;
    let line = |line: &str| {
        let is_float = line.contains(" f32[") && (line.contains("= input ") || line.contains("= param "));
        let (true, Some((name, _)), Some(at)) = (is_float, line.split_once(" = "), line.find(" f32[")) else {
            return line.to_string();
        };
        let word = if std::mem::take(&mut first) { "input" } else { "param init=ones" };
        format!("{name} = {word}{}", &line[at..])
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// How a model is rewritten.
#[derive(Clone, Copy)]
struct Rewrite {
    /// Every float it computes is an output.
    all: bool,
    /// It has one input of floats.
    batch: bool,
}

/// The model with dropout that drops, half of its attentions too, and random numbers that differ.
fn rewritten(model: &Graph, Rewrite { all, batch }: Rewrite) -> Graph {
    let loss = model.outputs()[0];
    let is_more = |&value: &ValueId| {
        all && value != loss && model.ty(value).dtype == DType::F32 && !model.op_of(value).is_leaf()
    };
    let more = model.values().ids().filter(is_more).map(|value| format!(", %{}", model.values()[value].name));
    let drawn = |line: &str| match line.contains(" attention ") {
        true => line.replace(" scale=0.5 ", " scale=0.5 rate=0.25 "),
        false => line.replace("dropout rate=0 ", "dropout rate=0.25 ").replace("bernoulli(1)", "uniform"),
    };
    let mut text = model.to_string().lines().map(drawn).collect::<Vec<_>>().join("\n");
    if batch {
        text = with_one_input(&text);
    }
    let end = text.rfind("\n}").expect("a model ends with a brace");
    let text = format!("{}{}{}", &text[..end], more.collect::<String>(), &text[end..]);
    let mut graph = Graph::parse(text, phalanx_ops::operators()).expect("more outputs are legal");
    provide_tables(&mut graph, model);
    graph
}

/// Whether a gradient of the loss reaches a parameter; through truth values and integers none passes.
pub fn depends_on_param(model: &Graph) -> bool {
    let mut depends = vec![false; model.values().len()];
    for (_, layer) in model.layers().iter() {
        let from = |value: &ValueId| depends[value.index()];
        let is = matches!(layer.op, Op::Param(_)) || layer.operands.iter().any(from);
        for &result in &layer.results {
            depends[result.index()] = is && model.ty(result).dtype.is_float();
        }
    }
    depends[model.outputs()[0].index()]
}
