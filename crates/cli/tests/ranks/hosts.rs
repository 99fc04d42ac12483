//! Two hosts: network namespaces of this machine, joined by a virtual cable, each with its own name.

use std::process::Command;

use super::common::{Dir, json_lines};
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
    fn new() -> Result<Hosts, String> {
        let id = std::process::id();
        let hosts = Hosts { names: ["a", "b"].map(|host| format!("phalanx-{id}-{host}")) };
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
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(why) => return eprintln!("two hosts cannot be made here, the test is left out: {why}"),
    };
    let dir = Dir::new("ranks_hosts");
    let agent = hosts.agent(&dir);
    let list = dir.write("hosts", ADDRESSES.map(|address| format!("{address} slots=1\n")).concat());
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
        let mut job = Command::new("ip");
        job.args(["netns", "exec", &hosts.names[0], "unshare", "--uts", "sh", "-c"]);
        job.arg(format!("hostname {}; exec \"$0\" \"$@\"", hosts.names[0]));
        job.args([Launcher::OpenMpi.program(), "--allow-run-as-root", "--hostfile", &list, "-n", "2"]);
        job.args(["--mca", "plm_rsh_agent", &agent, "--mca", "btl", "tcp,self"]);
        job.args(["--mca", "btl_tcp_if_include", NETWORK, "--mca", "oob_tcp_if_include", NETWORK]);
        job.arg(env!("CARGO_BIN_EXE_phalanx")).args(step).args(["--plan", "fsdp", "--devices", "2"]);
        link.into_iter().for_each(|link| _ = job.args(["--link", link]));
        assert_eq!(mpi::run(job).json()["weights_hash"], one, "with the link {link:?}");
    }
}
