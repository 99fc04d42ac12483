//! Bad input gives an error that names the thing, both values and the fix.

use phalanx::nn::{Args, F32, Feeds, Net, Tensor, Training};

use super::{args, line};

fn step_error(feeds: impl Feeds) -> String {
    let mut run = Training::new(&args(&[]), line).batch(2).sgd(0.1, 0.0).start().unwrap();
    run.step(feeds).unwrap_err().to_string()
}

#[test]
fn feeds_that_do_not_fit_are_refused() {
    let x = ("x", vec![1.0f32, 2.0]);
    assert_eq!(
        step_error([x.clone(), ("why", vec![1.0])]),
        "the model has no input `why`; it has `x`, f32[2, 1] and `y`, f32[2, 1]"
    );
    assert!(step_error([("w", vec![1.0f32])]).starts_with("the model has no input `w`"));
    let short = step_error([x.clone(), ("y", vec![1.0])]);
    assert!(short.contains("`y`") && short.contains("f32[2, 1]"), "{short}");
    let other = step_error((("x", &[1.0f32, 2.0]), ("y", &[1i64, 2])));
    assert!(other.contains("`y`") && other.contains("i64") && other.contains("f32"), "{other}");
    assert_eq!(step_error([x]), "input `y`, f32[2, 1], has never been fed: give it to the first step");
}

#[test]
fn a_run_that_diverges_says_so() {
    let mut run = Training::new(&args(&[]), line).batch(2).sgd(1e30, 0.0).start().unwrap();
    let feeds = [("x", [1.0f32, 3.0]), ("y", [0.0, 0.0])];
    let error = (0..3).find_map(|_| run.step(feeds).err()).unwrap().to_string();
    assert!(error.contains("the run has diverged"), "{error}");
}

#[test]
fn patterns_names_and_flags_that_mean_nothing_are_refused() {
    let error = |training: Training<'_>| training.batch(2).start().err().unwrap().to_string();
    let frozen = error(Training::new(&args(&[]), line).freeze("hat.*"));
    assert!(frozen.contains("`hat.*`") && frozen.contains("`w`"), "{frozen}");
    let group = error(Training::new(&args(&[]), line).group("hat.*", 2.0, None));
    assert!(group.contains("the group `hat.*` matches no parameter"), "{group}");
    let flag = Args::of(["--btach", "3"]).unwrap_err().to_string();
    assert!(flag.contains("'--btach'") && flag.contains("'--batch'"), "{flag}");
    let zero = Args::of(["--batch", "0"]).unwrap_err().to_string();
    assert!(zero.contains("at least 1"), "{zero}");
    let alone = error(Training::new(&args(&["--devices-per-rank", "1"]), line));
    assert!(alone.contains("it is for a job of several processes"), "{alone}");
    let momentum = error(Training::new(&args(&["--momentum", "0.5"]), line).adam(0.1));
    assert!(momentum.contains("`momentum`") && momentum.contains("sgd"), "{momentum}");
}

#[test]
fn a_model_that_cannot_be_built_names_its_line() {
    let bad = |net: &Net| {
        let x = net.input("x", F32, [net.batch(), 3]);
        (&x + &net.input("y", F32, [net.batch(), 4])).mean_all()
    };
    let line = line!() - 2;
    let error = Training::new(&args(&[]), bad).start().err().unwrap().to_string();
    assert!(error.contains(&format!("errors.rs:{line}: layer `add`")), "{error}");
}

#[test]
fn training_and_evaluation_have_the_same_parameters() {
    let model = |net: &Net| -> Tensor {
        let x = net.input("x", F32, [net.batch(), 3]);
        let place = if net.training() { "a" } else { "b" };
        net.at(place).linear(&x, 1).mean_all()
    };
    let mut run = Training::new(&args(&[]), model).batch(2).start().unwrap();
    let error = run.evaluate([[("x", [0.0f32; 6])]]).unwrap_err().to_string();
    let want = "parameter `b.weight` is absent in training but f32[1, 3] in evaluation: make the same parameters whatever \
                `net.training()` says";
    assert_eq!(error, want);
    let mut run = Training::new(&args(&[]), super::line).batch(2).start().unwrap();
    let error = run.evaluate([[("x", [0.0f32; 2])]; 0]).unwrap_err().to_string();
    assert_eq!(error, "an evaluation needs at least one batch, and there was none");
    let error = run.read("logits").unwrap_err().to_string();
    assert_eq!(error, "the model has no output `logits`; call `net.output` to have one");
}
