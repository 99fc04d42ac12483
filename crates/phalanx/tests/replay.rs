//! One replayed step allocates nothing, and its arena is what the schedule predicted.
//!
//! A binary of its own, and one test: the allocator counts for the whole process.

use phalanx::ir::graph::Graph;
use phalanx::models::ModelConfig;
use phalanx::pipeline::{Settings, compile_observed};
use phalanx::{Feed, Goal, Optimizer, Plan, Trainer};
use phalanx_schedule::Schedule;
use phalanx_testkit::allocations::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BATCH: usize = 4;
const TIME: usize = 32;

fn model(family: &str, batch: usize, time: usize) -> Graph {
    let config = ModelConfig::preset(family, "nano").expect("the preset exists").with_dropout(0.1);
    config.training_graph(batch, time).expect("the sizes are legal")
}

fn settings(cores: usize, microbatches: usize) -> Settings {
    let goal = Goal::Train(Optimizer::adamw(0.1).clip(Some(1.0)));
    Settings::new(goal).cores(cores).plan(Plan { microbatches, ..Plan::default() })
}

/// The schedule that the pipeline makes on the way.
fn scheduled(model: &Graph, settings: &Settings) -> Schedule {
    let mut text = String::new();
    let observe = |stage: &str, level: &dyn std::fmt::Display| {
        if stage == "schedule" {
            text = level.to_string();
        }
    };
    compile_observed(model, settings, observe).expect("the model compiles");
    text.parse().expect("a printed schedule parses")
}

fn a_step_allocates_nothing(family: &str, cores: usize, microbatches: usize) {
    let settings = settings(cores, microbatches);
    let mut trainer =
        Trainer::with_settings(&model(family, BATCH, TIME), &settings).expect("the model compiles");
    let tokens: Vec<i64> = (0..BATCH * TIME).map(|i| (i * 7 % 256) as i64).collect();
    let targets: Vec<i64> = (0..BATCH * TIME).map(|i| (i * 11 % 256) as i64).collect();
    let feeds = [("tokens", Feed::I64(&tokens)), ("targets", Feed::I64(&targets))];
    let mut counts = [0; 3];
    let mut losses = [0.0; 3];
    for (count, loss) in counts.iter_mut().zip(&mut losses) {
        let before = allocations::count();
        *loss = trainer.step(&feeds, 1e-3).expect("the step runs").loss;
        *count = allocations::count() - before;
    }
    assert_eq!(counts, [0; 3], "allocations of {family} on {cores} cores, {microbatches} microbatches");
    assert!(losses[2] < losses[0], "the steps train: {losses:?}");
}

fn the_arena_is_the_predicted_peak(family: &str) {
    // Large enough for activations, not gradients, to make the difference between microbatches.
    let model = model(family, 16, 128);
    let mut arenas = Vec::new();
    for microbatches in [1, 2, 4] {
        let settings = settings(2, microbatches);
        let schedule = scheduled(&model, &settings);
        let trainer = Trainer::with_settings(&model, &settings).expect("the model compiles");
        let arena = trainer.session().arena_bytes() as u64;
        assert_eq!(arena, schedule.peak(), "{family}, {microbatches} microbatches");
        assert_eq!(
            trainer.session().program().arena(),
            schedule.peak(),
            "{family}, {microbatches} microbatches"
        );
        arenas.push(arena);
    }
    assert!(arenas.is_sorted_by(|a, b| a > b), "{family}: more microbatches need less memory: {arenas:?}");
}

/// How much larger than the unavoidable bytes an arena may be.
const LOOSENESS: f64 = 1.03;

fn the_arena_is_tight(family: &str, microbatches: usize) {
    let schedule = scheduled(&model(family, 8, 128), &settings(2, microbatches));
    let ratio = schedule.peak() as f64 / schedule.lanes[0].live as f64;
    assert!(
        (1.0..=LOOSENESS).contains(&ratio),
        "{family}: {} of {} bytes",
        schedule.peak(),
        schedule.lanes[0].live
    );
}

#[test]
fn a_replayed_step_allocates_nothing_and_fits_its_arena() {
    let before = allocations::count();
    drop(std::hint::black_box(vec![1u8; 100]));
    assert!(allocations::count() > before, "the allocator counts");
    for family in ["gpt2", "llama"] {
        for (cores, microbatches) in [(1, 1), (2, 1), (2, 2)] {
            a_step_allocates_nothing(family, cores, microbatches);
        }
        the_arena_is_the_predicted_peak(family);
        the_arena_is_tight(family, 1);
    }
    the_arena_is_tight("gpt2", 2);
}

#[test]
fn elements_of_another_type_are_refused_by_their_type() {
    let model =
        phalanx::models::MlpConfig::regression([2, 5, 1]).training_graph(4).expect("the sizes are legal");
    let mut trainer = phalanx::Trainer::new(&model, phalanx::Optimizer::adam()).expect("the model compiles");
    let error = trainer.session_mut().feed("x", &vec![1i64; 4]).expect_err("x holds floats").to_string();
    assert_eq!(error, "`x` is f32[4, 2], not of i64 elements");
    let error = trainer.session_mut().feed("x", &vec![1.0; 4]).expect_err("x has eight").to_string();
    assert_eq!(error, "`x` is f32[4, 2] of 32 bytes; 16 were given");
}
