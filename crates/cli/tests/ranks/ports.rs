//! What of a job can be reached from outside of it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use super::common::SMALL;
use super::faults::tree;
use super::mpi::Launcher;

/// The addresses other than loopback on which sockets of this host's network listen, by their inodes.
fn listening() -> BTreeMap<String, String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap());
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (address, state, inode) = (words[1], words[3], words[9]);
        let is_loopback = address.starts_with("0100007F:")
            || address.starts_with(&"0".repeat(24)) && {
                // ::1, and ::ffff:127.0.0.1.
                address.starts_with(&format!("{}01000000:", "0".repeat(24)))
            };
        (state == "0A" && !is_loopback).then(|| (inode.to_string(), address.to_string()))
    };
    tables.iter().flat_map(|table| table.lines().skip(1).filter_map(row)).collect()
}

/// The addresses on which processes listen, one line for each socket of each.
fn ports_of(processes: &[u32]) -> Vec<String> {
    let listening = listening();
    let sockets = processes.iter().flat_map(|pid| {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_string()))
            .collect::<Vec<_>>()
    });
    sockets.filter_map(|inode| listening.get(&inode).cloned()).collect()
}

/// The line about a job's ranks, and the ports of all its processes while it trains.
fn ports_of_job(launcher: Launcher, flags: &[&str]) -> (String, Vec<String>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    command.args(["launch", "-n", "2", "--mpirun", launcher.program()]).args(flags).args(["--", "train"]);
    command.args(["--steps", "1000000", "--log-every", "1", "--plan", "dp", "--devices", "2"]).args(SMALL);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut job = command.spawn().unwrap();
    let mut out = BufReader::new(job.stdout.take().unwrap());
    let mut lines = out.by_ref().lines().map(Result::unwrap);
    let about = lines.find(|line| line.contains(" on 1 host ")).expect("the job describes itself");
    assert!(lines.any(|line| line.starts_with("step 1/")), "the ranks train");
    let found = ports_of(&tree(job.id()));
    drop(out);
    assert!(Command::new("kill").args(["-KILL", &job.id().to_string()]).status().unwrap().success());
    job.wait().unwrap();
    (about, found)
}

#[test]
fn a_job_on_one_host_listens_on_loopback_alone_where_the_system_permits_it() {
    let tried = |flags: &[&str]| Command::new("unshare").args(flags).arg("true").output();
    let is_permitted = [&["-n"][..], &["-r", "-n"]]
        .iter()
        .any(|flags| tried(flags).is_ok_and(|tried| tried.status.success()));
    for launcher in Launcher::installed() {
        let (about, ports) = ports_of_job(launcher, &["--share-network"]);
        assert!(about.ends_with(" on the network"), "{about}");
        assert!(!ports.is_empty(), "launchers listen: otherwise nothing is shown by the rest of this test");
        let (about, ports) = ports_of_job(launcher, &[]);
        assert_eq!(about.ends_with(" on loopback alone"), is_permitted, "{about}");
        assert!(ports.is_empty() || !is_permitted, "{about}: {ports:?}");
    }
}
