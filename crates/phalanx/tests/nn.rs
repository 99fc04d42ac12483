//! Models of one's own: a function, trained by `Training` under every plan, with metrics, groups, checkpoints and ranks.
#![allow(clippy::unwrap_used)]

mod errors;
mod graphs;
mod parity;
mod saved;
mod zoo;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use phalanx::Optimizer;
use phalanx::internals::net::Network;
use phalanx::internals::net::local::Local;
use phalanx::job::Connection;
use phalanx::nn::{
    Args, F32, I64, Init, Metrics, Net, OwnedFeed, SelfAttention, Tensor, Training, TrainingRun,
};

pub const BATCH: usize = 8;
const TIME: usize = 8;
const VOCAB: usize = 16;

/// A transformer with everything that transformers have.
fn gpt(net: &Net) -> Tensor {
    let (tokens, targets) = (net.tokens("tokens", TIME), net.tokens("targets", TIME));
    let init = net.init(Init::Normal(0.02));
    let (words, places) = (init.at("wte").embedding(VOCAB, 32), init.at("wpe").embedding(2 * TIME, 32));
    let mut x = net.at("drop").dropout(0.1, words.rows(&tokens) + places.first(TIME));
    for block in 0..2 {
        let net = net.at("h").at(block);
        let heads = SelfAttention::new(4).kv_heads(2).rotary(10_000.0);
        let h = net.at("attn").attention(&net.at("ln_1").rms_norm(&x), heads);
        x = x + net.at("attn").dropout(0.1, h);
        let h = net.at("fc").linear(&net.at("ln_2").layer_norm(&x), 64).gelu();
        x = x + net.at("out").linear(&h, 32);
    }
    let logits = words.logits(&net.at("ln_f").layer_norm(&x));
    net.metric("accuracy", &logits.is_top(&targets).mean_all());
    logits.cross_entropy(&targets)
}

/// Sequences that count up from a number that depends on the step.
fn counting(step: usize) -> (Vec<i64>, Vec<i64>) {
    let at = |row: usize, time: usize| ((row * 5 + step * 3 + time) % VOCAB) as i64;
    let all =
        |shift: usize| (0..BATCH).flat_map(|row| (0..TIME).map(move |time| at(row, time + shift))).collect();
    (all(0), all(1))
}

pub fn args(flags: &[&str]) -> Args {
    Args::of([flags, &["--cores-per-device", "1", "--no-cache"]].concat()).unwrap()
}

fn trained(run: &mut TrainingRun<'_>, steps: usize) -> (Vec<f32>, u128) {
    let mut losses = Vec::new();
    for step in 0..steps {
        let (tokens, targets) = counting(step);
        losses.push(run.step([("tokens", &tokens), ("targets", &targets)]).unwrap().loss);
    }
    (losses, run.session().weights_hash().unwrap())
}

fn start(flags: &[&str]) -> TrainingRun<'static> {
    let training = Training::new(&args(flags), gpt).batch(BATCH).adamw(1e-2, 0.1).clip(1.0);
    training.group("*.bias", 0.5, Some(0.0)).freeze("wpe.*").start().unwrap()
}

#[test]
fn a_transformer_learns_with_the_same_bits_under_every_plan() {
    let one = trained(&mut start(&[]), 5);
    for flags in [
        &["--plan", "dp2"][..],
        &["--plan", "fsdp", "--devices", "4"],
        &["--plan", "dp2", "--accumulate", "2", "--fusion", "off"],
        &["--plan", "zero12", "--recompute", "full"],
    ] {
        assert_eq!(trained(&mut start(flags), 5), one, "{flags:?}");
    }
    let mut run = start(&[]);
    let (losses, _) = trained(&mut run, 60);
    assert!(losses[0] > 2.6 && losses[59] < 0.5, "{losses:?}");
    let batches = (0..4).map(|step| {
        let (tokens, targets) = counting(step);
        [("tokens", tokens), ("targets", targets)]
    });
    let found: Metrics = run.evaluate(batches).unwrap();
    assert!(found["accuracy"] > 0.9 && found["loss"] < 0.5, "{found}");
}

#[test]
fn ranks_train_with_the_bits_of_one_process() {
    let one = trained(&mut start(&[]), 3);
    for (ranks, plan) in [(2, "dp"), (4, "fsdp")] {
        thread::scope(|scope| {
            let rank = |local: Local| {
                let network: Arc<dyn Network> = Arc::new(local);
                scope.spawn(move || {
                    let say = Arc::new(|text: &str| panic!("{text}"));
                    let connection = Connection::new(network, Duration::from_secs(60), say);
                    let training = Training::new(&args(&["--plan", plan, "--pin", "off"]), gpt).batch(BATCH);
                    let training = training.adamw(1e-2, 0.1).clip(1.0);
                    let training = training.group("*.bias", 0.5, Some(0.0)).freeze("wpe.*");
                    let mut run = training.start_in(connection).unwrap();
                    let (tokens, targets) = counting(0);
                    let answer = trained(&mut run, 3);
                    let found = run.evaluate([[("tokens", tokens), ("targets", targets)]]).unwrap();
                    (answer, found)
                })
            };
            let threads: Vec<_> = Local::job(ranks).into_iter().map(rank).collect();
            let found: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert!(found.iter().all(|(answer, _)| *answer == one), "{plan} on {ranks} ranks");
            assert!(found.iter().all(|(_, metrics)| *metrics == found[0].1), "{plan} on {ranks} ranks");
        });
    }
}

/// y = w x + b with a squared error, by hand.
fn line(net: &Net) -> Tensor {
    let (x, y) = (net.input("x", F32, [net.batch(), 1]), net.input("y", F32, [net.batch(), 1]));
    let (w, b) = (net.param("w", [1, 1], Init::Ones), net.param("b", [1], Init::Zeros));
    (x.matmul(&w) + b - y).square().mean_all()
}

#[test]
fn groups_scale_the_learning_rate_and_set_the_decay() {
    let step = |training: Training<'_>| {
        let mut run = training.batch(2).sgd(0.1, 0.0).start().unwrap();
        run.step([("x", [1.0, 3.0]), ("y", [0.0, 0.0])]).unwrap();
        [run.session().read("w").unwrap()[0], run.session().read("b").unwrap()[0]]
    };
    let close = |found: [f32; 2], want: [f32; 2]| {
        assert!(
            found.iter().zip(want).all(|(found, want)| (found - want).abs() < 1e-6),
            "{found:?} {want:?}"
        );
    };
    let args = args(&[]);
    // The loss is mean((w x + b)²): its gradient is 2 mean(x²) = 10 for w and 2 mean(x) = 4 for b.
    close(step(Training::new(&args, line)), [1.0 - 0.1 * 10.0, -0.1 * 4.0]);
    close(step(Training::new(&args, line).group("w", 0.5, None)), [1.0 - 0.05 * 10.0, -0.1 * 4.0]);
    close(step(Training::new(&args, line).group("w", 0.0, None)), [1.0, -0.1 * 4.0]);
    let decayed = step(Training::new(&args, line).group("*", 1.0, Some(2.0)).group("b", 0.25, None));
    close(decayed, [1.0 - 0.1 * (10.0 + 2.0), -0.1 * 0.25 * 4.0]);
    close(step(Training::new(&args, line).freeze("w")), [1.0, -0.1 * 4.0]);
    close(step(Training::new(&self::args(&["--freeze", "b"]), line).freeze("w")), [0.0, 0.0]);
    close(step(Training::new(&self::args(&["--lr", "0.2"]), line)), [1.0 - 0.2 * 10.0, -0.2 * 4.0]);
}

#[test]
fn flags_win_over_the_program() {
    let chosen = |flags: &[&str]| {
        let training =
            Training::new(&args(flags), line).batch(4).optimizer(Optimizer::adamw(0.3).clip(Some(2.0)));
        let run = training.lr(0.5).start().unwrap();
        let config = run.config();
        (config.batch, config.lr, config.weight_decay, config.beta2, config.optimizer, config.clip)
    };
    use phalanx::train::OptimizerKind::{AdamW, Sgd};
    assert_eq!(chosen(&[]), (4, 0.5, 0.3, 0.999, AdamW, 2.0));
    let flags = ["--batch", "2", "--lr", "0.25", "--weight-decay", "0", "--clip", "1"];
    assert_eq!(chosen(&flags), (2, 0.25, 0.0, 0.999, AdamW, 1.0));
    assert_eq!(chosen(&["--optimizer", "sgd"]), (4, 0.5, 0.3, 0.95, Sgd, 2.0));
    assert_eq!(Args::default().batch(), 16);
    assert_eq!(args(&["--steps", "7"]).steps(), 7);
}

/// Images of two kinds, a loss of one's own and labels of another type than the images.
#[test]
fn inputs_may_have_different_types_and_outputs_can_be_read() {
    let model = |net: &Net| {
        let x = net.input("image", F32, [net.batch(), 2, 2]);
        let y = net.input("label", I64, [net.batch()]);
        let logits = net.at("head").linear(&x.flatten(), 2);
        net.output("logits", &logits);
        let p = logits.softmax().pick(&y);
        net.metric("accuracy", &logits.is_top(&y).mean_all());
        -((1.0 - &p).square() * p.log()).mean_all()
    };
    let image = vec![1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0];
    let label = vec![0i64, 1];
    let mut run = Training::new(&args(&[]), model).batch(2).adam(0.05).start().unwrap();
    let mut first = None;
    for _ in 0..50 {
        let step = run.step((("image", &image), ("label", &label))).unwrap();
        first.get_or_insert(step.loss);
    }
    assert!(run.step(()).is_ok_and(|step| step.loss < 0.1 * first.unwrap()), "inputs keep their values");
    let logits = run.read("logits").unwrap();
    assert!(logits[0] > logits[1] && logits[3] > logits[2], "{logits:?}");
    let owned = [("image", OwnedFeed::from(image.clone())), ("label", OwnedFeed::from(label))];
    assert_eq!(run.evaluate([owned]).unwrap()["accuracy"], 1.0);
    let head = |net: &Net| net.at("head").linear(&net.input("x", F32, [1, 4]), 2);
    let found = run.predictor(1, head).unwrap().run([("x", &image[4..])]).unwrap();
    assert!(found[1] > found[0], "{found:?}");
}

/// The values of compositions, by hand.
#[test]
fn compositions_have_their_values() {
    let model = |net: &Net| {
        let (x, y) = (net.input("x", F32, [net.batch(), 3]), net.input("y", I64, [net.batch()]));
        let truth = net.input("truth", F32, [net.batch(), 3]);
        net.output("picked", &x.pick(&y));
        net.output("top", &x.is_top(&y));
        net.output("clamped", &x.clamp(-0.5, 0.5));
        net.output("inverse", &(2.0 / &x));
        net.output("rest", &(1.0 - &x));
        net.output("slice", &x.slice(1, 1..3));
        net.metric("bce", &x.binary_cross_entropy(&truth));
        net.metric("l1", &x.l1(&truth));
        (net.param("w", [3], Init::Ones) * x).mean_all()
    };
    let x = [0.25f32, -1.0, 2.0, 0.5, 4.0, 4.0];
    let truth = [1.0f32, 0.0, 0.5, 0.0, 1.0, 0.0];
    let mut run = Training::new(&args(&[]), model).batch(2).start().unwrap();
    let step = run.step((("x", &x), ("y", &[2i64, 2]), ("truth", &truth))).unwrap();
    assert_eq!(run.read("picked").unwrap(), [2.0, 4.0]);
    assert_eq!(run.read("top").unwrap(), [1.0, 0.0], "of equal elements the first is the largest");
    assert_eq!(run.read("clamped").unwrap(), [0.25, -0.5, 0.5, 0.5, 0.5, 0.5]);
    assert_eq!(run.read("inverse").unwrap(), x.map(|x| 2.0 / x));
    assert_eq!(run.read("rest").unwrap(), x.map(|x| 1.0 - x));
    assert_eq!(run.read("slice").unwrap(), [-1.0, 2.0, 4.0, 4.0]);
    let bce = |(x, y): (&f32, &f32)| {
        let (x, y) = (f64::from(*x), f64::from(*y));
        let p = 1.0 / (1.0 + (-x).exp());
        -(y * p.ln() + (1.0 - y) * (1.0 - p).ln()) / 6.0
    };
    let want: f64 = x.iter().zip(&truth).map(bce).sum();
    assert!((f64::from(step.metrics["bce"]) - want).abs() < 1e-6, "{} {want}", step.metrics);
    let l1: f32 = x.iter().zip(&truth).map(|(x, y)| (x - y).abs() / 6.0).sum();
    assert!((step.metrics["l1"] - l1).abs() < 1e-6);
}
