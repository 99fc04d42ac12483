//! Transfers beside computing: the same bits, memory as predicted, steps about as long as predicted.

use phalanx::internals::overlap::Overview;
use phalanx::ir::graph::Graph;
use phalanx::models::ModelConfig;
use phalanx::pipeline::{self, CompileError, Overlap, Settings};
use phalanx::{ExecutionMode, Program, Recompute, Trainer};

use crate::training::{ONE, PlanCase, in_flight, settings};

const BATCH: usize = 8;
const TIME: usize = 16;

fn model() -> Graph {
    let config = ModelConfig::preset("gpt2", "nano").expect("the preset exists").with_dropout(0.1);
    config.training_graph(BATCH, TIME).expect("the sizes are legal")
}

const PLANS: [PlanCase; 9] = [
    ("dp", 2, None),
    ("dp", 4, Some(2)),
    ("fsdp", 4, None),
    ("fsdp", 2, Some(2)),
    ("zero1", 4, None),
    ("tp", 2, Some(2)),
    ("sp", 4, None),
    ("dp2-tp2", 4, None),
    ("tp2-pp2", 4, None),
];

/// A network so slow that transfers are longer than tasks, and still quick to test.
fn link() -> phalanx::Topology {
    "20us,2GB".parse().expect("a link")
}

#[test]
fn overlap_changes_no_bits() {
    let model = model();
    let one = in_flight(&model, &settings(&model, ONE));
    for (number, plan) in PLANS.into_iter().enumerate() {
        let base = settings(&model, plan);
        let on = base.clone().overlap(Overlap::On);
        assert_eq!(in_flight(&model, &on), one, "{plan:?}, beside computing");
        // Every plan, and every third of these.
        let other = match number % 3 {
            0 => base.topology(Some(link())),
            1 => on.execution(ExecutionMode::Stepped(3)),
            _ => base.topology(Some(link())).recompute(Recompute::Full),
        };
        assert_eq!(in_flight(&model, &other), one, "{plan:?}, case {number}");
    }
}

/// The end of the last byte that an operation or the host touches in each arena.
fn touched(program: &Program) -> Vec<u64> {
    let mut ends = vec![0; program.lanes().len()];
    for operation in program.operations() {
        let slices = program.slices(&operation.reads).iter().chain(program.slices(&operation.writes));
        for slice in slices.chain([&operation.scratch]) {
            ends[slice.lane as usize] = slice.end().max(ends[slice.lane as usize]);
        }
    }
    for tile in program.ports().iter().flat_map(|port| &port.tiles) {
        ends[tile.slice.lane as usize] = tile.slice.end().max(ends[tile.slice.lane as usize]);
    }
    ends.truncate(program.homes().count());
    ends
}

/// What a run touches ends where its arena ends, on every device, and the arena is what the schedule says.
#[test]
fn the_high_water_mark_is_the_predicted_peak() {
    let model = model();
    for plan in PLANS {
        for overlap in [Overlap::Off, Overlap::On] {
            let settings = settings(&model, plan).overlap(overlap);
            let layout = pipeline::lay_out(&model, &settings, |_, _| ()).expect("the model compiles");
            let program = pipeline::freeze(&layout, &settings).expect("the program is sound");
            let predicted: Vec<u64> = layout.schedule.devices().iter().map(|lane| lane.peak).collect();
            let touched: Vec<u64> = touched(&program).iter().map(|end| end.next_multiple_of(64)).collect();
            assert_eq!(touched, predicted, "{plan:?}");
            let trainer = Trainer::with_settings(&model, &settings).expect("the model compiles");
            let arenas: Vec<u64> = trainer.session().device_bytes().iter().map(|&b| b as u64).collect();
            assert_eq!(arenas, predicted, "{plan:?}");
        }
    }
}

/// Arenas are hardly larger than what is alive at once, even if everything is computed again, where many lives are short.
#[test]
fn arenas_are_packed_within_three_percent() {
    let mut worst = (0.0_f64, String::new());
    let mut pack = |family: &str, size: &str, plan: PlanCase, change: &dyn Fn(&mut Settings)| {
        let config = ModelConfig::preset(family, size).expect("the preset exists");
        let model = config.training_graph(BATCH, 64).expect("the sizes are legal");
        let mut settings = settings(&model, plan);
        change(&mut settings);
        let layout = pipeline::lay_out(&model, &settings, |_, _| ()).expect("the model compiles");
        for lane in layout.schedule.devices() {
            let ratio = lane.peak as f64 / lane.live as f64;
            if ratio > worst.0 {
                worst = (
                    ratio,
                    format!("{family} {size} {plan:?} {:?} {}", settings.topology, settings.recompute),
                );
            }
        }
    };
    for family in ["gpt2", "llama"] {
        for plan in [ONE].into_iter().chain(PLANS.into_iter().filter(|plan| plan.0 != "sp")) {
            pack(family, "nano", plan, &|_| ());
            pack(family, "nano", plan, &|settings| settings.recompute = Recompute::Full);
        }
        for plan in [("dp", 2, None), ("fsdp", 4, None)] {
            pack(family, "nano", plan, &|settings| settings.topology = Some(link()));
        }
        pack(family, "tiny", ONE, &|_| ());
        pack(family, "tiny", ("fsdp", 2, None), &|settings| settings.recompute = Recompute::Full);
    }
    assert!(worst.0 > 0.0 && worst.0 <= 1.03, "{worst:?}");
}

#[test]
fn what_does_not_fit_is_refused_with_the_tensors_to_blame() {
    let model = model();
    let base = settings(&model, ("fsdp", 2, None));
    let peak = |settings: &Settings| {
        pipeline::lay_out(&model, settings, |_, _| ()).map(|layout| layout.schedule.peak())
    };
    let none = base.clone().recompute(Recompute::None);
    let full = base.clone().recompute(Recompute::Full);
    let (most, least) = (peak(&none).expect("it compiles"), peak(&full).expect("it compiles"));
    assert!(least < most, "{least} {most}");
    // Between the two, as little is computed again as suffices.
    let budget = (most + least) / 2;
    let some = peak(&base.clone().memory(Some(budget))).expect("it fits");
    assert!(some <= budget, "{some} {budget}");
    for (settings, need) in [(none, most), (base, least)] {
        let error = peak(&settings.memory(Some(least / 2))).expect_err("it does not fit");
        let CompileError::OverBudget(over) = error else { panic!("{error}") };
        assert_eq!((over.need, over.budget), (need, least / 2));
        assert!(over.alive.is_sorted_by(|a, b| a.2 >= b.2) && over.alive.len() > 3);
        assert!(over.alive.iter().map(|entry| entry.2).sum::<u64>() <= over.need);
        let text = over.to_string();
        assert!(text.contains(&over.alive[0].0), "{text}");
        // Only what would help is advised, with the bytes that it saves.
        let recompute = format!("--recompute full saves {};", phalanx::ir::bytes_text(most - least, 2));
        assert_eq!(text.contains(&recompute), need == most, "{recompute}: {text}");
        assert!(!text.contains("--overlap"), "there is no overlap: {text}");
        assert!(text.contains("more shards") && text.contains("of parameters and optimizer state"), "{text}");
    }
}

/// The scheduler hides what it can, and never makes a step longer.
#[test]
fn overlap_is_predicted_to_pay() {
    let model = model();
    for (plan, devices, microbatches) in [PLANS[0], PLANS[2], PLANS[3], PLANS[8]] {
        let settings = settings(&model, (plan, devices, microbatches)).topology(Some(link()));
        let overview = Overview::new(&model, &settings).expect("the model compiles");
        let (before, after) = overview.totals();
        assert!(after.step <= before.step && after.exposed <= before.exposed, "{plan}: {before:?} {after:?}");
        assert!(after.lower_bound <= after.step, "{plan}: {after:?}");
        for row in overview.transfers() {
            assert!(row.hidden <= row.time, "{plan}: {row:?}");
        }
        let hash = || pipeline::compile(&model, &settings).expect("the model compiles").hash();
        assert_eq!(hash(), hash(), "{plan}: the same costs give the same program");
        let report = overview.report();
        let spans: usize = report.timelines[0].lanes.iter().map(|lane| lane.spans.len()).sum();
        assert!(spans > 100 && report.memory.len() == devices, "{plan}");
        for curve in &report.memory {
            assert!(curve.peak <= after.peak, "{plan}: what is alive fits the arena");
        }
    }
}
