//! Models that exist as graphs, and steps that are launched before the last one has ended.

use phalanx::nn::{ModelGraphs, Net, Tensor, Training, TrainingRun, build_evaluation, build_training};

use super::saved::dir;
use super::{BATCH, args, counting, gpt, trained};

/// The transformer as graphs.
fn graphs() -> ModelGraphs {
    let training = build_training("gpt", BATCH, gpt).unwrap();
    let evaluation = Some(build_evaluation("gpt", BATCH, |net: &Net| -> Tensor { gpt(net) }).unwrap());
    ModelGraphs { training, evaluation, initial: Vec::new() }
}

fn start(flags: &[&str], model: ModelGraphs) -> TrainingRun<'static> {
    Training::of_graphs(&args(flags), model).unwrap().adamw(1e-2, 0.1).start().unwrap()
}

#[test]
fn graphs_train_as_their_function_does() {
    let function = || Training::new(&args(&[]), gpt).batch(BATCH).adamw(1e-2, 0.1).start().unwrap();
    let (mut whole, mut run) = (function(), start(&[], graphs()));
    assert_eq!(trained(&mut run, 3), trained(&mut whole, 3));
    let batch = || {
        let (tokens, targets) = counting(7);
        [[("tokens", tokens), ("targets", targets)]]
    };
    assert_eq!(run.evaluate(batch()).unwrap(), whole.evaluate(batch()).unwrap());

    // Weights from elsewhere, under another plan.
    let weights = run.session().weights().unwrap();
    let mut set =
        start(&["--plan", "fsdp2"], ModelGraphs { initial: weights.into_iter().collect(), ..graphs() });
    assert_eq!(set.weights_hash().unwrap(), run.weights_hash().unwrap());
    let first = set.read_weight("wpe.weight").unwrap();
    set.set_weight("wpe.weight", &vec![0.5; first.len()]).unwrap();
    assert!(set.read_weight("wpe.weight").unwrap().iter().all(|&value| value == 0.5));
    let error = set.set_weight("wpe.weigth", &first).unwrap_err().to_string();
    assert_eq!(error, "the model has no parameter or state `wpe.weigth`; did you mean `wpe.weight`?");
}

#[test]
fn steps_in_flight_are_those_done_one_by_one() {
    let (mut ahead, mut alone) = (start(&["--plan", "dp2"], graphs()), start(&[], graphs()));
    let expected = trained(&mut alone, 6);
    let mut losses = Vec::new();
    for step in 0..6 {
        let (tokens, targets) = counting(step);
        ahead.launch([("tokens", &tokens), ("targets", &targets)]).unwrap();
        if ahead.launched() == 2 {
            losses.push(ahead.finish().unwrap().unwrap().loss);
        }
    }
    while let Some(step) = ahead.finish().unwrap() {
        losses.push(step.loss);
    }
    assert_eq!((losses, ahead.weights_hash().unwrap()), expected);
}

#[test]
fn a_checkpoint_has_the_state_of_its_step_with_others_in_flight() {
    let dir = dir("in-flight");
    let path = dir.to_str().unwrap();
    let flags = ["--checkpoint", path, "--every", "2"];
    let mut run = start(&flags, graphs());
    for step in 0..5 {
        let (tokens, targets) = counting(step);
        run.launch([("tokens", &tokens), ("targets", &targets)]).unwrap();
    }
    let numbers: Vec<u64> = std::iter::from_fn(|| Some(run.finish().unwrap()?.number)).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5], "also those that a launch waited for");
    run.fail("so that nothing is saved at the end");
    drop(run);
    let mut again = start(&[&flags[..], &["--resume"]].concat(), graphs());
    assert_eq!(again.steps(), 4);
    let mut alone = start(&[], graphs());
    trained(&mut alone, 4);
    assert_eq!(again.weights_hash().unwrap(), alone.weights_hash().unwrap());
}

#[test]
fn graphs_without_an_evaluation_or_with_another_batch_say_so() {
    let mut run = start(&[], ModelGraphs::new(graphs().training.graph));
    let error = run.begin_evaluation().unwrap_err().to_string();
    assert_eq!(error, "the model `gpt` has a graph for training only: give it one for evaluation, too");
    let error = Training::of_graphs(&args(&["--batch", "4"]), graphs()).unwrap().start().err().unwrap();
    assert_eq!(
        error.to_string(),
        "the batch of the graphs is 8, not 4: leave `batch` out, or make graphs for 4"
    );
}
