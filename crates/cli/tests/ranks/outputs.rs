//! What a job leaves behind: certificates, logs, figures.

use super::common::{Dir, SMALL, run};
use super::mpi::Launcher;

fn train<'a>(extra: &[&'a str]) -> Vec<&'a str> {
    let job = ["train", "--json", "--steps", "3", "--plan", "fsdp", "--devices", "2"];
    [&job[..], SMALL, extra].concat()
}

#[test]
fn a_certificate_is_checked_and_a_forged_one_is_refused() {
    let Some(launcher) = Launcher::installed().into_iter().next() else { return };
    let dir = Dir::new("ranks_certificate");
    let file = dir.path("job.txt");
    launcher.run(2, &train(&["--certificate", &file])).json();
    let checked = run(&["verify", &file, "--json"]);
    let line: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!((&line["valid"], &line["ranks"]), (&true.into(), &2.into()));
    assert!(line["messages"].as_u64().unwrap() > 0, "{line}");

    let text = std::fs::read_to_string(&file).unwrap();
    let (before, sends) = text.split_once("run send [tag 0 rank ").expect("there are messages");
    // The message would go to a rank that is not there.
    let forged = dir.write("forged.txt", format!("{before}run send [tag 0 rank 7{sends}"));
    let refused = run(&["verify", &forged]);
    let error = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(error.contains("not a valid certificate"), "{error}");
}

#[test]
fn every_rank_writes_a_log_with_the_same_losses() {
    let Some(launcher) = Launcher::installed().into_iter().next() else { return };
    let dir = Dir::new("ranks_logs");
    let logs = dir.path("logs");
    let ended = launcher.run(2, &train(&["--log-dir", &logs]));
    let printed: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(printed.len(), 4, "rank 0 alone prints: {}", ended.stdout);
    let losses = |text: &str| {
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.filter_map(|line| line["loss"].as_f64()).collect::<Vec<_>>()
    };
    for rank in [0, 1] {
        let log = std::fs::read_to_string(format!("{logs}/rank-{rank}.jsonl")).unwrap();
        assert_eq!(log.lines().count(), 4, "three steps and a summary: {log}");
        assert_eq!(losses(&log), losses(&ended.stdout), "rank {rank}");
    }
}

#[test]
fn the_memory_of_all_ranks_is_not_mixed_with_that_of_one_and_a_dry_run_knows_it() {
    let Some(launcher) = Launcher::installed().into_iter().next() else { return };
    let forecast = launcher.run(2, &train(&["--dry-run"])).json();
    let devices: Vec<u64> =
        forecast["device_bytes"].as_array().unwrap().iter().map(|bytes| bytes.as_u64().unwrap()).collect();
    assert_eq!((devices.len(), &forecast["ranks"]), (2, &2.into()));
    let kib = |bytes: u64| format!("{:.1} KiB", bytes as f64 / 1024.0);
    let expected = format!(
        "memory        arena {} on all ranks; arena {} on rank 0, process ",
        kib(devices.iter().sum()),
        kib(devices[0])
    );
    let args: Vec<&str> = train(&[]).into_iter().filter(|flag| *flag != "--json").collect();
    let text = launcher.run(2, &args).stdout;
    assert!(text.contains(&expected), "{expected}: {text}");
}

#[test]
fn exchanges_are_measured_beside_the_library() {
    for launcher in Launcher::installed() {
        for exchange in ["pingpong", "allreduce", "alltoall"] {
            let args = ["bench", exchange, "--bytes", "3000", "--rounds", "1", "--json"];
            let line = launcher.run(2, &args).json();
            assert_eq!(line["ranks"], 2);
            for key in ["us", "mpi_us", "ratio"] {
                assert!(line[key].as_f64().unwrap() > 0.0, "{key} in {line}");
            }
        }
    }
}
