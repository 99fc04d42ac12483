//! `phalanx launch --max-restarts`: a job that breaks off goes on from its last checkpoint, and ends with the same bits.

use serde_json::Value;

use super::common::{Dir, SMALL, json_lines, phalanx};
use super::faults::BINARY;
use super::mpi::{self, Ended, Launcher};

/// A run of eight steps.
const TRAIN: &[&str] = &["train", "--json", "--steps", "8", "--dropout", "0.1"];

/// Fingerprint of the weights after an uninterrupted run in one process.
fn expected() -> Value {
    json_lines(&[TRAIN, SMALL].concat()).pop().unwrap()["summary"]["weights_hash"].clone()
}

/// Launches the run on two ranks with a checkpoint after every second step.
fn launch(launcher: Launcher, dir: &Dir, flags: &[&str], extra: &[&str]) -> Ended {
    let mut command = phalanx();
    command.args(["launch", "-n", "2", "--mpirun", launcher.program()]).args(flags).arg("--").args(TRAIN);
    command.args(SMALL).args(["--checkpoint", &dir.path("ck"), "--every", "2", "--sync-checkpoints"]);
    command.args(extra);
    mpi::run(command)
}

/// The number called `key` of every restart that is told as JSON.
fn restarts(ended: &Ended, key: &str) -> Vec<u64> {
    let lines = ended.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| line["restart"][key].as_u64()).collect()
}

#[test]
fn a_killed_rank_comes_back_and_the_weights_are_the_same() {
    let expected = expected();
    for launcher in Launcher::installed() {
        let dir = Dir::new(&format!("elastic_kill_{launcher:?}"));
        let logs = dir.path("logs");
        let drill = ["--plan", "dp", "--devices", "2", "--log-dir", &logs, "--drill", "kill@1:5"];
        let ended = launch(launcher, &dir, &["--max-restarts", "2"], &drill);
        assert_eq!(ended.json()["summary"]["weights_hash"], expected, "{launcher:?}");
        let told: Vec<&str> = ended.stderr.lines().filter(|line| line.starts_with("restart ")).collect();
        assert_eq!(told.len(), 1, "{}", ended.stderr);
        assert!(
            told[0].starts_with("restart 1 of 2: ")
                && told[0].ends_with(" was ended by signal 9; going on after step 4 on 2 ranks"),
            "{told:?}"
        );
        let keys = ["attempt", "of", "step", "ranks"].map(|key| restarts(&ended, key));
        assert_eq!(keys, [vec![1], vec![2], vec![4], vec![2]]);
        let log = std::fs::read_to_string(format!("{logs}/rank-1.jsonl")).unwrap();
        let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let steps: Vec<u64> = lines.filter_map(|line| line["step"].as_u64()).collect();
        assert_eq!(steps, [1, 2, 3, 4, 5, 6, 7, 8], "the restart adds to the log");
    }
}

#[test]
fn a_rank_that_hangs_is_restarted_but_not_a_run_that_diverges() {
    let expected = expected();
    for launcher in Launcher::installed().into_iter().take(1) {
        let dir = Dir::new("elastic_hang");
        let plan = ["--plan", "fsdp", "--devices", "2", "--drill"];
        let flags = ["--max-restarts", "1"];
        let ended =
            launch(launcher, &dir, &flags, &[&plan[..], &["hang@1:3", "--stall-seconds", "3"]].concat());
        assert_eq!(ended.json()["summary"]["weights_hash"], expected);
        let told = "restart 1 of 1: the job stood still at rank 1; going on after step 2 on 2 ranks\n";
        assert!(ended.stderr.contains(told), "{}", ended.stderr);

        let ended = launch(launcher, &Dir::new("elastic_nan"), &flags, &[&plan[..], &["nan@1:3"]].concat());
        ended.fails(&["the loss is NaN at step 3"]);
        assert_eq!((ended.code, restarts(&ended, "attempt")), (Some(1), vec![]));
    }
}

#[test]
fn a_rank_that_dies_at_once_again_and_again_is_given_up() {
    let expected = expected();
    for launcher in Launcher::installed() {
        let dir = Dir::new(&format!("elastic_vain_{launcher:?}"));
        let flags = ["--max-restarts", "3", "--min-ranks", "1"];
        let ended = launch(launcher, &dir, &flags, &["--plan", "fsdp2", "--drill", "kill@1:+1"]);
        assert_eq!(ended.json()["summary"]["weights_hash"], expected, "{launcher:?}: {}", ended.stderr);
        assert_eq!(restarts(&ended, "ranks"), [2, 1]);
        assert!(ended.stderr.contains("; going on from the start on 1 rank\n"), "{}", ended.stderr);
    }
}

#[test]
fn ranks_stay_as_long_as_attempts_commit_something() {
    let Some(launcher) = Launcher::installed().into_iter().next() else { return };
    let dir = Dir::new("elastic_progress");
    let flags = ["--max-restarts", "3", "--min-ranks", "1"];
    let ended = launch(launcher, &dir, &flags, &["--plan", "fsdp2", "--drill", "kill@1:+3"]);
    assert_eq!(ended.json()["summary"]["weights_hash"], expected(), "{}", ended.stderr);
    // Every attempt does two steps and commits them; the last one has no third step to do.
    assert_eq!(restarts(&ended, "step"), [2, 4, 6]);
    assert_eq!(restarts(&ended, "ranks"), [2, 2, 2]);
}

#[test]
fn restarts_that_are_used_up_end_the_job() {
    for launcher in Launcher::installed() {
        let dir = Dir::new(&format!("elastic_used_{launcher:?}"));
        let ended = launch(launcher, &dir, &["--max-restarts", "1"], &["--drill", "panic@1:+1"]);
        let text =
            ended.fails(&["fire drill", "restart 1 of 1: rank 1 failed; going on from the start on 2 ranks"]);
        let last = text.trim_end().lines().last().unwrap();
        assert!(
            last.starts_with(
                "error: rank 1 failed, and the job has used up its 1 restart (--max-restarts); "
            ),
            "{last}"
        );
        assert!(last.ends_with("/ck has no checkpoint"), "{last}");
        assert_eq!((ended.code, restarts(&ended, "rank")), (Some(5), vec![1]));
    }
}

#[test]
fn ranks_without_a_common_file_system_let_the_first_write_and_get_it_back() {
    let expected = expected();
    for launcher in Launcher::installed() {
        let dir = Dir::new(&format!("elastic_gather_{launcher:?}"));
        let run = |extra: &str| {
            let plan =
                "--plan fsdp --devices 2 --checkpoint ck --every 2 --sync-checkpoints --gather-checkpoints";
            let words = [TRAIN, SMALL].concat().join(" ");
            let [first, second] = ["first", "second"].map(|host| {
                let own = dir.path(host);
                format!("mkdir -p {own} && cd {own} && exec {BINARY} {words} {plan} {extra}")
            });
            launcher.run_two(&["sh", "-c", &first], &["sh", "-c", &second])
        };
        assert_ne!(run("--drill kill@1:7").code, Some(0), "{launcher:?}");
        let names = |host: &str| std::fs::read_dir(dir.path(host)).unwrap().count();
        assert_eq!(
            (names("first/ck"), names("second")),
            (4, 0),
            "{launcher:?}: rank 0 alone has three and `latest`"
        );
        let ended = run("--resume");
        assert_eq!(ended.json()["summary"]["weights_hash"], expected, "{launcher:?}: {}", ended.stderr);
        assert!(std::path::Path::new(&dir.path("second/ck/step-00000006")).is_dir(), "rank 1 got it");
    }
}
