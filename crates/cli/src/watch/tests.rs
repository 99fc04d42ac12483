use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use super::*;
use view::Health;

/// An empty directory that is removed at the end.
struct LogDir(PathBuf);

impl LogDir {
    fn new(test: &str) -> LogDir {
        let path = std::env::temp_dir().join(format!("phalanx-watch-{test}-{}", std::process::id()));
        _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        LogDir(path)
    }

    fn write(&self, rank: u32, text: &str) {
        fs::write(self.0.join(format!("rank-{rank}.jsonl")), text).unwrap();
    }

    /// What is seen so many seconds after the first step.
    fn view(&self, seconds: f64) -> RunView {
        let mut view = RunView::new(&RunLog::open(&self.0).unwrap(), START + seconds);
        view.dir = "runs/a".into();
        view
    }
}

impl Drop for LogDir {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// When the first step was done.
const START: f64 = 1_700_000_000.0;

/// The lines of steps, a second each, with an evaluation after every fourth.
fn steps(range: std::ops::RangeInclusive<u64>) -> String {
    let mut text = String::new();
    for step in range {
        let loss = 4.0 / step as f64;
        let eval = match step % 4 {
            0 => format!(r#","eval_loss":{},"eval_perplexity":{}"#, loss + 0.1, (loss + 0.1).exp()),
            _ => String::new(),
        };
        let load = match step {
            1 | 10 => {
                r#","load":{"lanes":[["dev0",0.95],["dev0 transfers",0.25]],"arena_bytes":2097152,"resident_bytes":5242880}"#
            }
            _ => "",
        };
        let time = START + step as f64 - 1.0;
        writeln!(
            text,
            r#"{{"step":{step},"loss":{loss},"tokens_per_s":{},"lr":0.003,"gradient_norm":0.5{eval},"steps":20,"time":{time}{load}}}"#,
            1000 + 100 * step
        )
        .unwrap();
    }
    text
}

#[test]
fn a_run_is_drawn_on_a_small_screen() {
    let dir = LogDir::new("small");
    dir.write(0, &steps(1..=12));
    dir.write(1, &steps(1..=9));
    dir.write(2, "");
    let text = picture(&dir.view(11.0), (80, 24)).unwrap();
    assert_eq!(text, SMALL_FRAME, "\n{text}");
}

#[test]
fn a_run_that_has_ended_is_drawn_on_a_wide_screen() {
    let dir = LogDir::new("wide");
    dir.write(0, &(steps(1..=20) + r#"{"summary":{"steps":20,"interrupted":false}}"# + "\n"));
    let text = picture(&dir.view(9999.0), (130, 16)).unwrap();
    assert_eq!(text, WIDE_FRAME, "\n{text}");
}

#[test]
fn screens_of_any_size_and_logs_without_steps_are_drawn() {
    let dir = LogDir::new("sizes");
    dir.write(0, "");
    for size in [(1, 1), (2, 5), (10, 3), (80, 24), (200, 50)] {
        picture(&dir.view(0.0), size).unwrap();
    }
    assert_eq!(dir.view(0.0).health, Health::Waiting);
    dir.write(0, &steps(1..=1));
    for size in [(1, 1), (7, 7), (80, 24)] {
        picture(&dir.view(0.0), size).unwrap();
    }
}

#[test]
fn a_growing_log_is_followed_line_by_line() {
    let dir = LogDir::new("growing");
    let all = steps(1..=8);
    let mut log = {
        dir.write(0, "");
        RunLog::open(&dir.0).unwrap()
    };
    // However the file grows, what is seen are the whole lines.
    for length in (0..=all.len()).step_by(37).chain([all.len()]) {
        dir.write(0, &all[..length]);
        log.poll().unwrap();
        let lines = all[..length].matches('\n').count() as u64;
        assert_eq!(RunView::new(&log, START).step, lines);
    }
    // Resumed after step 5: steps are not there twice.
    let resumed = format!("{all}garbage\n{{\"other\":1}}\n{}", steps(6..=7));
    dir.write(0, &resumed);
    log.poll().unwrap();
    let view = RunView::new(&log, START);
    assert_eq!(
        view.losses.iter().map(|point| point.0).collect::<Vec<_>>(),
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    );
    // A new run in the same place, and another rank.
    dir.write(0, &steps(1..=2));
    dir.write(1, &steps(1..=2));
    log.poll().unwrap();
    let view = RunView::new(&log, START);
    assert_eq!((view.step, view.losses.len(), view.ranks.len()), (2, 2, 2));
}

#[test]
fn ranks_that_lag_or_are_silent_are_marked_and_the_rest_of_the_time_is_told() {
    let dir = LogDir::new("health");
    dir.write(0, &steps(1..=12));
    dir.write(1, &steps(1..=11));
    dir.write(2, &steps(1..=10));
    let health = |seconds| dir.view(seconds).ranks.iter().map(|rank| rank.health).collect::<Vec<_>>();
    assert_eq!(health(12.0), [Health::Running, Health::Running, Health::Behind]);
    assert_eq!(health(20.5), [Health::Running, Health::Silent, Health::Silent]);
    assert_eq!(health(99.0), [Health::Silent; 3]);
    assert_eq!(dir.view(12.0).seconds_left, Some(8.0), "8 steps of a second");
    assert_eq!(dir.view(99.0).seconds_left, None, "nothing says that it goes on");
    dir.write(0, &(steps(1..=12) + r#"{"summary":{"interrupted":true}}"# + "\n"));
    assert_eq!(health(99.0)[0], Health::Stopped);
    let view = serde_json::to_value(dir.view(12.0)).unwrap();
    assert_eq!((&view["step"], &view["steps"], &view["health"]), (&12.into(), &20.into(), &"stopped".into()));
    assert_eq!(view["ranks"][2]["age_seconds"], 3.0);
    assert_eq!(view["best_eval_loss"], 4.0 / 12.0 + 0.1);
}

#[test]
fn what_is_no_log_directory_is_named() {
    let dir = LogDir::new("none");
    fs::write(dir.0.join("rank-x.jsonl"), "").unwrap();
    let Some(Failure::Input(message)) = RunLog::open(&dir.0).err() else { panic!("it has no log") };
    assert!(message.contains("there is no rank-0.jsonl") && message.contains("--log-dir"), "{message}");
    let Some(Failure::Input(message)) = RunLog::open(&dir.0.join("x")).err() else {
        panic!("it is not there")
    };
    assert!(message.contains("cannot read") && message.contains("/x: "), "{message}");
}

const SMALL_FRAME: &str = "\
runs/a  running                                                         q leaves
step 12/20, 0:08 left ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━────────────────────────
loss 0.3333  eval loss 0.4333 (perplexity 1.54)  best 0.4333  lr 3.00e-3
1 650 tokens/s  arena 4.0 MiB  resident 10.0 MiB  gradient norm 0.500
┌loss by step; • held-back data────────────────────────────────────────────────┐
│4.000│⠑⢄                                                                      │
│     │  ⠑⢄                                                                    │
│     │    ⠑⢄                                                                  │
│2.167│      ⠑⠢⠤⣀⣀                                                             │
│     │           ⠉⠑⠒⠒⠤⠤⠤⣀•⣀⣀⣀                                                 │
│0.333│                       ⠉⠉⠉⠉⠉⠉⠑⠒⠒⠒⠒⠒⠒⠤⠤⠤⠤⠤⠤⠤⠤⠤•⠤⠤⠤⠤⠤⠤⠤⠤⠤⢄⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀•│
│     └────────────────────────────────────────────────────────────────────────│
│     1                                                                      12│
└──────────────────────────────────────────────────────────────────────────────┘
┌tokens/s, up to 2 200─────────────────────────────────────────────────────────┐
│  ▁▂▂▃▄▅▅▆▇█                                                                  │
│████████████                                                                  │
└──────────────────────────────────────────────────────────────────────────────┘
┌busy lanes────────────────────────────┐┌ranks─────────────────────────────────┐
│dev0           ████████████████░  95 %││rank 1  step 9       behind, 0:03 ago │
│dev0 transfers ████░░░░░░░░░░░░░  25 %││rank 0  step 12      running, 0:00 ago│
│dev0           ████████████████░  95 %││rank 2  step 0       no step yet      │
│dev0 transfers ████░░░░░░░░░░░░░  25 %││                                      │
└──────────────────────────────────────┘└──────────────────────────────────────┘";

const WIDE_FRAME: &str = "\
runs/a  finished                                                                                                          q leaves
step 20/20 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
loss 0.2000  eval loss 0.3000 (perplexity 1.35)  best 0.3000  lr 3.00e-3
2 050 tokens/s  arena 2.0 MiB  resident 5.0 MiB  gradient norm 0.500
┌loss by step; • held-back data───────────────────────────────────────────────────────┐┌tokens/s, up to 3 000────────────────────┐
│4.000│⠑⢄                                                                             ││               ▁▃▄▆█                     │
│     │  ⠑⢄                                                                           ││          ▁▃▄▆██████                     │
│2.100│    ⠉⠒⠢⠤⣀⣀⣀ •                                                                  ││     ▁▃▄▆███████████                     │
│0.200│           ⠉⠉⠉⠉⠒⠒⠒⠒⠒⠒⠒⠒⠤⠤⠤⠤⠤⠤•⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤•⠤⠤⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀•⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀•││▁▃▄▆████████████████                     │
│     └───────────────────────────────────────────────────────────────────────────────││████████████████████                     │
│     1                                                                             20││████████████████████                     │
└─────────────────────────────────────────────────────────────────────────────────────┘└─────────────────────────────────────────┘
┌busy lanes─────────────────────────────────────────────────────┐┌ranks──────────────────────────────────────────────────────────┐
│dev0           ████████████████████████████████████████░░  95 %││rank 0  step 20      finished                                  │
│dev0 transfers ███████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░  25 %││                                                               │
└───────────────────────────────────────────────────────────────┘└───────────────────────────────────────────────────────────────┘";
