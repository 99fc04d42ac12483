//! `phalanx launch`: with the launchers that are installed, and with scripts that stand for one.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::common::{Dir, SMALL, error, phalanx, run, script, stdout};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

/// Launchers of both kinds that this machine has; says so if there are none.
fn launchers() -> Vec<&'static str> {
    let is_there = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    let found: Vec<&str> = ["mpirun.openmpi", "mpiexec.mpich"].into_iter().filter(is_there).collect();
    if found.is_empty() {
        eprintln!(
            "not tested: neither mpirun.openmpi nor mpiexec.mpich is installed (cargo xtask test does)"
        );
    }
    found
}

/// The command while it runs, and its standard output.
fn start(args: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut child = phalanx().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

fn line(out: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    line
}

fn interrupt(child: &Child) {
    signal::kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
}

/// Exit code, rest of standard output, standard error.
fn end(mut child: Child, mut out: BufReader<ChildStdout>) -> (Option<i32>, String, String) {
    let (mut rest, mut errors) = (String::new(), String::new());
    out.read_to_string(&mut rest).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    (child.wait().unwrap().code(), rest, errors)
}

#[test]
fn every_rank_runs_the_command() {
    for mpirun in launchers() {
        let text = stdout(&["launch", "-n", "2", "--mpirun", mpirun, "--", "doctor", "--help"]);
        assert_eq!(text.matches("Check every operator").count(), 2, "{mpirun}: {text}");
    }
}

#[test]
fn hosts_and_bound_cores_are_taken() {
    let dir = Dir::new("launch-hosts");
    let hosts = dir.write("hosts", "localhost slots=3 # this one\n");
    for mpirun in launchers() {
        for how in [&["-n", "3", "--hosts", &hosts][..], &["-n", "1", "--cores-per-rank", "1"]] {
            let args = [&["launch", "--mpirun", mpirun], how, &["--", "doctor", "--help"]].concat();
            let (text, ranks) = (stdout(&args), how[1].parse::<usize>().unwrap());
            assert_eq!(text.matches("Check every operator").count(), ranks, "{args:?}: {text}");
        }
    }
}

#[test]
fn a_failing_job_says_why_once() {
    for mpirun in launchers() {
        let gemm = ["bench", "gemm", "--blas", "/nonexistent.so"];
        let message = error(&[&["launch", "-n", "2", "--mpirun", mpirun, "--"], &gemm[..]].concat(), 2);
        assert!(message.contains("/nonexistent.so"), "{mpirun}: {message}");
    }
}

#[test]
fn the_first_interrupt_lets_ranks_finish() {
    for mpirun in launchers() {
        let train = ["launch", "-n", "1", "--mpirun", mpirun, "--json", "--", "train", "--steps", "1000000"];
        let (child, mut out) = start(&[&train[..], SMALL].concat());
        let first = line(&mut out);
        assert!(first.contains("\"step\":"), "{mpirun}: {first}");
        interrupt(&child);
        let (code, rest, errors) = end(child, out);
        assert_eq!((code, errors.as_str()), (Some(130), ""), "{mpirun}");
        let last = rest.lines().last().unwrap();
        assert!(last.contains("\"interrupted\":true"), "{mpirun}: {last}");
    }
}

#[test]
fn the_second_interrupt_ends_the_launcher() {
    let dir = Dir::new("launch-second");
    let does = "trap 'echo asked' USR1; trap 'echo ended; exit 7' TERM; echo ready; sleep 3600 & while :; do wait; done";
    let mpirun = script(&dir, "mpirun", does);
    let (child, mut out) = start(&["launch", "-n", "2", "--mpirun", &mpirun, "--", "doctor"]);
    assert_eq!(line(&mut out), "ready\n");
    interrupt(&child);
    assert_eq!(line(&mut out), "asked\n");
    interrupt(&child);
    assert_eq!(end(child, out), (Some(130), "ended\n".into(), String::new()));
}

#[test]
fn an_interrupt_while_a_job_starts_ends_it_with_the_code_of_one_that_runs() {
    let dir = Dir::new("launch-early");
    // It does not listen yet, and dies of the signal.
    let mpirun = script(&dir, "mpirun", "echo ready; sleep 3600 & wait");
    let (child, mut out) = start(&["launch", "-n", "2", "--mpirun", &mpirun, "doctor"]);
    assert_eq!(line(&mut out), "ready\n");
    interrupt(&child);
    assert_eq!(end(child, out), (Some(130), String::new(), String::new()));
}

#[test]
fn an_interrupted_job_is_not_restarted() {
    let dir = Dir::new("launch-interrupted");
    let mpirun = script(&dir, "mpirun", "trap 'exit 137' USR1; echo ready; sleep 3600 & wait");
    let job = ["--max-restarts", "3", "--", "train", "--checkpoint", &dir.path("ck")];
    let (child, mut out) = start(&[&["launch", "-n", "2", "--mpirun", &mpirun], &job[..]].concat());
    assert_eq!(line(&mut out), "ready\n");
    interrupt(&child);
    assert_eq!(end(child, out), (Some(137), String::new(), String::new()));
}

#[test]
fn remarks_of_the_launcher_are_shown_if_no_rank_says_why() {
    let dir = Dir::new("launch-remarks");
    let remark = "srun: error: node-1: task 0: Killed";
    let mpirun = script(&dir, "mpirun", &format!("echo '{remark}' >&2; echo step; exit 137"));
    let output = run(&["launch", "-n", "2", "--mpirun", &mpirun, "--", "doctor"]);
    assert_eq!(output.status.code(), Some(137));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "step\n");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), format!("{remark}\n"));
}

#[test]
fn a_dry_run_prints_the_command_line() {
    let dir = Dir::new("launch-dry");
    let mpirun = script(&dir, "mpirun", "exit 1");
    let hosts = dir.write("hosts", "a\nb:1\n");
    let mut command = phalanx();
    command.args(["launch", "-n", "3", "--mpirun", &mpirun, "--hosts", &hosts, "--env", "GREETING"]);
    command.args(["--json", "--dry-run", "--", "train", "--data", "two words"]);
    command.env("GREETING", "hello").env("PHALANX_LOG", "x").env_remove("RUST_BACKTRACE");
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(text.starts_with(&format!("{mpirun} -n 3 ")), "{text}");
    for part in [
        " --host a:2,b:1 --map-by slot --bind-to none --stdin none ",
        " -x GREETING -x PHALANX_LOG ",
        "phalanx train --data 'two words' --json\n",
    ] {
        assert!(text.contains(part), "`{part}` in: {text}");
    }
}

#[test]
fn wrong_input_is_named() {
    let dir = Dir::new("launch-wrong");
    let mpirun = script(&dir, "mpirun", "exit 1");
    let hosts = dir.write("hosts", "a\nb slots=many\n");
    for (flags, part) in [
        (&["--mpirun", "/nonexistent/mpirun", "--", "doctor"][..], "/nonexistent/mpirun"),
        (&["--mpirun", &mpirun, "--hosts", "/nonexistent", "--", "doctor"], "/nonexistent"),
        (&["--mpirun", &mpirun, "--hosts", &hosts, "--", "doctor"], "hosts:2: `b slots=many`"),
        (&["--mpirun", &mpirun, "--env", "NOT_SET_ANYWHERE", "--", "doctor"], "NOT_SET_ANYWHERE"),
        (&["--mpirun", &mpirun, "--cores-per-rank", "100000", "--", "doctor"], "200000"),
        (&["--mpirun", &mpirun, "--", "frobnicate"], "frobnicate"),
        (&["--mpirun", &mpirun], "<COMMAND>"),
    ] {
        let message = error(&[&["launch", "-n", "2"], flags].concat(), 2);
        assert!(message.contains(part), "`{part}` in: {message}");
    }
    let output = phalanx().args(["launch", "-n", "2", "--", "doctor"]).env("PATH", "").output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("apt install openmpi-bin"), "{message}");
}

#[test]
fn help_teaches_with_examples() {
    let text = stdout(&["launch", "--help"]);
    for part in ["Examples:", "--json", "mpirun -n 4 phalanx train", "srun -n 4 phalanx train", "slots=8"] {
        assert!(text.contains(part), "`{part}` in: {text}");
    }
}

#[test]
fn a_host_takes_only_so_many_ranks() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let message = error(&["launch", "-n", "1000000", "--dry-run", "--", "doctor"], 2);
    let expected = format!("-n 1000000 is more than the {} ranks that this host takes", 32 * cores);
    assert!(message.starts_with(&expected) && message.ends_with("insist with --oversubscribe"), "{message}");
    let line = stdout(&["launch", "-n", "1000000", "--oversubscribe", "--dry-run", "--", "doctor"]);
    assert!(line.contains("-n 1000000"), "{line}");
}
