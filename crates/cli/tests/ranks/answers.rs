//! One answer: the bits depend on no number of ranks.

use super::common::{Dir, SMALL, json_lines};
use super::mpi::Launcher;

/// Plans and their devices.
const PLANS: &[(&str, &str)] = &[
    ("dp", "2"),
    ("dp", "4"),
    ("dp", "8"),
    ("fsdp", "2"),
    ("fsdp", "4"),
    ("fsdp", "8"),
    ("zero1", "4"),
    ("tp", "2"),
    ("tp", "4"),
    ("tp", "8"),
    ("sp", "4"),
    ("pp", "2"),
    ("pp", "4"),
    ("dp2-tp2", "4"),
    ("fsdp2-tp2", "4"),
    ("dp2-pp2", "4"),
    ("tp2-pp2", "4"),
    ("fsdp2-tp2-pp2", "8"),
    ("dp2-sp2-pp2", "8"),
];

/// A step whose sums all plans can cut: four layers for four stages, eight heads for eight devices.
const STEP: &str = "step --json --steps 2 --layers 4 --heads 8 --width 32 --context 16 --batch 16 --blocks-feature 8 \
                    --cores-per-device 1";

fn step<'a>(extra: &[&'a str]) -> Vec<&'a str> {
    STEP.split_whitespace().chain(extra.iter().copied()).collect()
}

fn alone(extra: &[&str]) -> serde_json::Value {
    let line = json_lines(&step(extra)).remove(0);
    line["weights_hash"].clone()
}

fn hash(launcher: Launcher, ranks: u32, extra: &[&str]) -> serde_json::Value {
    launcher.run(ranks, &step(extra)).json()["weights_hash"].clone()
}

#[test]
fn every_plan_gives_the_same_bits_on_two_and_four_ranks() {
    let one = alone(&[]);
    for launcher in Launcher::installed().into_iter().take(1) {
        for &(plan, devices) in PLANS {
            for ranks in [2, 4].into_iter().filter(|&ranks| ranks <= devices.parse().unwrap()) {
                // Every rank would try all ways to overlap; `phalanx/tests/ranks.rs` does that for every plan.
                let args = ["--plan", plan, "--devices", devices, "--overlap", "off"];
                assert_eq!(hash(launcher, ranks, &args), one, "{plan} on {devices} devices of {ranks} ranks");
            }
        }
    }
}

#[test]
fn three_ranks_and_the_other_library_give_the_same_bits() {
    let one = alone(&[]);
    for launcher in Launcher::installed() {
        for (plan, devices, ranks) in [("fsdp", "8", 3), ("fsdp2-tp2", "4", 2), ("dp2-pp2", "4", 4)] {
            let found = hash(launcher, ranks, &["--plan", plan, "--devices", devices]);
            assert_eq!(found, one, "{plan} on {ranks} ranks of {launcher:?}");
        }
    }
}

#[test]
fn a_link_and_recomputation_leave_the_bits_alone() {
    let one = alone(&[]);
    for launcher in Launcher::installed().into_iter().take(1) {
        let link = ["--plan", "fsdp", "--devices", "4", "--link", "200us,10Gbit"];
        assert_eq!(hash(launcher, 2, &link), one);
        let full = ["--plan", "fsdp", "--devices", "2", "--recompute", "full", "--overlap", "off"];
        assert_eq!(hash(launcher, 2, &full), one);
    }
}

#[test]
fn a_compiled_run_gives_the_same_bits_on_one_to_four_ranks() {
    let (dir, plan) = (Dir::new("ranks_artifact"), ["--plan", "dp2-tp2", "--dropout", "0.1"]);
    let (whole, single) = (dir.path("run"), dir.path("single"));
    let steps = |command: &'static str| [&[command, "--json", "--steps", "20"], SMALL, &plan[..]].concat();
    let summary = |mut lines: Vec<serde_json::Value>| lines.pop().unwrap()["summary"]["weights_hash"].clone();
    let source = summary(json_lines(&steps("train")));
    let costs = ["--costs", "modelled", "--cores-per-device", "1"];
    json_lines(&[&steps("compile")[..], &costs, &["--out", &whole]].concat());
    json_lines(&[&steps("compile")[..], &costs, &["--ranks", "1", "--out", &single]].concat());
    assert_eq!(summary(json_lines(&["run", &whole, "--json"])), source);
    for launcher in Launcher::installed().into_iter().take(1) {
        for ranks in [2, 4] {
            let output = launcher.run(ranks, &["run", &whole, "--json"]);
            assert_eq!(output.json()["summary"]["weights_hash"], source, "{ranks} ranks");
        }
        let told = launcher.run(2, &["run", &single, "--json"]).message();
        let wanted =
            "it is compiled for 1 rank, and this job has 2: start at most 1, or compile it with --ranks 2";
        assert!(told.contains(wanted), "{told}");
    }
}
