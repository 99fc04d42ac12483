//! Tables, states, random numbers and batch norm: the same bits under every plan, kept by checkpoints, and PyTorch's running
//! statistics.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use phalanx::ckpt::{Checkpoints, Disk, Writer, write};
use phalanx::ir::graph::{Builder, Graph, ValueId};
use phalanx::ir::{Binary, DType, Init, Reduce, Shape, Table, TensorType, Unary};
use phalanx::ops::{
    BatchNormOptions, BinaryOp, Distribution, Embedding, Layers, Random, ReduceOp, operators,
};
use phalanx::pipeline::{Settings, lay_out};
use phalanx::{Feed, Goal, Optimizer, Plan, PortKind, Session, Trainer};
use phalanx_plan::{Mesh, Pipeline, PlanRule, preset};

use crate::ckpt::{Dir, run_state};

const BATCH: usize = 16;

/// Two linear layers with a batch norm between.
fn model(options: BatchNormOptions) -> Graph {
    let mut net = Builder::new("bn");
    let x = net.input("x", TensorType::f32([BATCH, 5, 6])).expect("the layer fits");
    let y = net.input("y", TensorType::f32([BATCH, 5, 3])).expect("the layer fits");
    let w = net.param("fc1.weight", [8, 6], Init::Normal(0.5)).expect("the layer fits");
    let [gamma, beta] = [("bn.weight", Init::Ones), ("bn.bias", Init::Zeros)]
        .map(|(name, init)| net.param(name, [8], init).expect("the layer fits"));
    let w2 = net.param("fc2.weight", [3, 8], Init::Normal(0.5)).expect("the layer fits");
    let h = net.linear("fc1", x, w, None).expect("the layer fits");
    let h = net.batch_norm("bn", h, Some([gamma, beta]), options).expect("the layer fits");
    let h = net.unary("act", Unary::Act(phalanx::ir::Activation::Relu), h).expect("the layer fits");
    let h = net.linear("fc2", h, w2, None).expect("the layer fits");
    let loss = net.mse("loss", h, y).expect("the layer fits");
    net.finish([loss])
}

fn numbers(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|i| (((i * 37 + salt * 101 + 13) % 997) as f32 / 997.0 - 0.4) * 3.0).collect()
}

fn settings(plan: &Plan) -> Settings {
    Settings::new(Goal::Train(Optimizer::adamw(0.01))).cores(1).seed(5).plan(plan.clone())
}

fn start(model: &Graph, plan: &Plan) -> Trainer {
    Trainer::with_settings(model, &settings(plan)).unwrap_or_else(|error| panic!("{}: {error}", plan.name))
}

/// Trains with the data of steps `steps`, two in flight.
fn train(trainer: &mut Trainer, model: &Graph, steps: std::ops::Range<usize>) -> Vec<u32> {
    let mut runs = Vec::new();
    let mut losses = Vec::new();
    for step in steps {
        for input in model.leaves(|op| matches!(op, phalanx::ir::Op::Input)) {
            let name = &model.values()[input].name;
            let values = numbers(model.ty(input).shape.elements(), 2 * step + name.len());
            trainer.session_mut().feed(name, &values).expect("the step runs");
        }
        runs.push(trainer.launch(0.05).expect("the step runs"));
        if let [.., before, _] = runs[..] {
            losses.push(trainer.wait(before).expect("the step runs").loss.to_bits());
        }
    }
    let last = *runs.last().expect("it is there");
    losses.push(trainer.wait(last).expect("the step runs").loss.to_bits());
    losses
}

/// Losses and the hash of all weights after five steps.
fn outcome(model: &Graph, plan: &Plan) -> (Vec<u32>, u128) {
    let mut trainer = start(model, plan);
    let losses = train(&mut trainer, model, 0..5);
    (losses, trainer.session().weights_hash().expect("the step runs"))
}

fn pipeline(microbatches: usize) -> Plan {
    let stages = [vec!["fc1*", "bn*"], vec!["act*", "fc2*", "loss*"]];
    let stages = stages.map(|stage| stage.into_iter().map(String::from).collect()).to_vec();
    let mesh = Mesh { axes: vec![("pp".into(), 2)] };
    let pipeline = Some(Pipeline { axis: "pp".into(), stages });
    Plan { name: format!("pp2 in {microbatches}"), mesh, pipeline, microbatches, ..Plan::default() }
}

/// Channels of the batch norm in two blocks.
fn channels() -> Plan {
    let rule = |pattern: &str, dim| PlanRule {
        pattern: pattern.into(),
        shard: [(dim, vec!["tp".to_string()])].into(),
        ..PlanRule::default()
    };
    let rules = vec![rule("fc1.weight", 0), rule("bn.weight", 0), rule("bn.bias", 0), rule("fc2.weight", 1)];
    Plan { name: "tp2".into(), mesh: Mesh { axes: vec![("tp".into(), 2)] }, rules, ..Plan::default() }
}

fn plans(model: &Graph) -> Vec<Plan> {
    let presets = [("dp", 2), ("dp", 4), ("fsdp", 2), ("zero1", 2)];
    let mut plans: Vec<Plan> =
        presets.map(|(name, size)| preset(name, size, model).expect("the plan exists")).to_vec();
    let both = Plan { name: "dp2 in 2".into(), microbatches: 2, ..plans[0].clone() };
    plans.push(both);
    plans.extend([2, 4].map(|microbatches| Plan {
        name: format!("{microbatches} microbatches"),
        microbatches,
        ..Plan::default()
    }));
    plans
}

#[test]
fn batch_norm_has_the_same_bits_under_every_plan() {
    for momentum in [Some(0.1), None] {
        let model = model(BatchNormOptions { momentum, ..BatchNormOptions::default() });
        assert_eq!(model.verify(), Ok(()));
        let one = outcome(&model, &Plan::default());
        assert_ne!(one.0[0], one.0[4], "something is trained");
        let more = [pipeline(1), pipeline(2), channels()];
        for plan in plans(&model).into_iter().chain(more) {
            assert_eq!(outcome(&model, &plan), one, "{} with momentum {momentum:?}", plan.name);
        }
    }
}

#[test]
fn ghost_batches_have_the_same_bits_under_every_plan() {
    let model = model(BatchNormOptions { groups: 4, ..BatchNormOptions::default() });
    let one = outcome(&model, &Plan::default());
    // Among them four microbatches, each of which is one ghost batch.
    for plan in plans(&model) {
        assert_eq!(outcome(&model, &plan), one, "{}", plan.name);
    }
}

#[test]
fn a_checkpoint_keeps_states_for_any_plan() {
    let model = model(BatchNormOptions::default());
    let one = outcome(&model, &Plan::default());
    let dp2 = preset("dp", 2, &model).unwrap();
    for (number, (from, to)) in
        [(&dp2, &Plan::default()), (&Plan::default(), &channels()), (&channels(), &dp2)]
            .into_iter()
            .enumerate()
    {
        let dir = Dir::new(&format!("states-{number}"));
        let mut first = start(&model, from);
        let mut losses = train(&mut first, &model, 0..3);
        let writer = Writer::new(Arc::new(Disk), &dir.0, 1);
        writer.prepare().unwrap();
        write(&writer, first.session_mut(), run_state(3)).unwrap();
        let checkpoint = Checkpoints::open(&dir.0).latest().unwrap().expect("it was written");
        assert!(checkpoint.tensor("bn.running_var").is_ok());
        let mut second = start(&model, to);
        checkpoint.restore(second.session_mut()).unwrap();
        second.continue_after(3);
        losses.extend(train(&mut second, &model, 3..5));
        assert_eq!((losses, second.session().weights_hash().unwrap()), one, "{} to {}", from.name, to.name);
    }
}

#[test]
fn evaluation_reads_states_and_leaves_them() {
    let training = model(BatchNormOptions::default());
    let evaluation = model(BatchNormOptions { training: false, ..BatchNormOptions::default() });
    let mut trainer = start(&training, &Plan::default());
    train(&mut trainer, &training, 0..3);
    let weights = trainer.session().weights().unwrap();
    assert!(weights["bn.running_mean"].iter().any(|&x| x != 0.0));
    let (x, y) = (numbers(BATCH * 30, 1), numbers(BATCH * 15, 2));
    for (graph, uses_states) in [(&training, false), (&evaluation, true)] {
        let mut session = Session::new(graph, &Settings::new(Goal::Infer).cores(1)).unwrap();
        session.copy_weights(trainer.session_mut()).unwrap();
        session.feed("x", &x).unwrap();
        session.feed("y", &y).unwrap();
        let mut run = || {
            session.run().unwrap();
            session.read("loss").unwrap()[0].to_bits()
        };
        let (first, second) = (run(), run());
        assert_eq!(first, second);
        assert_eq!(session.weights().unwrap(), weights, "nothing is set");
        session.feed("bn.running_mean", &vec![5.0; 8]).unwrap();
        session.run().unwrap();
        assert_eq!(session.read("loss").unwrap()[0].to_bits() != first, uses_states);
    }
}

/// Batch norms trained by PyTorch: x of every step, and the running statistics and result after the last.
#[derive(serde::Deserialize)]
struct TorchCase {
    momentum: Option<f32>,
    eps: f32,
    shape: Vec<usize>,
    steps: Vec<Vec<f32>>,
    running_mean: Vec<f32>,
    running_var: Vec<f32>,
    output: Vec<f32>,
    evaluated: Vec<f32>,
}

fn assert_near(what: &str, found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len());
    let scale = wanted.iter().fold(1.0f32, |scale, x| scale.max(x.abs()));
    for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert!((found - wanted).abs() <= 1e-5 * scale, "{what}[{at}] is {found}, torch has {wanted}");
    }
}

fn norm_alone(case: &TorchCase, training: bool) -> Graph {
    let mut net = Builder::new("alone");
    let shape = Shape::new(case.shape.clone());
    let x = net.input("x", TensorType::f32(shape.clone())).expect("the layer fits");
    let w = net.param("w", [shape.last()], Init::Ones).expect("the layer fits");
    let options = BatchNormOptions { eps: case.eps, momentum: case.momentum, training, ..Default::default() };
    let h = net.binary("h", Binary::Mul, x, w).expect("the layer fits");
    let y = net.batch_norm("bn", h, None, options).expect("the layer fits");
    let axes = (0..shape.rank()).collect();
    let loss = net
        .add_one("loss", ReduceOp { kind: Reduce::Mean, axes, keep: false }, &[y])
        .expect("the layer fits");
    net.finish([loss, y])
}

#[test]
fn running_statistics_are_those_of_torch() {
    let mut text = String::new();
    let bytes = &include_bytes!("golden/batch_norm.json.gz")[..];
    flate2::read::GzDecoder::new(bytes).read_to_string(&mut text).unwrap();
    let cases: Vec<TorchCase> = serde_json::from_str(&text).unwrap();
    assert!(cases.len() >= 3);
    for case in &cases {
        let (model, evaluation) = (norm_alone(case, true), norm_alone(case, false));
        let mut trainer = start(&model, &Plan::default());
        for x in &case.steps {
            // At rate zero the weights stay ones.
            trainer.step(&[("x", Feed::F32(x))], 0.0).unwrap();
        }
        let weights = trainer.session().weights().unwrap();
        assert_near("running_mean", &weights["bn.running_mean"], &case.running_mean);
        assert_near("running_var", &weights["bn.running_var"], &case.running_var);
        assert_near("output", &trainer.session().read("bn").unwrap(), &case.output);
        let mut session = Session::new(&evaluation, &Settings::new(Goal::Infer).cores(1)).unwrap();
        session.copy_weights(trainer.session_mut()).unwrap();
        session.feed("x", case.steps.last().unwrap()).unwrap();
        session.run().unwrap();
        assert_near("evaluated", &session.read("bn").unwrap(), &case.evaluated);
    }
}

/// x · w · table, summed; the table along batch and features.
fn with_table(shape: [usize; 2], table: Table) -> Graph {
    let mut net = Builder::new("table");
    let x = net.input("x", TensorType::f32([BATCH, 6])).expect("the layer fits");
    let w = net.param("w", [6], Init::Normal(1.0)).expect("the layer fits");
    let t = net.table("t", shape, table).expect("the layer fits");
    let h = net.binary("h", Binary::Mul, x, w).expect("the layer fits");
    let h = net.binary("k", Binary::Mul, h, t).expect("the layer fits");
    let sum = ReduceOp { kind: Reduce::Sum, axes: vec![0, 1], keep: false };
    let loss = net.add_one("loss", sum, &[h]).expect("the layer fits");
    net.finish([loss])
}

#[test]
fn tables_have_the_same_bits_under_every_plan() {
    for rows in [1, BATCH] {
        let model = with_table([rows, 6], Table::f32s(&numbers(rows * 6, 9)));
        let one = outcome(&model, &Plan::default());
        let trainer = start(&model, &Plan::default());
        assert!(trainer.session().names(PortKind::Param).eq(["w"]), "a table is no weight");
        assert!(trainer.session().names(PortKind::Table).eq(["t"]));
        for plan in plans(&model) {
            assert_eq!(outcome(&model, &plan), one, "{} with {rows} rows", plan.name);
        }
    }
}

#[test]
fn a_table_is_cut_like_its_uses_and_takes_memory_as_a_parameter_does() {
    let model = with_table([BATCH, 6], Table::f32s(&numbers(BATCH * 6, 9)));
    let bytes = |plan: &Plan| {
        let layout = lay_out(&model, &settings(plan), |_, _| ()).unwrap();
        layout.devices().iter().map(|device| device.param_bytes).collect::<Vec<_>>()
    };
    assert_eq!(bytes(&Plan::default()), [4 * 6 + 4 * 6 * BATCH as u64]);
    assert_eq!(bytes(&preset("dp", 2, &model).unwrap()), [4 * 6 + 2 * 6 * BATCH as u64; 2]);
}

#[test]
fn a_table_without_its_bytes_is_named_when_a_session_starts() {
    let table = Table::f32s(&numbers(BATCH * 6, 9));
    let model = with_table([BATCH, 6], table.clone());
    let mut read = Graph::parse(model.to_string(), operators()).unwrap();
    assert_eq!(read, model, "the text has the hash");
    let error = Session::new(&read, &settings(&Plan::default())).err().expect("it has no bytes").to_string();
    assert!(error.contains("table `t`, f32[16, 6], has no elements"), "{error}");
    assert!(error.contains(&format!("{:032x}", table.hash())), "{error}");
    assert_eq!(read.provide_table(vec![1, 2, 3]), 0);
    assert_eq!(read.provide_table(Arc::clone(table.bytes().unwrap())), 1);
    assert_eq!(outcome(&read, &Plan::default()), outcome(&model, &Plan::default()));
}

#[test]
fn indices_in_tables_are_checked() {
    let lookup = |ids: &[i64]| {
        let mut net = Builder::new("lookup");
        let ids = net.table("ids", [ids.len()], Table::i64s(ids)).unwrap();
        let w = net.param("w", [4, 2], Init::Normal(1.0)).unwrap();
        let rows = net.add_one("rows", Embedding { bag: false, padding: None }, &[ids, w]).unwrap();
        let sum = ReduceOp { kind: Reduce::Sum, axes: vec![0, 1], keep: false };
        let loss = net.add_one("loss", sum, &[rows]).unwrap();
        let model = net.finish([loss]);
        let mut session = Session::new(&model, &Settings::new(Goal::Gradients).cores(1))?;
        session.run()?;
        Ok::<Vec<f32>, phalanx::Error>(session.read("w.grad")?.into_owned())
    };
    assert_eq!(lookup(&[3, 0, 3]).unwrap(), [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0]);
    let error = lookup(&[3, 4]).unwrap_err().to_string();
    assert_eq!(error, "`ids` holds 4 at position 1; layer `rows` takes 0..4");
}

/// A model whose rows are scaled by random numbers, directly and through a function.
fn with_random() -> Graph {
    let mut net = Builder::new("random");
    let x = net.input("x", TensorType::f32([BATCH, 3, 6])).expect("the layer fits");
    let w = net.param("w", [6], Init::Normal(1.0)).expect("the layer fits");
    let mut h = net.binary("h", Binary::Mul, x, w).expect("the layer fits");
    let drawn = |net: &mut Builder, name: &str, kind, shape: &[usize]| -> ValueId {
        net.add_one(name, Random { kind, shape: Shape::new(shape) }, &[]).expect("the layer fits")
    };
    let path = drawn(&mut net, "path", Distribution::Bernoulli(0.7), &[BATCH, 1, 1]);
    let path = net.unary("path.scaled", Unary::MulScalar(1.0 / 0.7), path).expect("the layer fits");
    let noise = drawn(&mut net, "noise", Distribution::Normal, &[BATCH, 3, 6]);
    let same = drawn(&mut net, "same", Distribution::Uniform, &[3, 6]);
    for (name, kind, other) in [("a", Binary::Mul, path), ("b", Binary::Add, noise), ("c", Binary::Mul, same)]
    {
        h = net.add_one(name, BinaryOp(kind), &[h, other]).expect("the layer fits");
    }
    let h = net.unary("square", Unary::Square, h).expect("the layer fits");
    // Features apart, so that they may be cut.
    let sum = |axes| ReduceOp { kind: Reduce::Sum, axes, keep: false };
    let rows = net.add_one("rows", sum(vec![2]), &[h]).expect("the layer fits");
    let loss = net.add_one("loss", sum(vec![0, 1]), &[rows]).expect("the layer fits");
    net.finish([loss, noise, path, same])
}

#[test]
fn random_numbers_have_the_same_bits_under_every_plan() {
    let model = with_random();
    let one = outcome(&model, &Plan::default());
    let mut plans = plans(&model);
    let rule =
        PlanRule { pattern: "x".into(), shard: [(2, vec!["tp".into()])].into(), ..PlanRule::default() };
    let mesh = Mesh { axes: vec![("tp".into(), 2)] };
    plans.push(Plan { name: "features".into(), mesh, rules: vec![rule], ..Plan::default() });
    for plan in plans {
        assert_eq!(outcome(&model, &plan), one, "{}", plan.name);
    }
}

#[test]
fn random_numbers_depend_on_seed_name_and_step_and_have_their_moments() {
    let count = 4096;
    let mut net = Builder::new("draws");
    let w = net.param("w", [1], Init::Ones).unwrap();
    let kinds = [("n", Distribution::Normal), ("m", Distribution::Normal), ("u", Distribution::Uniform)];
    let mut all: Vec<ValueId> = Vec::new();
    for (name, kind) in kinds.into_iter().chain([("b", Distribution::Bernoulli(0.25))]) {
        all.push(net.add_one(name, Random { kind, shape: Shape::from([count]) }, &[]).unwrap());
    }
    let sum = ReduceOp { kind: Reduce::Sum, axes: vec![0], keep: false };
    let loss = net.add_one("loss", sum, &[w]).unwrap();
    all.insert(0, loss);
    let model = net.finish(all);
    let draws = |seed: u64, steps: usize| -> BTreeMap<&str, Vec<f32>> {
        let mut trainer = Trainer::with_settings(&model, &settings(&Plan::default()).seed(seed)).unwrap();
        (0..steps).for_each(|_| _ = trainer.step(&[], 0.0).unwrap());
        ["n", "m", "u", "b"].map(|name| (name, trainer.session().read(name).unwrap().into_owned())).into()
    };
    let one = draws(1, 1);
    assert_eq!(one, draws(1, 1));
    assert!(one["n"] != one["m"] && one["n"] != draws(2, 1)["n"] && one["n"] != draws(1, 2)["n"]);
    let mean = |values: &[f32]| values.iter().map(|&x| f64::from(x)).sum::<f64>() / count as f64;
    // Five standard errors of a mean of 4096 numbers with variance at most 1.
    for (name, wanted) in [("n", 0.0), ("u", 0.5), ("b", 0.25)] {
        assert!((mean(&one[name]) - wanted).abs() < 5.0 / 64.0, "{name}");
    }
    assert!(one["b"].iter().all(|&x| x == 0.0 || x == 1.0));
    assert!(one["u"].iter().all(|x| (0.0..1.0).contains(x)));
    assert_eq!(model.ty(model.find("b").unwrap()).dtype, DType::F32);
}

/// A state with a row for each sample, as a recurrent model carries it from step to step.
#[test]
fn a_state_along_the_batch_is_cut_with_it() {
    let mut net = Builder::new("carried");
    let x = net.input("x", TensorType::f32([BATCH, 6])).unwrap();
    let w = net.param("w", [6, 6], Init::Normal(0.3)).unwrap();
    let before = net.state("hidden", [BATCH, 6], Init::Normal(1.0)).unwrap();
    let h = net.linear("h", x, w, None).unwrap();
    let h = net.binary("sum", Binary::Add, h, before).unwrap();
    let after = net.unary("after", Unary::Act(phalanx::ir::Activation::Tanh), h).unwrap();
    net.update(before, after).unwrap();
    let sum = ReduceOp { kind: Reduce::Sum, axes: vec![0, 1], keep: false };
    let loss = net.add_one("loss", sum, &[after]).unwrap();
    let model = net.finish([loss]);
    let one = outcome(&model, &Plan::default());
    for plan in plans(&model) {
        assert_eq!(outcome(&model, &plan), one, "{}", plan.name);
    }
}
