//! A run that is handed on from job to job, each with another plan and other numbers of devices and ranks: the state has
//! the same bits after every leg as in one run on one device that never stops.

use serde_json::Value;

use super::common::{Dir, json_lines};
use super::mpi::Launcher;

/// The jobs one after the other: plan, devices, ranks, and the steps that are done at the end.
const JOBS: [(&str, &str, u32, &str); 4] =
    [("dp", "4", 2, "2"), ("fsdp", "2", 2, "4"), ("dp2-tp2-pp2", "8", 4, "6"), ("tp2-pp2", "4", 4, "8")];

/// The steps that are done at the end of the last leg, on one device.
const END: &str = "10";

/// A run to a step. The learning rate rises all the time, so that it does not depend on the number of steps.
fn train<'a>(steps: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
    let run = ["train", "--json", "--steps", steps, "--hash-every", "2", "--dropout", "0.1"];
    let model = ["--layers", "2", "--heads", "2", "--width", "16", "--context", "16", "--batch", "8"];
    // A search for the best schedule on every rank would take most of the time.
    let machine = ["--cores-per-device", "1", "--costs", "modelled", "--overlap", "off"];
    [&run[..], &model, &machine, extra].concat()
}

/// Steps and hashes that a run prints, and its last hash of all weights.
fn hashes(lines: &[Value]) -> (Vec<(Value, Value)>, Value) {
    let hashed = lines.iter().filter(|line| line["hash"].is_string());
    let hashes = hashed.map(|line| (line["step"].clone(), line["hash"].clone())).collect();
    (hashes, lines.last().unwrap()["summary"]["weights_hash"].clone())
}

#[test]
fn jobs_that_resume_each_other_end_with_the_bits_of_one_run() {
    let Some(launcher) = Launcher::installed().into_iter().next() else { return };
    let (expected, weights) = hashes(&json_lines(&train(END, &[])));
    let dir = Dir::new("ranks_chain");
    let checkpoints = dir.path("checkpoints");
    let saved = ["--checkpoint", &checkpoints, "--resume"];
    let mut found = Vec::new();
    for (plan, devices, ranks, steps) in JOBS {
        let placed = ["--plan", plan, "--devices", devices];
        let ended = launcher.run(ranks, &train(steps, &[&saved[..], &placed].concat()));
        assert_eq!(ended.json()["summary"]["steps"].to_string(), steps, "{plan}");
        let lines: Vec<Value> =
            ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3, "{plan} does two steps: {}", ended.stdout);
        found.extend(hashes(&lines).0);
        assert_eq!(found, expected[..found.len()], "{plan} on {devices} devices of {ranks} ranks");
    }
    let (last, last_weights) = hashes(&json_lines(&train(END, &saved)));
    found.extend(last);
    assert_eq!((found, last_weights), (expected, weights));
}
