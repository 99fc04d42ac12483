//! Every task of real steps gets a measured time, each signature once.

use std::collections::BTreeSet;

use phalanx::PlanChoice;
use phalanx::internals::costs::{CostTable, Machine, Signature};
use phalanx::ir::graph::Graph;
use phalanx::ir::tasks::{TaskGraph, TaskOp};
use phalanx::models::{Gpt2Config, LlamaConfig};
use phalanx::pipeline::{self, Settings};
use phalanx::{Goal, Optimizer};
use phalanx_testkit::zoo;

const BATCH: usize = 8;

fn gpt2() -> Graph {
    zoo::gpt2(BATCH, Gpt2Config { vocab: 64, ..zoo::GPT2 })
}

fn llama() -> Graph {
    zoo::llama(BATCH, LlamaConfig { hidden: 64, vocab: 64, dropout: 0.0, ..zoo::LLAMA })
}

fn tasks(model: &Graph, plan: &str, seed: u64) -> TaskGraph {
    let choice = PlanChoice::default().plan(Some(plan.into()));
    let plan = choice.resolve(model).expect("the plan suits the model");
    let optimizer = Optimizer::adamw(0.1).clip(Some(0.5));
    let settings = Settings::new(Goal::Train(optimizer)).plan(plan).seed(seed);
    pipeline::lay_out(model, &settings, |_, _| ()).expect("the model compiles").tasks
}

/// Measures and returns how many entries that gave.
fn measure(cost_table: &mut CostTable, tasks: &TaskGraph, cores: usize) -> usize {
    let mut told = Vec::new();
    let measured = cost_table
        .measure(tasks, cores, &mut |done, total, _| told.push((done, total)))
        .expect("the cost_table is this machine's");
    assert_eq!(measured.fallbacks, []);
    assert!(told.iter().enumerate().all(|(at, &(done, total))| done == at && total == told.len() - 1));
    measured.taken
}

#[test]
fn every_task_of_every_plan_is_measured_and_never_twice() {
    let mut cost_table = CostTable::new(Machine::this());
    for (model, name) in [(gpt2(), "gpt2"), (llama(), "llama")] {
        for plan in ["dp2", "tp2", "fsdp2", "pp2"] {
            let tasks = tasks(&model, plan, 5);
            assert!(measure(&mut cost_table, &tasks, 1) > 0, "{name} with {plan}");
            let costs = cost_table.costs(&tasks, 1);
            assert_eq!(costs.estimated(), [], "{name} with {plan}");
            for (id, task) in tasks.tasks.iter() {
                assert_eq!(cost_table.of(&tasks, id, 1), Some(costs[id]), "{name} with {plan}: {id}");
                let free = matches!(task.op, TaskOp::Send { .. });
                assert_eq!(costs[id] == 0, free, "{name} with {plan}: {id} takes {} ns", costs[id]);
            }
            let sums = costs.by_device(&tasks);
            let total: u64 = tasks.tasks.ids().map(|id| costs[id]).sum();
            assert_eq!((sums.len(), sums.values().sum::<u64>()), (2, total));
            assert_eq!(measure(&mut cost_table, &tasks, 1), 0, "{name} with {plan} again");
        }
    }
}

#[test]
fn what_does_not_change_the_time_is_not_measured_again() {
    let (model, mut cost_table) = (gpt2(), CostTable::new(Machine::this()));
    let one = tasks(&model, "one", 5);
    let taken = measure(&mut cost_table, &one, 1);
    assert_eq!(taken, cost_table.entries().len());
    assert_eq!(measure(&mut cost_table, &tasks(&model, "one", 6), 1), 0, "another seed of dropout");
    assert_eq!(measure(&mut cost_table, &one, 2), taken, "other cores");
    let dropouts =
        cost_table.entries().filter(|(entry, _)| entry.kernel == "dropout" && entry.cores == 1).count();
    let tasks = one.tasks.iter().filter(|(_, task)| matches!(task.op, TaskOp::Dropout { .. })).count();
    assert!(dropouts < tasks / 2, "{dropouts} signatures of {tasks} tasks: layers are alike");
}

#[test]
fn where_a_tile_lies_plays_no_part() {
    let tasks = tasks(&gpt2(), "tp2", 5);
    let of = |device: usize| {
        let mine = tasks.tasks.iter().filter(|(_, task)| phalanx::ir::Id::index(task.device) == device);
        mine.filter_map(|(id, _)| Signature::of(&tasks, id, 1)).collect::<BTreeSet<_>>()
    };
    assert!(of(1).len() > 40);
    assert!(of(1).is_subset(&of(0)), "the first device has its tiles and what is done once");
}

#[test]
fn an_empty_book_estimates_and_another_machine_is_not_measured() {
    let tasks = tasks(&gpt2(), "one", 5);
    let mut cost_table = CostTable::new(Machine { cpu: "elsewhere".into(), ..Machine::this() });
    let costs = cost_table.costs(&tasks, 1);
    assert_eq!(costs.estimated().len(), tasks.tasks.len());
    assert!(tasks.tasks.ids().all(|id| costs[id] > 0));
    let error = cost_table.measure(&tasks, 1, &mut |_, _, _| ()).expect_err("the times would be mixed");
    assert!(error.to_string().contains("elsewhere"), "{error}");
}
