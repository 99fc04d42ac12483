//! What a job leaves behind: certificates, logs, figures.

use std::collections::BTreeMap;

use serde_json::Value;

use super::common::{Dir, SMALL, run};
use super::mpi::{self, Launcher};

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

/// The complete events of a trace's processes whose names begin with `prefix`: process, thread, name, category, movement,
/// start and end in nanoseconds.
struct Spans {
    rows: Vec<(String, String)>,
    spans: Vec<Span>,
}

struct Span {
    process: String,
    category: String,
    movement: Option<u64>,
    start: f64,
    end: f64,
}

fn spans_of(trace: &Value, prefix: &str) -> Spans {
    let events = trace["traceEvents"].as_array().unwrap();
    let name = |event: &Value| event["args"]["name"].as_str().unwrap().to_string();
    let processes: BTreeMap<u64, String> = events
        .iter()
        .filter(|event| event["name"] == "process_name" && name(event).starts_with(prefix))
        .map(|event| (event["pid"].as_u64().unwrap(), name(event)))
        .collect();
    let process = |event: &Value| processes.get(&event["pid"].as_u64()?).cloned();
    let rows = events.iter().filter(|event| event["name"] == "thread_name");
    let span = |event: &Value| {
        let start = 1e3 * event["ts"].as_f64()?;
        Some(Span {
            process: process(event)?,
            category: event["cat"].as_str()?.to_string(),
            movement: event["args"]["movement"].as_u64(),
            start,
            end: start + 1e3 * event["dur"].as_f64()?,
        })
    };
    Spans {
        rows: rows.filter_map(|event| Some((process(event)?, name(event)))).collect(),
        spans: events.iter().filter(|event| event["ph"] == "X").filter_map(span).collect(),
    }
}

#[test]
fn a_trace_has_what_every_rank_measured_by_one_clock() {
    for launcher in Launcher::installed() {
        let dir = Dir::new(&format!("ranks_trace_{launcher:?}"));
        let (file, page) = (dir.path("step.json"), dir.path("step.html"));
        launcher.run(2, &train(&["--trace", &file, "--report", &page])).json();
        let trace: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let bound = trace["otherData"]["clock_bound_ns"].as_f64().unwrap();
        let subtitle = trace["otherData"]["subtitle"].as_str().unwrap();
        assert!(
            subtitle.contains("predicted for a link of ") && subtitle.contains("clocks of ranks"),
            "{subtitle}"
        );
        let Spans { rows, spans } = spans_of(&trace, "measured ");
        let mut names = rows.clone();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), rows.len(), "one row for each lane: {rows:?}");
        for (rank, other) in [(0, 1), (1, 0)] {
            let process = format!("measured rank{rank} dev{rank}");
            let of = |process: &str, category: &str| {
                let mut found: Vec<&Span> = spans
                    .iter()
                    .filter(|span| span.process == process && span.category == category)
                    .collect();
                found.sort_by(|a, b| (a.movement, a.start).partial_cmp(&(b.movement, b.start)).unwrap());
                found
            };
            assert!(!of(&process, "compute").is_empty(), "rank {rank} computes");
            for row in ["compute", "sends", "arrivals"] {
                assert!(rows.contains(&(process.clone(), row.into())), "{row} of rank {rank}: {rows:?}");
            }
            let sends = of(&process, "send");
            let arrivals = of(&format!("measured rank{other} dev{other}"), "receive");
            assert!(!sends.is_empty(), "rank {rank} sends");
            assert_eq!(sends.len(), arrivals.len(), "every message has two ends");
            for (send, arrival) in sends.iter().zip(&arrivals) {
                assert_eq!(send.movement, arrival.movement);
                assert!(
                    send.start <= arrival.end + bound,
                    "movement {:?} is sent at {} and arrives at {}, bound {bound}",
                    send.movement,
                    send.start,
                    arrival.end
                );
            }
        }
        let page = std::fs::read_to_string(&page).unwrap();
        assert!(page.contains("\"name\":\"measured\"") && page.contains("\"rank\":1"), "{}", &page[..200]);
    }
}

#[test]
fn a_chosen_program_is_kept_for_the_next_start_and_replaced_if_damaged() {
    let Some(launcher) = Launcher::installed().into_iter().next() else { return };
    let dir = Dir::new("ranks_programs");
    let start = |extra: &[&str]| {
        let mut command = launcher.command();
        command
            .args(["-n", "2", env!("CARGO_BIN_EXE_phalanx")])
            .args(train(&["--costs", "modelled"]))
            .args(extra);
        command.env("XDG_CACHE_HOME", dir.path("cache"));
        mpi::run(command).json()["summary"]["weights_hash"].clone()
    };
    let programs = || {
        let kept = std::fs::read_dir(dir.path("cache/phalanx/programs"));
        let files = kept.into_iter().flatten().map(|dir| dir.unwrap().path().join("train.program"));
        files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect::<Vec<_>>()
    };
    let weights = start(&["--no-cache"]);
    assert!(programs().is_empty());
    assert_eq!(start(&[]), weights);
    let kept = programs();
    let [(path, bytes)] = &kept[..] else { panic!("one file: {kept:?}") };
    std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    assert_eq!(start(&[]), weights);
    assert_eq!(programs(), kept, "the same file, whole again");
}
