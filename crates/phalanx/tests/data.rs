//! Training on a user's data: one rank makes the tokens and all see them; prompts and mixtures are the same for every plan.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use phalanx::internals::net::local::Local;
use phalanx::job::{Connection, Job};
use phalanx::train::{Run, StartPhase, TrainConfig};
use phalanx::{Overlap, data::Dataset};

/// An empty directory that is removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(test: &str) -> Dir {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("data-{test}-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory can be made");
        Dir(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("a file can be written");
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Lines of prompts of different lengths, with answers.
fn lines() -> String {
    let line = |number: usize| {
        let prompt = format!("{}=", vec!["1"; number % 7 + 1].join("+"));
        format!("{{\"prompt\": \"{prompt}\", \"completion\": \"{}\"}}\n", number % 7 + 1)
    };
    (0..200).map(line).collect()
}

fn tiny(dir: &Dir, data: String) -> TrainConfig {
    TrainConfig::default()
        .layers(Some(1))
        .heads(Some(2))
        .width(Some(16))
        .context(Some(8))
        .batch(8)
        .steps(4)
        .overlap(Overlap::Off)
        .data(Some(data.into()))
        .data_cache(Some(dir.0.join("cache")))
}

/// Losses of all steps and the hash of the weights.
fn trained(mut run: Run) -> (Vec<u32>, String) {
    while !run.is_done() {
        run.step().expect("a step runs");
    }
    let losses = run.losses().iter().map(|loss| loss.to_bits()).collect();
    (losses, run.summary().expect("there are steps").weights_hash)
}

#[test]
fn the_first_rank_tokenizes_and_reports_it() {
    let dir = Dir::new("ranks");
    let data = dir.write("a.jsonl", &lines());
    let config = tiny(&dir, data.display().to_string()).plan(Some("dp2".into())).devices(Some(2));
    let size = lines().len() as u64;
    let start = |local: Local| {
        let connection = Connection::new(Arc::new(local), Duration::from_secs(600), Arc::new(|_| ()));
        let options = config.rank_options().expect("options are JSON");
        let job = Job::start(&connection, options).expect("the ranks fit together");
        let mut tokenized = Vec::new();
        let run = Run::in_job(config.clone(), &job, &mut |phase| {
            if let StartPhase::Tokenizing { done, total } = phase {
                tokenized.push((done, total));
            }
        });
        (tokenized.last().copied(), trained(run.expect("it starts")))
    };
    let ranks: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = Local::job(2).into_iter().map(|local| scope.spawn(|| start(local))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank fails")).collect()
    });
    assert_eq!(ranks[0].0, Some((size, size)));
    assert_eq!(ranks[1].0, None, "the other one finds the tokens");
    let alone = config.clone().plan(None).devices(None);
    let tokenizes_nothing = &mut |phase: StartPhase<'_>| {
        assert!(!matches!(phase, StartPhase::Tokenizing { .. }), "the tokens are there: {phase:?}");
    };
    let again = Run::with_progress(alone, tokenizes_nothing).expect("it starts");
    let alone = trained(again);
    assert_eq!((&ranks[0].1, &ranks[1].1), (&alone, &alone));
}

#[test]
fn masked_prompts_give_the_same_bits_on_every_plan_and_microbatch() {
    let dir = Dir::new("masked");
    let data = dir.write("a.jsonl", &lines());
    let config = tiny(&dir, data.display().to_string()).mask_prompt(true);
    let one = trained(Run::new(config.clone()).expect("it starts"));
    let with_prompts = trained(Run::new(config.clone().mask_prompt(false)).expect("it starts"));
    assert_ne!(one, with_prompts);
    for plan in ["dp2", "fsdp2", "tp2", "sp2"] {
        let found = Run::new(config.clone().plan(Some(plan.into())).devices(Some(2))).expect("it starts");
        assert_eq!(trained(found), one, "{plan}");
    }
    let parts = Run::new(config.clone().accumulate(4)).expect("it starts");
    assert_eq!(trained(parts), one, "microbatches with different numbers of answers");
}

/// The loss of a batch is the mean over its answers, however they are spread over the sequences: it is computed again from
/// the losses of single sequences, weighted by the number of their answers.
#[test]
fn the_loss_is_the_mean_over_all_answers_of_the_batch() {
    let dir = Dir::new("mean");
    let data = dir.write("a.jsonl", &lines());
    let config = tiny(&dir, data.display().to_string()).mask_prompt(true).steps(1);
    let whole = f64::from(Run::new(config.clone()).expect("it starts").step().expect("a step").loss);
    let source = phalanx::data::DataSource { mask_prompt: true, ..phalanx::data::DataSource::new(&data) };
    let set = Dataset::open(&source, 0, &mut |_, _| ()).expect("it can be read");
    let (mut tokens, mut targets) = ([0; 64], [0; 64]);
    set.batch(0, 8, 8, &mut tokens, &mut targets);
    let graph = config.build_model(256).expect("a model").training_graph(1, 8).expect("a graph");
    let mut session = phalanx::Trainer::with_settings(&graph, &config.settings(&graph).expect("settings"))
        .expect("it compiles");
    let (mut sum, mut count) = (0.0, 0.0);
    for (tokens, targets) in tokens.chunks(8).zip(targets.chunks(8)) {
        let answers =
            targets.iter().filter(|&&target| target != phalanx::models::IGNORE_LABEL).count() as f64;
        session.session_mut().feed("tokens", &tokens.to_vec()).expect("they fit");
        session.session_mut().feed("targets", &targets.to_vec()).expect("they fit");
        // A learning rate of 0 leaves the weights as they are.
        let run = session.launch(0.0).expect("it runs");
        sum += answers * f64::from(session.wait(run).expect("it runs").loss);
        count += answers;
    }
    assert!(count < 48.0, "{count} answers");
    assert!((sum / count - whole).abs() < 1e-5, "{} is not {whole}", sum / count);
}

#[test]
fn a_mixture_is_resumed_with_the_same_bits() {
    let dir = Dir::new("mixture");
    let a = dir.write("a.jsonl", &lines());
    let b = dir.write("b.txt", &"A text of another kind.\n".repeat(40));
    let data = format!("{}=0.25; {}=0.75", a.display(), b.display());
    let config = tiny(&dir, data).plan(Some("dp2".into())).devices(Some(2));
    let (losses, hash) = trained(Run::new(config.clone().plan(None).devices(None)).expect("it starts"));
    let saved = config.checkpoint(Some(dir.0.join("checkpoints"))).every(Some(2)).sync_checkpoints(true);
    let mut first = Run::new(saved.clone()).expect("it starts");
    for &loss in &losses[..2] {
        assert_eq!(first.step().expect("a step").loss.to_bits(), loss);
    }
    drop(first);
    let (rest, end) = trained(Run::new(saved.resume(true)).expect("it resumes"));
    assert_eq!((&rest[..], end), (&losses[2..], hash));
}
