//! Every way in which a job ends badly: soon, with one message that names rank and cause, and nobody left behind.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::common::{Dir, SMALL};
use super::mpi::{LIMIT, Launcher};

/// The command.
pub const BINARY: &str = env!("CARGO_BIN_EXE_phalanx");

fn train<'a>(extra: &[&'a str]) -> Vec<&'a str> {
    [&["train", "--steps", "1000", "--plan", "dp", "--devices", "2"][..], SMALL, extra].concat()
}

/// Whether `text` is `pattern`, in which `*` is any text.
fn is_like(text: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.is_empty() || pattern.ends_with('*')
}

#[test]
fn a_panic_in_a_kernel_names_rank_and_operation() {
    for launcher in Launcher::installed() {
        for rank in [0, 1] {
            let drill = format!("panic@{rank}:3");
            let message = launcher.run(2, &train(&["--drill", &drill])).message();
            let pattern = format!("rank {rank}: * of * (op* of gpt2): failed: this is a fire drill");
            assert!(is_like(&message, &pattern), "{message}");
        }
    }
}

#[test]
fn a_loss_that_is_no_number_ends_the_job() {
    for launcher in Launcher::installed() {
        // Ranks that hash what a step has left come to its end together, too.
        let ended = launcher.run(2, &train(&["--drill", "nan@1:3", "--json", "--hash-every", "1"]));
        let expected = "rank 0: the loss is NaN at step 3: the run has diverged, and step 2 was the last good one; lower the \
                        learning rate or clip gradients, or see with --debug nan where it begins";
        assert_eq!(ended.message(), expected);
    }
}

#[test]
fn a_rank_that_is_killed_ends_the_job() {
    for launcher in Launcher::installed() {
        // It is the launcher that sees this end. With MPICH the library of the other rank may abort its own process first,
        // when it finds its peer gone in the middle of a message, and the launcher then names that one.
        let words: &[&str] = match launcher {
            Launcher::OpenMpi => &["process rank 1 with", "signal 9"],
            Launcher::Mpich => &["BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", "(signal "],
        };
        launcher.run(2, &train(&["--drill", "kill@1:3"])).fails(words);
    }
}

#[test]
fn a_rank_that_is_stopped_is_found_by_the_others() {
    for launcher in Launcher::installed() {
        for (rank, other) in [(0, 1), (1, 0)] {
            let drill = format!("stop@{rank}:3");
            let message = launcher.run(2, &train(&["--stall-seconds", "3", "--drill", &drill])).message();
            let pattern = format!(
                "no operation was completed for 3 s (--stall-seconds); chain of waits:\n  \
                 rank {other}, device {other}: * of step * waits for\n  *\
                 rank {rank} does not answer: it is stopped, dead or cut off\n  \
                 it stands at rank {rank} (*, process *)"
            );
            assert!(is_like(&message, &pattern), "{message}");
        }
    }
}

#[test]
fn a_rank_that_is_stopped_before_the_first_step_is_found_too() {
    for (launcher, (rank, other)) in Launcher::installed().into_iter().zip([(0, 1), (1, 0)]) {
        let drill = format!("stop@{rank}:0");
        let message = launcher.run(2, &train(&["--stall-seconds", "1", "--drill", &drill])).message();
        let pattern = format!("rank {rank} does not answer; rank {other} is * since * s (--stall-seconds)");
        assert!(is_like(&message, &pattern), "{message}");
    }
}

#[test]
fn a_rank_that_is_stopped_after_the_last_step_is_found_too() {
    for (launcher, (rank, other)) in Launcher::installed().into_iter().zip([(0, 1), (1, 0)]) {
        let drill = format!("stop@{rank}:end");
        let flags = ["--steps", "3", "--stall-seconds", "1", "--drill", &drill];
        let message = launcher.run(2, &train(&flags)).message();
        let pattern = format!("rank {rank} does not answer; rank {other} is * since * s (--stall-seconds)");
        assert!(is_like(&message, &pattern), "{message}");
    }
}

#[test]
fn a_rank_that_is_stopped_while_it_leaves_the_job_holds_the_others_for_seconds() {
    for (launcher, (rank, other)) in Launcher::installed().into_iter().zip([(0, 1), (1, 0)]) {
        let drill = format!("stop@{rank}:leave");
        let message = launcher.run(2, &train(&["--steps", "3", "--drill", &drill])).message();
        let expected = format!(
            "rank {rank} is stopped and has not left the job after 8 s, and rank {other} waits for it; all steps are done, \
             and what was to be saved is saved"
        );
        assert_eq!(message, expected);
    }
}

#[test]
fn an_operation_that_never_ends_is_named() {
    for launcher in Launcher::installed() {
        let message = launcher.run(2, &train(&["--stall-seconds", "3", "--drill", "hang@1:5"])).message();
        let pattern = "no operation was completed for 3 s (--stall-seconds); chain of waits:\n  *\
                       rank 1, device 1: * of step 5 is being executed\n  \
                       it stands at rank 1 (*, process *), where nothing moves since * s";
        assert!(is_like(&message, pattern), "{message}");
    }
}

#[test]
fn ranks_with_different_configurations_are_refused() {
    let [first, second] = ["3", "4"].map(|steps| {
        let job = ["train", "--steps", steps, "--plan", "dp", "--devices", "2"];
        [&[BINARY], &job[..], SMALL].concat()
    });
    for launcher in Launcher::installed() {
        let message = launcher.run_two(&first, &second).message();
        let pattern = "rank 0: `steps` is 4 on rank 1 (*), but 3 on rank 0: give all ranks the same";
        assert!(is_like(&message, pattern), "{message}");
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
        let message = launcher.run_two(&first, &second).message();
        let pattern =
            "rank 0: rank 1 on * runs *, but rank 0 on * runs *: install the same build on every host";
        assert!(is_like(&message, pattern), "{message}");
    }
}

#[test]
fn a_rank_that_never_starts_is_named() {
    let job = [&[BINARY][..], &train(&["--stall-seconds", "3"])].concat();
    for launcher in Launcher::installed() {
        let message = launcher.run_two(&job, &["tail", "-f", "/dev/null"]).message();
        let expected =
            "rank 1 has not started after 10 s, and rank 0 of 2 waits for it; look at its output or host";
        assert_eq!(message, expected);
    }
}

#[test]
fn a_plan_for_fewer_devices_than_ranks_is_refused() {
    for launcher in Launcher::installed() {
        let args = [&["train", "--steps", "3", "--plan", "dp", "--devices", "2"][..], SMALL].concat();
        let expected = "rank 0: the plan has 2 devices for 3 ranks, and rank 2 would have none: start at most 2 ranks, or \
                        take a plan of 3 devices";
        assert_eq!(launcher.run(3, &args).message(), expected);
    }
}

#[test]
fn ranks_that_write_to_different_file_systems_are_refused() {
    let dir = Dir::new("ranks_unshared");
    let job = train(&["--checkpoint", "checkpoints"]).join(" ");
    let [first, second] = ["first", "second"].map(|host| {
        let own = dir.path(host);
        format!("mkdir -p {own} && cd {own} && exec {BINARY} {job}")
    });
    for launcher in Launcher::installed() {
        let message = launcher.run_two(&["sh", "-c", &first], &["sh", "-c", &second]).message();
        let pattern = "rank 0: *rank 1 writes to another file system: checkpoints/.probe.partial/rank-0001.safetensors is not \
                       there for rank 0 (No such file or directory (os error 2)); all ranks need one directory, on a file \
                       system that they share*";
        assert!(is_like(&message, pattern), "{message}");
    }
}

#[test]
fn a_rank_that_is_stopped_while_it_saves_is_named() {
    for launcher in Launcher::installed() {
        let dir = Dir::new(&format!("ranks_stopped_save_{launcher:?}"));
        let checkpoint = dir.path("ck");
        // Only rank 0, which commits, makes so many calls.
        let saves = ["--every", "1", "--sync-checkpoints", "--stall-seconds", "2", "--drill", "stop@save:40"];
        let job = train(&[&["--checkpoint", &checkpoint], &saves[..]].concat());
        let job: Vec<&str> = job.iter().map(|word| if *word == "1000" { "4" } else { word }).collect();
        let message = launcher.run(2, &job).message();
        let pattern = "rank 0 does not answer; rank 1 is between steps since * s (--stall-seconds)*";
        assert!(is_like(&message, pattern), "{message}");
    }
}

#[test]
fn ranks_with_different_data_are_refused() {
    let dir = Dir::new("ranks_data");
    let job = train(&["--data", "data.txt"]).join(" ");
    let [first, second] = ["all work and no play ", "all play and no work "].map(|text| {
        let own = dir.path(&text[..8].replace(' ', "_"));
        std::fs::create_dir_all(&own).unwrap();
        std::fs::write(format!("{own}/data.txt"), text.repeat(20)).unwrap();
        format!("cd {own} && exec {BINARY} {job}")
    });
    for launcher in Launcher::installed() {
        let message = launcher.run_two(&["sh", "-c", &first], &["sh", "-c", &second]).message();
        let pattern = "rank 0: `contents of the data` is 420 tokens with the hash * on rank 1 (*), but 420 tokens with the hash \
                       * on rank 0: give all ranks the same";
        assert!(is_like(&message, pattern), "{message}");
    }
}

#[test]
fn ranks_take_the_seed_of_the_first_for_everything() {
    let job = |seed: &'static str| {
        [
            &[BINARY, "train", "--json", "--steps", "3", "--plan", "dp", "--devices", "2", "--seed", seed],
            SMALL,
        ]
        .concat()
    };
    let hash = |line: &serde_json::Value| line["summary"]["weights_hash"].clone();
    let alone = super::common::json_lines(&job("3")[1..]);
    for launcher in Launcher::installed() {
        let ended = launcher.run_two(&job("3"), &job("4")).json();
        assert_eq!(hash(&ended), hash(alone.last().unwrap()));
    }
}

/// All processes below `root`, and it.
pub fn tree(root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let parents: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let stat = std::fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
            // The name is in brackets and may hold anything.
            let (pid, rest) = (stat.split_once(' ')?.0.parse().ok()?, stat.rsplit_once(") ")?.1);
            Some((pid, rest.split(' ').nth(1)?.parse().ok()?))
        })
        .collect();
    let mut next = 0;
    while next < found.len() {
        let above = found[next];
        found.extend(parents.iter().filter(|(_, parent)| *parent == above).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

/// Whether a process runs: it is there and has not ended.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
}

#[test]
fn no_process_of_a_job_outlives_one_that_is_killed() {
    for launcher in Launcher::installed() {
        let mut victims = 0..;
        loop {
            let mut command = Command::new(BINARY);
            command
                .args(["launch", "-n", "2", "--mpirun", launcher.program(), "--json", "--"])
                .args(train(&[]));
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut job = command.spawn().unwrap();
            let mut lines = BufReader::new(job.stdout.take().unwrap()).lines();
            assert!(lines.next().unwrap().unwrap().contains("\"step\":1"), "the ranks train");
            let all = tree(job.id());
            let victim = victims.next().and_then(|number: usize| all.get(number));
            let target = *victim.unwrap_or(&job.id());
            assert!(Command::new("kill").args(["-KILL", &target.to_string()]).status().unwrap().success());
            job.wait().unwrap();
            let deadline = Instant::now() + LIMIT;
            while let Some(left) = all.iter().find(|&&pid| runs(pid)) {
                assert!(Instant::now() < deadline, "{left} of {all:?} is left after {target} was killed");
                std::thread::yield_now();
            }
            if victim.is_none() {
                assert!(all.len() >= 4, "this one, the launcher and two ranks: {all:?}");
                break;
            }
        }
    }
}
