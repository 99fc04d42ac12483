//! Every way in which a job ends badly: soon, with one message that names rank and cause, and nobody left behind.

use super::common::{Dir, SMALL};
use super::mpi::Launcher;

const BINARY: &str = env!("CARGO_BIN_EXE_phalanx");

fn train<'a>(extra: &[&'a str]) -> Vec<&'a str> {
    let job = ["train", "--steps", "100000", "--plan", "dp", "--devices", "2", "--stall-seconds", "3"];
    [&job[..], SMALL, extra].concat()
}

#[test]
fn a_panic_in_a_kernel_names_rank_and_operation() {
    for launcher in Launcher::installed() {
        let text = launcher.run(2, &train(&["--drill", "panic@1:3"])).fails(15, &["rank 1", "fire drill"]);
        assert_eq!(text.matches("error: ").count(), 1, "one message: {text}");
    }
}

#[test]
fn a_loss_that_is_no_number_ends_the_job() {
    for launcher in Launcher::installed() {
        // Ranks that hash what a step has left come to its end together, too.
        let ended = launcher.run(2, &train(&["--drill", "nan@1:3", "--json", "--hash-every", "1"]));
        let text = ended.fails(15, &["the loss is NaN", "rank "]);
        assert_eq!(text.matches("error: ").count(), 1, "one message: {text}");
    }
}

#[test]
fn a_rank_that_is_killed_ends_the_job() {
    for launcher in Launcher::installed() {
        launcher.run(2, &train(&["--drill", "kill@1:3"])).fails(15, &["rank", "1"]);
    }
}

#[test]
fn a_rank_that_is_stopped_is_found_by_the_others() {
    for launcher in Launcher::installed() {
        for rank in ["0", "1"] {
            let drill = format!("stop@{rank}:3");
            let words = [&format!("rank {rank}")[..], "does not answer", "--stall-seconds"];
            launcher.run(2, &train(&["--drill", &drill])).fails(15, &words);
        }
    }
}

#[test]
fn an_operation_that_never_ends_is_named() {
    for launcher in Launcher::installed() {
        let words = ["rank 1", "is being executed", "who waits for whom", "it stands at rank 1"];
        launcher.run(2, &train(&["--drill", "hang@1:3"])).fails(15, &words);
    }
}

#[test]
fn ranks_with_different_configurations_are_refused() {
    let [first, second] = ["3", "4"].map(|steps| {
        let job = ["train", "--steps", steps, "--plan", "dp", "--devices", "2"];
        [&[BINARY], &job[..], SMALL].concat()
    });
    for launcher in Launcher::installed() {
        let words = ["`steps` is 4 on rank 1", "3 on rank 0"];
        let text = launcher.run_two(&first, &second).fails(15, &words);
        assert_eq!(text.matches("error: ").count(), 1, "one message: {text}");
    }
}

#[test]
fn ranks_with_different_binaries_are_refused() {
    let dir = Dir::new("ranks_binary");
    let other = dir.path("phalanx");
    std::fs::copy(BINARY, &other).unwrap();
    use std::io::Write;
    std::fs::OpenOptions::new().append(true).open(&other).unwrap().write_all(b"another build").unwrap();
    let job = [&["train", "--steps", "3", "--plan", "dp", "--devices", "2"][..], SMALL].concat();
    for launcher in Launcher::installed() {
        let (first, second) = ([&[BINARY], &job[..]].concat(), [&[other.as_str()], &job[..]].concat());
        launcher.run_two(&first, &second).fails(15, &["rank 1", "build"]);
    }
}

#[test]
fn a_rank_that_never_starts_is_named() {
    let job = [&[BINARY][..], &train(&[])].concat();
    for launcher in Launcher::installed() {
        launcher.run_two(&job, &["tail", "-f", "/dev/null"]).fails(15, &["rank 1", "has not started"]);
    }
}

#[test]
fn a_plan_for_fewer_devices_than_ranks_is_refused() {
    for launcher in Launcher::installed() {
        let args = [&["train", "--steps", "3", "--plan", "dp", "--devices", "2"][..], SMALL].concat();
        let text = launcher.run(3, &args).fails(15, &["3 ranks", "2 devices"]);
        assert_eq!(text.matches("error: ").count(), 1, "one message: {text}");
    }
}
