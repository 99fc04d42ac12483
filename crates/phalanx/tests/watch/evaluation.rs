//! Losses on held-back data: what they are, that they leave training alone, and what stops at them.

use std::collections::BTreeMap;

use phalanx::Pin;
use phalanx::PortKind;
use phalanx::ckpt::Checkpoints;
use phalanx::hf;
use phalanx::train::{OptimizerKind, Report, Run, TrainConfig};
use phalanx_testkit::Tensor;
use phalanx_testkit::eval::evaluate;

use crate::ckpt::Dir;

use super::{on, on_ranks, small, trained};

/// The small model, evaluated after every second step.
fn evaluated() -> TrainConfig {
    small().eval_every(Some(2)).eval_batches(2)
}

/// All steps of a run.
fn reports(mut run: Run) -> Vec<Report> {
    let mut reports = Vec::new();
    while !run.is_done() {
        reports.push(Report { tokens_per_s: 0.0, ..run.step().unwrap() });
    }
    reports
}

/// The mean loss over the held batches, in double precision.
fn naive(run: &Run) -> f64 {
    let (config, session) = (run.config(), run.trainer().session());
    let (batch, context) = (config.batch, config.context.unwrap());
    let graph = run.model().training_graph(batch, context).unwrap();
    let mut inputs: BTreeMap<String, Tensor> = BTreeMap::new();
    for name in session.names(PortKind::Param) {
        let shape = graph.ty(graph.find(name).unwrap()).shape.clone();
        let data: Vec<f64> = session.read(name).unwrap().iter().map(|&it| f64::from(it)).collect();
        inputs.insert(name.into(), Tensor::new(shape, data));
    }
    let losses = (0..config.eval_batches).map(|number| {
        let mut both = [vec![0; batch * context], vec![0; batch * context]];
        let [tokens, targets] = &mut both;
        run.data().held_batch(number, batch, context, tokens, targets);
        for (name, values) in ["tokens", "targets"].into_iter().zip(&both) {
            let data: Vec<f64> = values.iter().map(|&token| token as f64).collect();
            inputs.insert(name.into(), Tensor::new([batch, context], data));
        }
        evaluate(&graph, &inputs)[&graph.outputs()[0]].data[0]
    });
    losses.sum::<f64>() / config.eval_batches as f64
}

#[test]
fn the_loss_is_that_of_the_weights_after_the_step_on_held_batches() {
    for extra in [evaluated(), evaluated().dropout(0.1).model("llama".into())] {
        let mut run = Run::new(extra.steps(40)).unwrap();
        for step in 1..=4 {
            let report = run.step().unwrap();
            assert_eq!(report.eval_loss.is_some(), step % 2 == 0);
            // After an evaluation nothing is under way: these are the weights it has seen.
            if let Some(loss) = report.eval_loss {
                let naive = naive(&run);
                assert!((f64::from(loss) - naive).abs() < 1e-5 * naive, "{loss} but {naive} at step {step}");
            }
        }
    }
}

#[test]
fn the_last_step_is_evaluated_whatever_its_number() {
    let mut run = Run::new(evaluated().steps(3)).unwrap();
    let losses: Vec<Option<f32>> = (0..3).map(|_| run.step().unwrap().eval_loss).collect();
    assert!(matches!(losses[..], [None, Some(_), Some(_)]), "{losses:?}");
    let (last, naive) = (f64::from(losses[2].unwrap()), naive(&run));
    assert!((last - naive).abs() < 1e-5 * naive, "{last} but {naive}");
}

#[test]
fn evaluating_leaves_training_on_the_grammar_alone() {
    let (with, without) = (trained(evaluated()), trained(small()));
    assert_eq!(with.losses(), without.losses());
    let (with, without) = (with.summary().unwrap(), without.summary().unwrap());
    assert_eq!(with.weights_hash, without.weights_hash);
    assert!(with.eval_loss.is_some() && with.eval_peak_bytes.unwrap() < with.peak_bytes);
    assert_eq!((without.eval_loss, without.eval_peak_bytes), (None, None));
}

#[test]
fn every_plan_and_cut_of_the_batch_evaluates_to_the_same_bits() {
    let one = reports(Run::new(evaluated()).unwrap());
    let plans = [("dp", 2), ("fsdp", 4), ("zero1", 2), ("tp", 2), ("sp", 2), ("pp", 2), ("dp2-tp2", 4)];
    let configs = plans.map(|(plan, devices)| on(plan, devices, evaluated()));
    let cut = on("dp", 2, evaluated()).accumulate(2);
    let held_back = on("fsdp", 2, evaluated()).link(Some("10us,10Gbit".into()));
    for config in configs.into_iter().chain([cut, held_back]) {
        let what = format!("{:?} {}", config.plan, config.accumulate);
        assert_eq!(reports(Run::new(config).unwrap()), one, "{what}");
    }
}

#[test]
fn ranks_evaluate_to_the_same_bits_and_stop_after_the_same_step() {
    let one = reports(Run::new(evaluated()).unwrap());
    let last = one[3].eval_loss.unwrap();
    let config = on("fsdp2-tp2", 4, evaluated()).stop_at_loss(Some(last)).pin(Pin::Off);
    for reports in on_ranks(2, &config, reports) {
        assert_eq!(reports, one[..4]);
    }
}

#[test]
fn a_run_stops_after_the_first_step_whose_loss_is_low_enough() {
    let all = trained(small());
    let wanted = all.losses()[3];
    let first = all.losses().iter().position(|&loss| loss <= wanted).unwrap() + 1;
    let run = trained(small().stop_at_loss(Some(wanted)));
    assert_eq!(run.losses(), &all.losses()[..first]);
    assert_eq!(run.trainer().steps(), first as u64, "no step beyond it is begun");
    let summary = run.summary().unwrap();
    assert_eq!((summary.steps, summary.stopped_at_loss), (first as u64, Some(wanted)));
    let missed = trained(small().stop_at_loss(Some(0.0))).summary().unwrap();
    assert_eq!((missed.steps, missed.stopped_at_loss), (6, None));
}

/// A model that learns so fast that its loss on held-back data goes up and down; evaluated after every step.
fn restless() -> TrainConfig {
    evaluated().eval_every(Some(1)).steps(16).optimizer(OptimizerKind::Sgd).lr(1.5).momentum(0.95).clip(0.0)
}

/// The step after which `losses` have not fallen below their lowest value for so many evaluations.
fn out_of_patience(losses: &[f32], patience: usize) -> Option<usize> {
    (patience..losses.len()).map(|last| last + 1).find(|&steps| {
        let (before, recent) = losses[..steps].split_at(steps - patience);
        let lowest = before.iter().copied().fold(f32::INFINITY, f32::min);
        recent.iter().all(|&loss| loss >= lowest)
    })
}

#[test]
fn a_run_stops_when_evaluations_get_no_better_on_ranks_and_after_resuming_alike() {
    let all = reports(Run::new(restless()).unwrap());
    let losses: Vec<f32> = all.iter().map(|report| report.eval_loss.unwrap()).collect();
    for (report, loss) in all.iter().zip(&losses) {
        assert_eq!(report.eval_perplexity, Some(f64::from(*loss).exp()));
    }
    let steps = [1, 3].map(|patience| out_of_patience(&losses, patience).expect("the loss rises at times"));
    assert!(steps[0] < steps[1] && steps[1] < 16, "{losses:?}");
    for (patience, steps) in [1, 3].into_iter().zip(steps) {
        let config = restless().patience(Some(patience));
        let run = trained(config.clone());
        let summary = run.summary().unwrap();
        assert_eq!((summary.steps, summary.stopped_by_patience), (steps as u64, Some(patience)));
        let lowest = losses[..steps].iter().copied().fold(f32::INFINITY, f32::min);
        let first = losses.iter().position(|&loss| loss == lowest).unwrap() as u64 + 1;
        assert_eq!((summary.best_eval_loss, summary.best_eval_step), (Some(lowest), Some(first)));
        for reports in on_ranks(2, &on("dp", 2, config.clone()).pin(Pin::Off), reports) {
            assert_eq!(reports, all[..steps]);
        }
        let dir = Dir::new(&format!("patience-{patience}"));
        let saved = config.checkpoint(Some(dir.0.clone())).every(Some(1));
        let mut begun = Run::new(saved.clone()).unwrap();
        (0..steps - 1).for_each(|_| drop(begun.step().unwrap()));
        drop(begun);
        assert_eq!(trained(saved.clone().resume(true)).summary().unwrap().steps, steps as u64);
        let over = Run::new(saved.clone().resume(true)).unwrap();
        assert!(over.is_done() && over.summary().unwrap().eval_loss == Some(losses[steps - 1]));
        drop(over);
        let more = Run::new(saved.resume(true).patience(Some(99))).unwrap();
        assert!(!more.is_done(), "more patience goes on");
    }
}

#[test]
fn the_best_checkpoint_is_kept_and_can_be_what_is_saved() {
    let dir = Dir::new("best");
    let (checkpoints, model) = (dir.0.join("ck"), dir.0.join("model"));
    let losses: Vec<f32> =
        reports(Run::new(restless()).unwrap()).iter().map(|report| report.eval_loss.unwrap()).collect();
    let best = (1..16).fold(0, |best, step| if losses[step] < losses[best] { step } else { best }) as u64 + 1;
    assert!(best < 14, "{losses:?}");
    let kept = restless().checkpoint(Some(checkpoints.clone())).keep(2);
    trained(kept.clone().every(Some(1)));
    let listed = Checkpoints::open(&checkpoints);
    assert_eq!(listed.list().unwrap(), [best, 15, 16]);
    assert_eq!(listed.best(&[best, 15, 16]), Some(best));
    std::fs::remove_dir_all(&checkpoints).unwrap();

    // Saved at no step but the best ones and the last.
    let run = trained(kept.every(Some(99)).save(Some(model.clone())).save_best(true));
    assert_eq!(listed.list().unwrap().last(), Some(&16));
    assert_eq!(run.save(&model).unwrap(), best);
    let mut until_best = Run::new(restless()).unwrap();
    (0..best).for_each(|_| drop(until_best.step().unwrap()));
    let wanted = until_best.trainer().session().weights().unwrap();
    assert_eq!(hf::read_weights(&model, &hf::tensors(run.model()).unwrap()).unwrap(), wanted);
    assert_ne!(run.trainer().session().weights().unwrap(), wanted);
}

#[test]
fn memory_that_holds_a_step_but_no_evaluation_is_told() {
    let peak = trained(small()).summary().unwrap().peak_bytes;
    let memory = Some(format!("{}B", peak + 100));
    trained(small().memory(memory.clone()));
    let error = Run::new(evaluated().memory(memory)).err().unwrap().to_string();
    let step = format!("KiB to evaluate beside the {} of a step", phalanx::ir::bytes_text(peak as u64, 2));
    for part in ["dev0 needs ", &step, "--eval-every"] {
        assert!(error.contains(part), "`{part}` in {error}");
    }
}
