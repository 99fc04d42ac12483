//! Times that are made up, on the program of a small model on two devices.

use phalanx_models::ModelConfig;
use phalanx_program::Program;

use super::sums::Times;
use super::*;
use crate::pipeline::{Overlap, compile};
use crate::{Goal, Link, Optimizer, PlanChoice};

const PEAKS: Peaks = Peaks { cores: 1, gflops: 100.0, gb_per_s: 10.0 };

/// A step on two devices, whose transfers have lanes of their own.
fn program() -> Program {
    let ModelConfig::Gpt2(tiny) = ModelConfig::preset("gpt2", "nano").expect("a preset") else {
        unreachable!("a preset is of the family it is asked for")
    };
    let model = phalanx_models::Gpt2Config { layers: 1, vocab: 32, context: 8, ..tiny };
    let graph = ModelConfig::Gpt2(model).training_graph(8, 8).expect("the sizes are legal");
    let choice = PlanChoice::default().plan(Some("dp2".into()));
    let plan = choice.resolve(&graph).expect("the plan suits the model");
    let link: Link = "50us,1Gbit".parse().expect("a link");
    let goal = Goal::Train(Optimizer::adamw(0.1));
    let settings =
        Settings { plan, topology: Some(link.into()), overlap: Overlap::On, cores: 1, ..Settings::new(goal) };
    compile(&graph, &settings).expect("the model compiles")
}

#[test]
fn rows_and_idle_time_are_all_of_the_computing_lanes() {
    let program = program();
    let count = program.operations().len();
    let seconds: Vec<f64> = (0..count).map(|at| 1e-3 * (1 + at % 3) as f64).collect();
    let times = Times { program: &program, seconds: &seconds, wall: 2e-3 * count as f64, steps: 4 };
    let computing: usize = program.homes().map(|lane| program.operations_of(lane).len()).sum();
    assert!(program.lanes().len() > 2 && computing < count, "transfers have lanes of their own");
    let by_kernel = times.roofline(By::Kernel, PEAKS, 150.0);
    for by in [By::Kernel, By::Layer, By::Operation] {
        let roofline = times.roofline(by, PEAKS, 150.0);
        let shares: f64 = roofline.rows.iter().map(|row| row.share).sum();
        assert!((shares + roofline.idle_share - 1.0).abs() < 1e-9, "{by:?}: {shares}");
        assert_eq!(roofline.rows.iter().map(|row| row.launches).sum::<usize>(), computing, "{by:?}");
        assert!(roofline.rows.is_sorted_by(|a, b| a.ms >= b.ms), "{by:?}");
        assert!((roofline.gflops - by_kernel.gflops).abs() < 1e-9 * by_kernel.gflops, "{by:?}");
    }
    assert!((by_kernel.ms_per_step - 0.5 * count as f64).abs() < 1e-9);
    assert!((by_kernel.peak_share - by_kernel.gflops / 150.0).abs() < 1e-12 && by_kernel.gflops > 0.0);
    for lane in &by_kernel.lanes {
        let sum = lane.computing_ms + lane.moving_ms + lane.idle_ms;
        assert!((sum - by_kernel.ms_per_step).abs() < 1e-9);
        assert_eq!(lane.beside, lane.computing_ms == 0.0, "{lane:?}");
    }
    assert_eq!(by_kernel.lanes.iter().filter(|lane| !lane.beside).count(), by_kernel.devices);
}
