//! What a training leaves on disk and takes up from there.

use std::path::PathBuf;

use phalanx::nn::{F32, Net, Tensor, Training, TrainingRun};

use super::args;

/// A directory of this test, empty.
pub fn dir(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("phalanx-nn-{name}-{}", std::process::id()));
    _ = std::fs::remove_dir_all(&dir);
    dir
}

fn model(net: &Net, classes: usize) -> Tensor {
    let x = net.input("x", F32, [net.batch(), 4]);
    let h = net.at("body").linear(&x, 8).tanh();
    let y = net.input("y", F32, [net.batch(), classes]);
    net.at("head").linear(&h, classes).mse(&y)
}

fn start(flags: &[&str]) -> TrainingRun<'static> {
    Training::new(&args(flags), |net| model(net, 2)).batch(4).adamw(0.01, 0.1).start().unwrap()
}

fn step(run: &mut TrainingRun<'_>) -> f32 {
    let shift = run.steps() as f32;
    let x: Vec<f32> = (0..16).map(|i| (i as f32 + shift).sin()).collect();
    let y: Vec<f32> = x.chunks(2).map(|pair| pair[0] * pair[1]).collect();
    run.step([("x", &x), ("y", &y)]).unwrap().loss
}

fn hash(run: &TrainingRun<'_>) -> u128 {
    run.session().weights_hash().unwrap()
}

#[test]
fn a_run_that_is_saved_and_resumed_ends_like_one() {
    let (dir, mut whole) = (dir("resume"), start(&[]));
    let losses: Vec<f32> = (0..6).map(|_| step(&mut whole)).collect();
    let mut first = start(&["--plan", "dp2"]);
    (0..3).for_each(|_| _ = step(&mut first));
    first.save(&dir).unwrap();
    first.save(&dir).unwrap();
    let mut second = start(&["--plan", "fsdp2"]);
    second.resume(&dir).unwrap();
    assert_eq!(second.steps(), 3);
    let rest: Vec<f32> = (0..3).map(|_| step(&mut second)).collect();
    assert_eq!((rest, hash(&second)), (losses[3..].to_vec(), hash(&whole)));
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn flags_save_and_resume() {
    let (dir, log) = (dir("flags"), dir("flags-log"));
    let text = dir.display().to_string();
    let log_text = log.display().to_string();
    let flags = ["--checkpoint", &text, "--every", "2", "--keep", "2", "--log-dir", &log_text];
    let mut run = start(&flags);
    (0..5).for_each(|_| _ = step(&mut run));
    let five = hash(&run);
    drop(run);
    let error = Training::new(&args(&flags), |net| model(net, 2)).start().err().unwrap().to_string();
    assert!(error.contains("has checkpoints, the last one of step 5"), "{error}");
    let mut run = start(&[&flags[..], &["--resume"]].concat());
    assert_eq!((run.steps(), hash(&run)), (5, five));
    assert!(run.take_notices()[0].to_string().contains("resumed after step 5"));
    step(&mut run);
    drop(run);
    let lines = std::fs::read_to_string(log.join("rank-0.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 6);
    assert!(lines.lines().last().unwrap().starts_with("{\"step\":6,\"loss\":"));
    [dir, log].iter().for_each(|dir| std::fs::remove_dir_all(dir).unwrap());
}

#[test]
fn weights_move_by_name_and_those_that_fit_can_be_taken() {
    let dir = dir("weights");
    std::fs::create_dir_all(&dir).unwrap();
    let mut trained = start(&[]);
    (0..3).for_each(|_| _ = step(&mut trained));
    trained.export(dir.join("w.safetensors")).unwrap();
    trained.save(dir.join("saved")).unwrap();
    for source in ["w.safetensors", "saved", "saved/step-00000003"] {
        let mut run = start(&["--plan", "fsdp2", "--seed", "9"]);
        assert_ne!(hash(&run), hash(&trained));
        run.load(dir.join(source)).unwrap();
        assert_eq!((hash(&run), run.steps()), (hash(&trained), 0), "{source}");
    }
    let other = || Training::new(&args(&[]), |net| model(net, 3)).batch(4).freeze("body.*").start().unwrap();
    let error = other().load(dir.join("saved")).unwrap_err().to_string();
    assert!(error.contains("`head.weight` is [2, 8] but the model wants [3, 8]"), "{error}");
    let mut run = other();
    assert_eq!(run.load_matching(dir.join("w.safetensors")).unwrap(), ["head.bias", "head.weight"]);
    let body = run.session().read("body.weight").unwrap().into_owned();
    assert_eq!(body, trained.session().read("body.weight").unwrap().into_owned());
    run.step((("x", &[1.0f32; 16]), ("y", &[1.0f32; 12]))).unwrap();
    assert_eq!(body, run.session().read("body.weight").unwrap().into_owned(), "the body is frozen");
    let nothing = |net: &Net| net.at("z").linear(&net.input("x", F32, [net.batch(), 1]), 1).mean_all();
    let mut run = Training::new(&args(&[]), nothing).start().unwrap();
    let error = run.load_matching(dir.join("w.safetensors")).unwrap_err().to_string();
    assert!(error.starts_with("none of the 4 weights in "), "{error}");
    std::fs::remove_dir_all(dir).unwrap();
}
