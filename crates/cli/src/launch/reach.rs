//! Which hosts answer, asked in the way in which launchers reach them: a command through `ssh`, or through the program
//! that Open MPI or Hydra are configured to use instead; nodes of a Slurm allocation through `srun`.
//!
//! Not every host can be asked: a launcher starts ranks on its own host without any of this. So a host counts as lost
//! only if it has answered before.

use std::env;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{self, Signal};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

/// How long a host has to answer.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Variables that name what launchers use instead of `ssh`.
const AGENTS: [&str; 2] = ["OMPI_MCA_plm_rsh_agent", "HYDRA_LAUNCHER_EXEC"];

/// Those hosts that answer, asked through `agent` if one is given.
pub fn answering(hosts: &[String], agent: Option<&str>) -> Vec<String> {
    let agent = agent.map(str::to_string).or_else(|| AGENTS.iter().find_map(|name| env::var(name).ok()));
    let agent = agent.unwrap_or_else(|| "ssh -o BatchMode=yes -o ConnectTimeout=10".into());
    thread::scope(|scope| {
        let asked: Vec<_> =
            hosts.iter().map(|host| (host, scope.spawn(|| answers(&agent, host, TIMEOUT)))).collect();
        let answers = asked.into_iter().filter_map(|(host, asked)| asked.join().ok()?.then_some(host));
        answers.cloned().collect()
    })
}

/// Whether a host runs `true` in time.
fn answers(agent: &str, host: &str, grace: Duration) -> bool {
    // Open MPI takes a list of agents, of which the first one is asked.
    let mut words = agent.split(':').next().unwrap_or_default().split_whitespace();
    let Some(program) = words.next() else { return false };
    let mut command = Command::new(program);
    command.args(words).args([host, "true"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return false };
    let (pid, (ended, end)) = (Pid::from_raw(child.id().cast_signed()), mpsc::channel());
    thread::spawn(move || {
        // Its number stays its own until its status is asked for, so that the signal below cannot hit a stranger.
        _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        ended.send(())
    });
    if end.recv_timeout(grace).is_err() {
        _ = signal::kill(pid, Signal::SIGKILL);
    }
    child.wait().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_answers_in_time_or_is_silent() {
        let long = Duration::from_secs(600);
        assert!(answers("env", "A=1", long), "`env A=1 true` succeeds");
        assert!(answers("env A=1 : rsh", "B=2", long));
        assert!(
            !answers("false", "node-1", long)
                && !answers("/nonexistent", "node-1", long)
                && !answers("", "a", long)
        );
        assert!(!answers("tail -f /dev/null", "/dev/null", Duration::ZERO));
    }
}
