//! Two hosts: network namespaces of this machine, joined by a virtual cable, each with its own name.

use std::process::Command;

use super::common::{Dir, error, json_lines};
use super::mpi::{self, Launcher};

/// Two namespaces with one address each. They vanish with this value.
struct Hosts {
    names: [String; 2],
}

const NETWORK: &str = "10.77.13.0/24";
const ADDRESSES: [&str; 2] = ["10.77.13.1", "10.77.13.2"];

fn ip(args: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(args).output().map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr))),
    }
}

impl Hosts {
    fn new(test: &str) -> Result<Hosts, String> {
        let id = std::process::id();
        let hosts = Hosts { names: ["a", "b"].map(|host| format!("phalanx-{id}-{test}-{host}")) };
        let [a, b] = [hosts.names[0].as_str(), hosts.names[1].as_str()];
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        ip(&["link", "add", "veth0", "netns", a, "type", "veth", "peer", "name", "veth0", "netns", b])?;
        for (name, address) in hosts.names.iter().zip(ADDRESSES) {
            ip(&["-n", name, "addr", "add", &format!("{address}/24"), "dev", "veth0"])?;
            ip(&["-n", name, "link", "set", "veth0", "up"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        Ok(hosts)
    }

    /// Runs `phalanx` with these arguments on ranks of both hosts, `slots` on each.
    fn run(&self, dir: &Dir, slots: u32, args: &[&str]) -> mpi::Ended {
        let agent = self.agent(dir);
        let list = ADDRESSES.map(|address| format!("{address} slots={slots}\n")).concat();
        let list = dir.write("hosts", list);
        let mut job = Command::new("ip");
        job.args(["netns", "exec", &self.names[0], "unshare", "--uts", "sh", "-c"]);
        job.arg(format!("hostname {}; exec \"$0\" \"$@\"", self.names[0]));
        job.args([Launcher::OpenMpi.program(), "--allow-run-as-root", "--hostfile", &list]);
        job.args(["-n", &(2 * slots).to_string(), "--bind-to", "none"]);
        job.args(["--mca", "plm_rsh_agent", &agent, "--mca", "btl", "tcp,self"]);
        job.args(["--mca", "btl_tcp_if_include", NETWORK, "--mca", "oob_tcp_if_include", NETWORK]);
        job.arg(env!("CARGO_BIN_EXE_phalanx")).args(args);
        mpi::run(job)
    }

    /// A program for `mpirun` that runs a command on the second host.
    fn agent(&self, dir: &Dir) -> String {
        let script = format!(
            "#!/bin/sh\nshift\nexec ip netns exec {0} unshare --uts sh -c 'hostname {0}; exec sh -c \"$0\"' \"$*\"\n",
            self.names[1]
        );
        let path = dir.write("agent", script);
        assert!(Command::new("chmod").args(["+x", &path]).status().unwrap().success());
        path
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| _ = ip(&["netns", "del", name]));
    }
}

#[test]
fn fsdp_on_two_hosts_gives_the_same_bits_with_and_without_a_link() {
    if !Launcher::installed().contains(&Launcher::OpenMpi) {
        return;
    }
    let hosts = match Hosts::new("fsdp") {
        Ok(hosts) => hosts,
        Err(why) => return eprintln!("two hosts cannot be made here, the test is left out: {why}"),
    };
    let dir = Dir::new("ranks_hosts");
    let step = [
        "step",
        "--json",
        "--steps",
        "3",
        "--layers",
        "2",
        "--heads",
        "4",
        "--width",
        "64",
        "--context",
        "32",
    ];
    let one = json_lines(&[&step[..], &["--cores", "1"]].concat()).remove(0)["weights_hash"].clone();
    for link in [None, Some("500us,1Gbit")] {
        let link: Vec<&str> = link.iter().flat_map(|link| ["--link", link]).collect();
        let args = [&step[..], &["--plan", "fsdp", "--devices", "2"], &link].concat();
        assert_eq!(hosts.run(&dir, 1, &args).json()["weights_hash"], one, "with {link:?}");
    }
}

#[test]
fn links_are_measured_inside_of_hosts_and_between_them() {
    let dir = Dir::new("ranks_measure");
    let out = dir.path("cluster.toml");
    let measure = ["cluster", "measure", "--rounds", "5", "--json", "--out", &out];
    let devices = || json_lines(&["cluster", "show", &out, "--json"]).remove(0);
    for launcher in Launcher::installed() {
        for ranks in [2, 4] {
            let line = launcher.run(ranks, &measure).json();
            let (same, between) = (&line["same_host"], &line["between_hosts"]);
            assert_eq!((same["pairs"].as_u64(), between.is_null()), (Some(u64::from(ranks) - 1), true));
            assert!(same["latency_s"].as_f64() > Some(0.0) && same["bytes_per_s"].as_f64() > Some(1e3));
            let shown = devices();
            assert_eq!(shown["devices"], ranks);
            assert_eq!(shown["levels"].as_array().map(Vec::len), Some(1));
        }
    }
    if !Launcher::installed().contains(&Launcher::OpenMpi) {
        return;
    }
    let hosts = match Hosts::new("measure") {
        Ok(hosts) => hosts,
        Err(why) => return eprintln!("two hosts cannot be made here, the rest is left out: {why}"),
    };
    let line = hosts.run(&dir, 2, &measure).json();
    assert_eq!(line["hosts"], serde_json::json!([2, 2]));
    assert_eq!((&line["same_host"]["pairs"], &line["between_hosts"]["pairs"]), (&2.into(), &1.into()));
    assert!(line["uplink_bytes_per_s"].as_f64() > Some(1e3));
    let levels = devices()["levels"].clone();
    assert_eq!((levels.as_array().map(Vec::len), &levels[0]["size"]), (Some(2), &2.into()));
    // What is written is what --cluster reads.
    let plan = ["plan", "show", "--plan", "dp", "--layers", "1", "--json", "--cluster", &out];
    assert_eq!(json_lines(&plan).len(), 1);
}

#[test]
fn measuring_needs_ranks() {
    let told = error(&["cluster", "measure"], 2);
    assert!(told.contains("start it as `phalanx launch -n 2 -- cluster measure`"), "{told}");
}
