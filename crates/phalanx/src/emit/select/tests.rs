use std::collections::BTreeSet;

use phalanx_ir::graph::{Builder, Graph};
use phalanx_ir::tasks::Buffer;
use phalanx_ir::{Activation, Id, Init, Op, Reduce, TensorType, Unary};
use phalanx_ops::{Layers, Linear, ReduceOp};
use phalanx_program::RECEIVE;

use super::*;
use crate::pipeline::{Settings, lay_out};
use crate::{Goal, Session};

/// A graph of one task for each operator, with every flag in both states.
fn operators() -> TaskGraph {
    let text = include_str!("../../../../../filetests/tasks/operators.ir");
    let graph: Vec<_> = text.lines().filter(|line| !line.starts_with(';')).collect();
    graph.join("\n").parse().expect("the file test is a graph")
}

/// `graph` with only task `id`, which has as many operands as its kernel takes, of a shape that suits its operator.
fn alone(graph: &TaskGraph, id: TaskId) -> TaskGraph {
    let (mut graph, mut task) = (graph.clone(), graph.tasks[id].clone());
    let ty = match task.op.name() {
        "linear_grad_weight" | "transpose" => TensorType::f32([8, 8]),
        name if name.starts_with("grouped_linear") => TensorType::f32([8, 8, 8]),
        _ => TensorType::f32([8, 8, 8, 8]),
    };
    let buffer = graph.buffers.iter().next().expect("the graph has buffers").1.clone();
    let one = graph.buffers.push(Buffer { ty, ..buffer });
    if let TaskOp::Move { .. } | TaskOp::Send { .. } | TaskOp::Receive { .. } | TaskOp::Chain { .. } = task.op
    {
        (task.reads, task.writes) = (vec![one; task.reads.len()], vec![one; task.writes.len()]);
    } else {
        // As many as any kernel looks at; then those that it takes.
        (task.reads, task.writes) = (vec![one; 7], vec![one; 4]);
        let kernel = table::for_task(task.op.name()).expect("the file names kernels that exist");
        let words = (kernel.task)(&TaskView::new(&graph, &task)).expect("the file has its attributes");
        let names = (kernel.arguments)(&words);
        (task.reads, task.writes) = (vec![one; names.reads.len()], vec![one; names.writes.len()]);
    }
    graph.tasks = [task].into_iter().collect();
    graph
}

#[test]
fn every_operator_has_a_kernel_and_every_kernel_an_operator() {
    let (graph, mut met) = (operators(), BTreeSet::new());
    for id in graph.tasks.ids() {
        let graph = alone(&graph, id);
        let choice = select(&graph, TaskId::from_index(0));
        let choice = choice
            .unwrap_or_else(|error| panic!("{}: {error}", graph.tasks[TaskId::from_index(0)].op.name()));
        met.insert(choice.kernel);
    }
    met.remove(RECEIVE);
    let all: BTreeSet<_> = table::table().iter().map(|kernel| kernel.name).collect();
    assert_eq!(met, all);
}

#[test]
fn a_task_that_no_kernel_takes_is_told() {
    let graph = operators();
    let told = |op: &str, change: &dyn Fn(&mut Task)| {
        let id = graph.tasks.iter().find(|(_, task)| task.op.name() == op).expect("it is there").0;
        let mut graph = alone(&graph, id);
        change(&mut graph.tasks[TaskId::from_index(0)]);
        select(&graph, TaskId::from_index(0)).err().expect("it does not fit").to_string()
    };
    assert_eq!(
        told("softmax", &|task| task.op = TaskOp::call("zero", Default::default())),
        "layer `y`: no kernel executes `zero`: there is no such kernel"
    );
    assert_eq!(
        told("softmax", &|task| task.op = TaskOp::call("softmax", Default::default())),
        "layer `y`: no kernel executes `softmax`: attribute `axis=…` is missing"
    );
    assert_eq!(
        told("softmax", &|task| task.op = TaskOp::call("matmul", Default::default())),
        "layer `y`: no kernel executes `matmul`: it executes matrix products and linear layers"
    );
    assert_eq!(
        told("linear", &|task| task.reads.clear()),
        "layer `y`: no kernel executes `linear`: the task reads 0, but the kernel needs at least 1"
    );
    assert_eq!(
        told("linear", &|task| task.reads.push(task.reads[0])),
        "layer `y`: no kernel executes `linear`: it reads `a`, `b`, but its task has 3 buffers"
    );
    assert_eq!(
        told("fill", &|task| task.reads.push(task.writes[0])),
        "layer `zero`: no kernel executes `fill`: it reads nothing, but its task has 1 buffers"
    );
}

/// The sum of squares of a linear layer whose weight is stored one way or the other.
fn model(transposed: bool) -> Graph {
    let mut model = Builder::new("line");
    let x = model.input("x", TensorType::f32([6, 3])).expect("it has a size");
    let shape = if transposed { [3, 5] } else { [5, 3] };
    let w = model.param("w", shape, Init::Zeros).expect("it has a size");
    let linear = Op::from(Linear { transposed, activation: Activation::None });
    let y = model.add_one("y", linear, &[x, w]).expect("sizes agree");
    let squares = model.unary("squares", Unary::Square, y).expect("it takes any size");
    let sum = Op::from(ReduceOp { kind: Reduce::Sum, axes: vec![0, 1], keep: false });
    let loss = model.add_one("loss", sum, &[squares]).expect("it has two axes");
    model.finish([loss])
}

/// The gradient of the weight, `[out, in]`, and whether its task has its buffers in another order than its kernel.
fn gradient(transposed: bool) -> (Vec<u32>, bool) {
    let (model, settings) = (model(transposed), Settings { cores: 1, ..Settings::new(Goal::Gradients) });
    let tasks = lay_out(&model, &settings, |_, _| ()).expect("it compiles").tasks;
    let is_gradient = |op: &TaskOp| matches!(op, TaskOp::LinearGradWeight { .. });
    let (id, task) = tasks.tasks.iter().find(|(_, task)| is_gradient(&task.op)).expect("w is trained");
    let turned = select(&tasks, id).expect("it has a kernel").reads[..] != task.reads[..];
    let mut session = Session::new(&model, &settings).expect("it compiles");
    let at = |i: usize| if transposed { i % 5 * 3 + i / 5 } else { i };
    let weight: Vec<f32> = (0..15).map(|i| (at(i) as f32 * 0.7).sin()).collect();
    session.feed("x", &(0..18).map(|i| (i as f32).cos()).collect::<Vec<_>>()).expect("it fits");
    session.feed("w", &weight).expect("it fits");
    session.run().expect("the step runs");
    let found = session.read("w.grad").expect("it is an output");
    let mut gradient = vec![0; 15];
    found.iter().enumerate().for_each(|(i, x)| gradient[at(i)] = x.to_bits());
    (gradient, turned)
}

#[test]
fn operands_in_another_order_give_the_same_bits() {
    let (plain, turned) = (gradient(false), gradient(true));
    assert_eq!((plain.1, turned.1), (false, true));
    assert_eq!(plain.0, turned.0);
    assert_ne!(plain.0, vec![0; 15]);
}
