use std::collections::BTreeSet;

use phalanx_ir::graph::{Builder, Graph};
use phalanx_ir::tasks::{Buffer, TaskGraph, TaskId, TaskView};
use phalanx_ir::{Activation, Id, Init, Op, Reduce, TensorType, Unary};
use phalanx_ops::{Layers, Linear, ReduceOp};
use phalanx_program::RECEIVE;

use super::*;
use crate::emit::select;
use crate::pipeline::{Settings, lay_out};
use crate::{Goal, Session};

/// Binds buffers b0, b1, ... with these names to the slots `a`, `b` and `c`.
fn bound(names: &[&'static str]) -> Result<Vec<usize>, Mismatch> {
    let buffers: Vec<_> = (0..names.len()).map(BufferId::from_index).collect();
    let bound = in_slots(&buffers, names, &["a", "b", "c"])?;
    Ok(bound.iter().map(|&buffer| buffer.index()).collect())
}

#[test]
fn buffers_go_where_their_names_are() {
    assert_eq!(bound(&["a", "b", "c"]), Ok(vec![0, 1, 2]));
    assert_eq!(bound(&["c", "a", "b"]), Ok(vec![1, 2, 0]));
    assert_eq!(bound(&["b", "a", "c"]), Ok(vec![1, 0, 2]));
}

#[test]
fn what_is_not_one_to_one_is_told() {
    assert_eq!(bound(&["a", "b", "b"]), Err(Mismatch::Twice("b")));
    assert_eq!(bound(&["a", "b", "c", "a"]), Err(Mismatch::Twice("a")));
    assert_eq!(bound(&["a", "b", "d"]), Err(Mismatch::Unknown("d")));
    assert_eq!(bound(&["a", "c"]), Err(Mismatch::Missing("b")));
    assert_eq!(in_slots(&[BufferId::from_index(0)], &["a"], &["a", "a"]), Err(Mismatch::Twice("a")));
}

/// A graph of one task for each operator, with every flag in both states.
fn operators() -> TaskGraph {
    let text = include_str!("../../../../../filetests/tasks/operators.ir");
    let graph: Vec<_> = text.lines().filter(|line| !line.starts_with(';')).collect();
    graph.join("\n").parse().expect("the file test is a graph")
}

/// `graph` with only task `id`, which has as many operands as it names, of a shape that suits its operator.
fn alone(graph: &TaskGraph, id: TaskId) -> TaskGraph {
    let (mut graph, mut task) = (graph.clone(), graph.tasks[id].clone());
    let ty = match task.op {
        TaskOp::LinearGradWeight { .. } | TaskOp::Transpose { .. } => TensorType::f32([8, 8]),
        _ => TensorType::f32([8, 8, 8, 8]),
    };
    let buffer = graph.buffers.iter().next().expect("the graph has buffers").1.clone();
    let buffer = Buffer { ty, ..buffer };
    let names = match task.op.clone() {
        TaskOp::Call { kernel, attrs } => {
            // As many as any kernel looks at; then those that it takes.
            let one = graph.buffers.push(buffer.clone());
            (task.reads, task.writes) = (vec![one; 4], vec![one; 4]);
            let kernel = table::find(kernel).expect("the file names kernels that exist");
            let params = kernel.task.expect("such a kernel is called by its name");
            let words = params(&TaskView::new(&graph, &task, &attrs)).expect("the file has its attributes");
            (kernel.arguments)(&words)
        }
        _ => task.names(),
    };
    let mut new = |_: &&str| graph.buffers.push(buffer.clone());
    task.reads = names.reads.iter().map(&mut new).collect();
    task.writes = names.writes.iter().map(&mut new).collect();
    graph.tasks = [task].into_iter().collect();
    graph
}

#[test]
fn every_operator_has_the_names_of_its_kernel_and_every_kernel_an_operator() {
    let (graph, mut met) = (operators(), BTreeSet::new());
    for id in graph.tasks.ids() {
        let graph = alone(&graph, id);
        let choice = select(&graph, TaskId::from_index(0));
        let choice = choice
            .unwrap_or_else(|error| panic!("{}: {error}", graph.tasks[TaskId::from_index(0)].op.to_text().0));
        met.insert(choice.kernel);
    }
    met.remove(RECEIVE);
    let all: BTreeSet<_> = table::table().iter().map(|kernel| kernel.name).collect();
    assert_eq!(met, all);
}

#[test]
fn a_kernel_that_takes_something_else_is_named_with_layer_and_names() {
    let graph = operators();
    let told = |op: &str, kernel, words: &[u64]| {
        let id = graph.tasks.iter().find(|(_, task)| task.op.to_text().0 == op).expect("it is there").0;
        let graph = alone(&graph, id);
        let task = &graph.tasks[TaskId::from_index(0)];
        bind(task, task.names(), kernel, words.to_vec()).err().expect("it does not fit").to_string()
    };
    assert_eq!(
        told("binary_grad", "unary_grad", &[]),
        "layer `y`: kernel `unary_grad` reads `x`, `dy`, but the task has `a`, `b`, `dy`: the kernel has no `a`"
    );
    assert_eq!(
        told("cross_entropy", "class_pick", &[]),
        "layer `y`: kernel `class_pick` writes `picked`, but the task has `nll`, `lse`: the kernel has no `nll`"
    );
    assert_eq!(
        told("fill", "unary", &[]),
        "layer `zero`: kernel `unary` reads `x`, but the task has nothing: the task has no `x`"
    );
}

#[test]
fn a_call_that_no_kernel_takes_is_told() {
    let graph = operators();
    let told = |op: &str, other: TaskOp| {
        let id = graph.tasks.iter().find(|(_, task)| task.op.to_text().0 == op).expect("it is there").0;
        let mut graph = alone(&graph, id);
        graph.tasks[TaskId::from_index(0)].op = other;
        select(&graph, TaskId::from_index(0)).err().expect("it does not fit").to_string()
    };
    let call = |kernel| TaskOp::Call { kernel, attrs: Default::default() };
    assert_eq!(
        told("softmax", call("zero")),
        "layer `y`: kernel `zero` cannot be called: there is no such kernel"
    );
    assert_eq!(
        told("softmax", call("softmax")),
        "layer `y`: kernel `softmax` cannot be called: attribute `axis=…` is missing"
    );
    assert_eq!(
        told("softmax", call("matmul")),
        "layer `y`: kernel `matmul` cannot be called: it is not called by its name"
    );
}

#[test]
fn a_buffer_too_few_or_too_many_is_told() {
    let mut graph = operators();
    let is_linear = |task: &Task| matches!(task.op, TaskOp::Linear { bias: true, .. });
    let id = graph.tasks.iter().find(|(_, task)| is_linear(task)).expect("it is there").0;
    assert_eq!(
        select(&graph, id).err().expect("the file gives it one operand").to_string(),
        "layer `y`: `linear` reads `x`, `weight`, `bias`, `residual`, but its task has 1 buffers"
    );
    let buffer = graph.tasks[id].reads[0];
    graph.tasks[id].reads = vec![buffer; 4];
    graph.tasks[id].writes = vec![buffer; 3];
    assert_eq!(
        select(&graph, id).err().expect("it has one result too many").to_string(),
        "layer `y`: `linear` writes `y`, `pre`, but its task has 3 buffers"
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
