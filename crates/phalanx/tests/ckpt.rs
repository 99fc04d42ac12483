//! Checkpoints: what any failure leaves behind, and that a run resumed from one goes on with the same bits.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use phalanx::Pin;
use phalanx::ckpt::{
    Checkpoint, Checkpoints, CkptError, Disk, Fault, FaultKind, Faulty, RunState, Storage, Writer, name_of,
    write,
};
use phalanx::internals::net::local::Local;
use phalanx::job::{Connection, Job};
use phalanx::models::MlpConfig;
use phalanx::pipeline::CompileError;
use phalanx::train::{Notice, Run, TrainConfig};
use phalanx::{Error, Feed, Optimizer, PortKind, Session, Trainer};

/// An empty directory that is removed at the end.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(test: &str) -> Dir {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("ckpt-{test}-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory can be made");
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

fn mlp() -> Trainer {
    let model = MlpConfig::regression([2, 5, 1]).training_graph(4).expect("the sizes are legal");
    Trainer::new(&model, Optimizer::adam()).expect("the model compiles")
}

fn step(trainer: &mut Trainer) {
    let (x, y) = (vec![0.1, 0.7, -0.3, 0.2, 0.9, 0.5, -0.4, 0.8], vec![1.0, -1.0, 0.5, 0.25]);
    trainer.step(&[("x", Feed::F32(&x)), ("y", Feed::F32(&y))], 0.01).expect("the step runs");
}

pub fn run_state(step: u64) -> RunState {
    RunState {
        step,
        tokens: 4 * step,
        loss: 0.5,
        evaluations: None,
        data: None,
        seed: 0,
        learning_rate: TrainConfig::default().lr(0.01).lr_floor(1.0).warmup(0).steps(9).learning_rate(),
        model: serde_json::Value::Null,
        config: serde_json::Value::Null,
        plan: String::new(),
        program: String::new(),
    }
}

/// All weights and states by name.
fn tensors(session: &Session) -> Vec<(String, Vec<u8>)> {
    let names = session.names(PortKind::Param).chain(session.names(PortKind::State));
    names
        .map(|name| (name.to_string(), session.read_bytes(name).expect("it can be read").into_owned()))
        .collect()
}

fn assert_holds(checkpoint: &Checkpoint, expected: &[(String, Vec<u8>)], what: &str) {
    checkpoint.verify().unwrap_or_else(|error| panic!("{what}: {error}"));
    for (name, bytes) in expected {
        assert_eq!(&checkpoint.tensor(name).expect("it has the tensor"), bytes, "{what}: {name}");
    }
}

#[test]
fn no_fault_of_any_call_costs_the_checkpoint_before() {
    let dir = Dir::new("faults");
    let mut trainer = mlp();
    step(&mut trainer);
    let first = tensors(trainer.session());
    let mut second = mlp();
    (0..2).for_each(|_| step(&mut second));
    let after_two = tensors(second.session());
    assert_ne!(first, after_two, "something was trained");
    let ends_here = [FaultKind::Kill, FaultKind::Stop];
    let kinds = FaultKind::ALL.into_iter().filter(|(_, kind)| !ends_here.contains(kind));
    for (name, kind) in kinds {
        for keep in [1, 3] {
            let mut call = 1;
            loop {
                let what = format!("{name} at call {call}, keep {keep}");
                let path = dir.0.join(format!("{name}-{keep}-{call}"));
                write_soundly(&path, keep, &mut trainer, 1);
                let storage = Arc::new(Faulty::new(Some(Fault { kind, call })));
                let faulty = Writer::new(storage.clone(), &path, keep);
                let written = faulty.prepare().map_err(Error::from);
                let written = written.and_then(|()| write(&faulty, second.session_mut(), run_state(2)));
                assert!(written.is_ok() || kind != FaultKind::Short, "{what}: a short write is no failure");
                check_aftermath(&path, written.is_ok(), [&first, &after_two], &what);
                drop(faulty);
                // The next run cleans up and goes on.
                write_soundly(&path, keep, &mut second, 3);
                let names = Disk.list(&path).expect("the directory can be read");
                assert!(names.iter().all(|name| !name.starts_with('.')), "{what}: {names:?}");
                if call > storage.calls() {
                    break;
                }
                call += 1;
            }
            assert!(call > 18, "{name}: only {call} calls were tried");
        }
    }
}

/// What a run does that has the directory for itself, on a disk without faults.
fn write_soundly(path: &Path, keep: usize, trainer: &mut Trainer, step: u64) {
    let sound = Writer::new(Arc::new(Disk), path, keep);
    sound.prepare().expect("the directory can be made, and leftovers removed");
    write(&sound, trainer.session_mut(), run_state(step)).expect("nothing fails");
}

/// After an attempt to add step 2 to step 1: the newest checkpoint is whole, and so is every other one.
fn check_aftermath(path: &Path, written: bool, states: [&[(String, Vec<u8>)]; 2], what: &str) {
    let checkpoints = Checkpoints::open(path);
    let steps = checkpoints.list().expect("the directory can be read");
    assert!(!steps.is_empty(), "{what}: all is lost");
    assert!(!written || steps.contains(&2), "{what}: {steps:?}");
    for &step in &steps {
        let checkpoint = checkpoints.checkpoint(step).expect("a committed checkpoint can be read");
        assert_holds(&checkpoint, states[step as usize - 1], what);
    }
}

/// Step and tensors of the newest checkpoint, if it can be used.
fn usable(checkpoints: &Checkpoints) -> Option<(u64, RunState, phalanx::StateHashes)> {
    let step = *checkpoints.list().ok()?.last()?;
    let checkpoint = checkpoints.checkpoint(step).ok()?;
    checkpoint.audit().ok()?;
    Some((step, checkpoint.manifest().run.clone(), checkpoint.hashes().ok()?))
}

#[test]
fn no_flipped_bit_of_any_file_is_taken_for_the_state_of_a_run() {
    let dir = Dir::new("flips");
    let mut trainer = mlp();
    step(&mut trainer);
    write_soundly(&dir.0, 1, &mut trainer, 20);
    let checkpoints = Checkpoints::open(&dir.0);
    let whole = usable(&checkpoints).expect("it is whole");
    checkpoints.check_latest().expect("it names the checkpoint");
    let inside = dir.0.join(name_of(20));
    let paths = [inside.join("manifest.json"), inside.join("rank-0000.safetensors"), dir.0.join("latest")];
    let (mut refused, mut random) = (0, phalanx_testkit::Rng::new(7));
    let flips = phalanx_testkit::cases(10_000) as usize;
    for number in 0..flips {
        let path = &paths[number % paths.len()];
        let bytes = std::fs::read(path).expect("it can be read");
        let mut flipped = bytes.clone();
        let bit = random.below(8 * bytes.len());
        flipped[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(path, &flipped).expect("it can be written");
        match usable(&checkpoints) {
            None => refused += 1,
            Some(found) => {
                assert_eq!(found, whole, "bit {bit} of {}", path.display());
                assert!(checkpoints.check_latest().is_err(), "bit {bit} of {}", path.display());
            }
        }
        std::fs::write(path, &bytes).expect("it can be written");
    }
    assert_eq!(refused, flips - flips / 3, "every flip in the manifest and in the tensors");
}

#[test]
fn a_checkpoint_under_the_name_of_another_step_is_refused() {
    let dir = Dir::new("renamed");
    let mut trainer = mlp();
    write_soundly(&dir.0, 1, &mut trainer, 20);
    std::fs::rename(dir.0.join(name_of(20)), dir.0.join(name_of(30))).expect("it can be renamed");
    let error = Checkpoints::open(&dir.0).checkpoint(30).expect_err("it is of step 20").to_string();
    assert!(
        error.ends_with("step-00000030 is called after another step than the 20 of its manifest"),
        "{error}"
    );
}

#[test]
fn what_is_no_number_is_not_saved() {
    let dir = Dir::new("nan");
    let mut trainer = mlp();
    let name = trainer.session().names(PortKind::Param).next().expect("it has weights").to_string();
    let elements = trainer.session().read(&name).expect("it can be read").len();
    trainer.session_mut().feed(&name, &vec![f32::INFINITY; elements]).expect("it can be set");
    let error =
        write(&Writer::new(Arc::new(Disk), &dir.0, 1), trainer.session_mut(), run_state(1)).unwrap_err();
    assert!(error.to_string().contains(&format!("tensor `{name}` has the value inf")), "{error}");
    assert_eq!(Checkpoints::open(&dir.0).list().expect("it can be read"), Vec::<u64>::new());
}

#[test]
fn a_session_of_another_model_is_refused() {
    let dir = Dir::new("other");
    let writer = Writer::new(Arc::new(Disk), &dir.0, 1);
    write(&writer, mlp().session_mut(), run_state(1)).expect("nothing fails");
    let checkpoint = Checkpoints::open(&dir.0).latest().expect("it can be read").expect("there is one");
    let wider = MlpConfig::regression([2, 6, 1]).training_graph(4).expect("the sizes are legal");
    let mut wider = Trainer::new(&wider, Optimizer::adam()).expect("the model compiles");
    let before = tensors(wider.session());
    let error = checkpoint.restore(wider.session_mut()).unwrap_err().to_string();
    assert!(error.contains("5") && error.contains("6") && error.contains("f32["), "{error}");
    assert_eq!(tensors(wider.session()), before, "nothing was changed");
    let sgd = MlpConfig::regression([2, 5, 1]).training_graph(4).expect("the sizes are legal");
    let mut sgd =
        Trainer::new(&sgd, Optimizer::new(phalanx::UpdateRule::Sgd { momentum: 0.0, nesterov: false }))
            .expect("the model compiles");
    let error = checkpoint.restore(sgd.session_mut()).unwrap_err().to_string();
    assert!(error.contains("state f32") && error.contains("absent in this run"), "{error}");
    assert!(matches!(checkpoint.tensor("none"), Err(CkptError::NoTensor { .. })));
}

/// A model that all plans can cut, on a text of its own.
fn config(dir: &Dir, plan: Option<&str>) -> TrainConfig {
    let data = dir.0.join("data.txt");
    std::fs::write(&data, "all work and no play makes jack a dull boy. ".repeat(40))
        .expect("it can be written");
    TrainConfig::default()
        .layers(Some(2))
        .heads(Some(4))
        .width(Some(32))
        .context(Some(16))
        .batch(8)
        .dropout(0.1)
        .steps(8)
        .warmup(3)
        .blocks_feature(8)
        .cores_per_device(1)
        .pin(Pin::Off)
        .data(Some(data))
        .plan(plan.map(Into::into))
        .checkpoint(Some(dir.0.join("checkpoints")))
        .every(Some(2))
        .resume(true)
}

/// Does so many steps: losses and the hash of the weights.
fn steps(run: &mut Run, count: usize) -> (Vec<u32>, String) {
    let losses = (0..count).map(|_| run.step().expect("the step runs").loss.to_bits()).collect();
    (losses, run.summary().expect("there is a summary").weights_hash)
}

/// What a run without checkpoints comes to.
fn uninterrupted(dir: &Dir) -> (Vec<u32>, String) {
    let plain = config(dir, None).checkpoint(None).every(None).resume(false);
    steps(&mut Run::new(plain).expect("it starts"), 8)
}

#[test]
fn a_run_goes_on_with_the_same_bits_on_other_devices() {
    let dir = Dir::new("chain");
    let expected = uninterrupted(&dir);
    let mut found = (Vec::new(), String::new());
    for plan in [Some("dp4"), Some("fsdp2"), Some("tp2-pp2"), None] {
        let mut run = Run::new(config(&dir, plan)).expect("it starts");
        let (losses, hash) = steps(&mut run, 2);
        found.0.extend(losses);
        found.1 = hash;
        let report = run.summary().expect("there is a summary");
        assert_eq!(report.steps as usize, found.0.len());
        assert!(report.snapshot_bytes > 0 && report.peak_bytes > report.snapshot_bytes);
    }
    assert_eq!(found, expected);
    let checkpoints = Checkpoints::open(dir.0.join("checkpoints"));
    assert_eq!(checkpoints.list().expect("it can be read"), [4, 6, 8], "three are kept");
    let last = checkpoints.latest().expect("it can be read").expect("there is one");
    last.verify().expect("it is whole");
    assert_eq!((last.manifest().run.step, last.manifest().run.tokens), (8, 8 * 8 * 16));
    let named = std::fs::read_to_string(dir.0.join("checkpoints/latest")).expect("it can be read");
    assert_eq!(named.lines().next(), Some("step-00000008"));
    checkpoints.check_latest().expect("it has the checksum of the manifest");
}

/// Does so many steps on ranks that are threads.
fn on_ranks(config: &TrainConfig, ranks: u32, count: usize) -> Vec<(Vec<u32>, String, Vec<Notice>)> {
    thread::scope(|scope| {
        let rank = |local: Local| {
            scope.spawn(move || {
                let connection = Connection::new(Arc::new(local), Duration::from_secs(60), Arc::new(|_| ()));
                let job = Job::start(&connection, config.rank_options().expect("options are JSON"))
                    .expect("the ranks fit together");
                let mut run = Run::in_job(config.clone(), &job, &mut |_| ()).expect("it starts");
                let (losses, hash) = steps(&mut run, count);
                (losses, hash, run.take_notices())
            })
        };
        let threads: Vec<_> = Local::job(ranks).into_iter().map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank fails")).collect()
    })
}

#[test]
fn ranks_write_together_and_any_number_of_them_reads() {
    let dir = Dir::new("ranks");
    let expected = uninterrupted(&dir);
    let mut losses = Vec::new();
    for (plan, ranks) in [("fsdp4", 4), ("dp2", 2)] {
        let config = config(&dir, Some(plan)).sync_checkpoints(true);
        let found = on_ranks(&config, ranks, 2);
        assert!(found.iter().all(|rank| rank.0 == found[0].0 && rank.1 == found[0].1), "{plan}");
        losses.extend(&found[0].0);
        let checkpoint = Checkpoints::open(dir.0.join("checkpoints")).latest().expect("it can be read");
        let checkpoint = checkpoint.expect("there is one");
        checkpoint.verify().expect("it is whole");
        assert_eq!(checkpoint.manifest().files.len(), ranks as usize);
        assert_eq!(checkpoint.manifest().run.step as usize, losses.len());
    }
    // Without waiting, the commit comes with a later step, here with the last one.
    let found = on_ranks(&config(&dir, Some("tp2")), 2, 4);
    losses.extend(&found[0].0);
    assert_eq!((losses, found[0].1.clone()), expected);
    assert_eq!(Checkpoints::open(dir.0.join("checkpoints")).list().expect("it can be read"), [4, 6, 8]);
}

#[test]
fn all_ranks_hear_of_a_file_that_cannot_be_written() {
    let dir = Dir::new("ranks_fail");
    let config = config(&dir, Some("dp2")).sync_checkpoints(true).drill(Some("sync@save:5".into()));
    for (_, _, notices) in on_ranks(&config, 2, 2) {
        let warning = notices.last().expect("there is a warning").to_string();
        assert!(
            warning.starts_with("warning: step-00000002 is not saved: rank 0: cannot sync "),
            "{warning}"
        );
        assert!(warning.contains("rank-0000.safetensors"), "{warning}");
    }
    assert_eq!(Disk.list(&dir.0.join("checkpoints")).expect("it can be read"), Vec::<String>::new());
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_is_used() {
    let dir = Dir::new("damage");
    let expected = uninterrupted(&dir);
    steps(&mut Run::new(config(&dir, Some("fsdp2"))).expect("it starts"), 6);
    let path = dir.0.join("checkpoints").join(name_of(6));
    let file = path.join("rank-0000.safetensors");
    let mut bytes = std::fs::read(&file).expect("it can be read");
    let old = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&bytes));
    *bytes.last_mut().expect("it is not empty") ^= 1;
    std::fs::write(&file, &bytes).expect("it can be written");
    std::fs::write(dir.0.join("checkpoints").join(name_of(4)).join("manifest.json"), "{}")
        .expect("it can be written");
    let mut run = Run::new(config(&dir, None)).expect("it starts");
    let notices: Vec<String> = run.take_notices().iter().map(ToString::to_string).collect();
    let new = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&bytes));
    for part in ["warning: step-00000006 is damaged", "rank-0000.safetensors", &old, &new] {
        assert!(notices[0].contains(part), "`{part}` in {notices:?}");
    }
    assert!(notices[1].contains("manifest.json is no manifest: missing field `format`"), "{notices:?}");
    assert!(notices[2].starts_with("note: resumed after step 2"), "{notices:?}");
    let (losses, hash) = steps(&mut run, 6);
    assert_eq!((&losses[..], &hash), (&expected.0[2..], &expected.1));
    drop(run);
    let checkpoints = Checkpoints::open(dir.0.join("checkpoints"));
    assert_eq!(checkpoints.list().expect("it can be read"), [4, 6, 8], "the damaged ones are written again");
    checkpoints
        .list()
        .unwrap()
        .into_iter()
        .for_each(|step| checkpoints.checkpoint(step).unwrap().verify().unwrap());
}

#[test]
fn nothing_usable_is_an_error_and_nothing_at_all_is_not() {
    let dir = Dir::new("unusable");
    let mut run = Run::new(config(&dir, None)).expect("it starts");
    let note = run.take_notices().remove(0).to_string();
    assert!(note.ends_with("has no checkpoint to resume: starting from scratch"), "{note}");
    steps(&mut run, 2);
    drop(run);
    let fresh = config(&dir, None).resume(false);
    let error = Run::new(fresh).err().expect("it would mix two runs").to_string();
    assert!(error.contains("the last one of step 2") && error.contains("--resume"), "{error}");
    let other = config(&dir, None).width(Some(64));
    let error = Run::new(other).err().expect("the model is another one").to_string();
    assert!(error.contains(" is 128 in the checkpoint, but 256 in this run"), "{error}");
    std::fs::remove_file(dir.0.join("checkpoints").join(name_of(2)).join("rank-0000.safetensors")).unwrap();
    let error = Run::new(config(&dir, None)).err().expect("the checkpoint is damaged").to_string();
    assert!(
        error.contains("no checkpoint in") && error.contains("rank-0000.safetensors: No such file"),
        "{error}"
    );
}

#[test]
fn a_resumed_run_says_which_settings_are_new() {
    let dir = Dir::new("changed");
    steps(&mut Run::new(config(&dir, None)).expect("it starts"), 2);
    let mut run = Run::new(config(&dir, None).lr(0.5).seed(9).cores(1)).expect("it starts");
    let note = run.take_notices().remove(0).to_string();
    assert!(note.ends_with("; other than before: seed is 9 (was 0), lr is 0.5 (was 0.003)"), "{note}");
}

#[test]
fn a_checkpoint_that_fails_is_a_warning_unless_the_run_is_strict() {
    let dir = Dir::new("strict");
    let expected = uninterrupted(&dir);
    // The calls 5 to 22 write the first checkpoint.
    let drill = config(&dir, None).drill(Some("enospc@save:9".into()));
    let mut run = Run::new(drill.clone()).expect("it starts");
    assert_eq!(steps(&mut run, 8), expected, "training goes on");
    let notices: Vec<String> = run.take_notices().iter().map(ToString::to_string).collect();
    let warning = notices.last().expect("there is a warning");
    for part in ["step-00000002 is not saved", "cannot sync", "rank-0000.safetensors", "No space left"] {
        assert!(warning.contains(part), "`{part}` in {warning}");
    }
    assert_eq!(Checkpoints::open(dir.0.join("checkpoints")).list().expect("it can be read"), [4, 6, 8]);
    let strict = Dir::new("strict_run");
    let drill = config(&strict, None).drill(drill.drill).strict(true);
    let mut run = Run::new(drill).expect("it starts");
    let error = (0..8).find_map(|_| run.step().err()).expect("the run ends");
    assert!(matches!(error, Error::Save(_)), "{error}");
}

#[test]
fn a_run_that_diverges_leaves_the_last_good_checkpoint() {
    let dir = Dir::new("diverges");
    let drill = config(&dir, None).drill(Some("nan@0:5".into())).every(Some(1));
    let mut run = Run::new(drill).expect("it starts");
    let error = (0..8).find_map(|_| run.step().err()).expect("the run ends");
    assert!(matches!(error, Error::Diverged { step: 5, .. }), "{error}");
    drop(run);
    let checkpoints = Checkpoints::open(dir.0.join("checkpoints"));
    assert_eq!(checkpoints.list().expect("it can be read"), [2, 3, 4]);
}

#[test]
fn snapshots_count_as_memory() {
    let dir = Dir::new("memory");
    let plain =
        config(&dir, None).checkpoint(None).every(None).resume(false).recompute(phalanx::Recompute::None);
    let peak = Run::new(plain.clone()).expect("it starts").summary().expect("there is a summary").peak_bytes;
    let limited = plain.memory(Some(format!("{peak}B")));
    Run::new(limited.clone()).expect("it fits to the byte");
    let saving = limited.checkpoint(config(&dir, None).checkpoint).every(Some(2));
    let Err(Error::Compile(CompileError::OverBudget(over))) = Run::new(saving.clone()) else {
        panic!("there is no room for a snapshot")
    };
    assert_eq!(over.alive[0].1, "snapshot");
    let snapshot = over.alive[0].2 as usize;
    assert_eq!(over.need as usize, peak + snapshot);
    let enough = saving.memory(Some(format!("{}B", peak + snapshot)));
    let summary = Run::new(enough).expect("it fits to the byte").summary().expect("there is a summary");
    assert_eq!((summary.peak_bytes, summary.snapshot_bytes), (peak + snapshot, snapshot));
}
