//! Why a job broke off, if starting it again may help.
//!
//! It may after what need not happen again: a rank that died by a signal or of a panic, a lost connection, a stall, a
//! rank or host that did not come. It does not after success, after a stop that the user asked for, or if a rank says
//! that it would fail again: its command, configuration or input is wrong (2), or the run has diverged or cannot write
//! (1).
//!
//! Launchers pass on the exit code of the rank that ended the job. For a rank that died by a signal Open MPI and Slurm
//! have 128 and its number, Hydra the number alone; and all of them have 1 and 2 for failures of their own. So these
//! two codes are a rank's only if a rank has said why it failed. Of a launcher that had to be ended there is only what
//! ranks said.

use std::fmt;

use phalanx::job::{MISSING, STALLED};

use super::log_filter::StreamEnd;
use super::running::Ending;
use crate::failure::BROKEN;
use crate::stop::STOPPED;

/// Why a job broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitReason {
    /// What happened.
    pub what: ExitKind,
    /// To which rank, if that is known.
    pub rank: Option<u32>,
}

/// What happened to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitKind {
    /// Nothing moved any more.
    Stalled,
    /// A rank never started.
    Missing,
    /// A rank panicked or lost its connection.
    Failed,
    /// A rank was ended by this signal.
    Killed(i32),
    /// The launcher failed with this exit code.
    Launcher(i32),
}

/// What a watchdog says before the rank at which a job stands still.
const STANDS: &str = "it stands at rank ";

/// The exit code of a process that panics outside of an operation.
const PANICKED: i32 = 101;

impl ExitReason {
    /// Why a job with this exit code broke off; none if it did not, or would again.
    pub fn of(code: i32, ending: &Ending) -> Option<ExitReason> {
        match ending.signals {
            0 => ExitReason::read(code, &ending.stream_ends),
            _ => None,
        }
    }

    fn read(code: i32, stream_ends: &[StreamEnd]) -> Option<ExitReason> {
        let is_explained = stream_ends.iter().any(|end| !end.errors.is_empty());
        let told: String =
            stream_ends.iter().flat_map(|end| end.errors.iter().chain(&end.held)).cloned().collect();
        let what = match code {
            0 => return None,
            1 | 2 if is_explained => return None,
            _ if code == i32::from(STOPPED) => return None,
            STALLED => ExitKind::Stalled,
            MISSING => ExitKind::Missing,
            PANICKED => ExitKind::Failed,
            _ if code == i32::from(BROKEN) => ExitKind::Failed,
            _ if is_explained && told.contains(STANDS) => ExitKind::Stalled,
            _ if is_explained => ExitKind::Failed,
            _ => signal(code, &told).map_or(ExitKind::Launcher(code), ExitKind::Killed),
        };
        let rank = number_after(&told, &[STANDS, "error: rank ", "process rank ", ": task "]);
        Some(ExitReason { what, rank })
    }
}

/// The signal by which a rank died: the one that the launcher reports, or that its exit code stands for.
fn signal(code: i32, told: &str) -> Option<i32> {
    number_after(told, &["(signal ", "on signal "]).or((129..=128 + 64).contains(&code).then_some(code - 128))
}

/// The number behind the first of these words that has one.
fn number_after<T: std::str::FromStr>(text: &str, words: &[&str]) -> Option<T> {
    words.iter().find_map(|word| {
        let (_, rest) = text.split_once(word)?;
        rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
    })
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = self.rank.map_or("a rank".into(), |rank| format!("rank {rank}"));
        match (self.what, self.rank) {
            (ExitKind::Stalled, Some(_)) => write!(f, "the job stood still at {who}"),
            (ExitKind::Stalled, None) => write!(f, "the job stood still"),
            (ExitKind::Missing, _) => write!(f, "{who} did not start"),
            (ExitKind::Failed, _) => write!(f, "{who} failed"),
            (ExitKind::Killed(signal), _) => write!(f, "{who} was ended by signal {signal}"),
            (ExitKind::Launcher(code), _) => write!(f, "the launcher ended with exit code {code}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cause for an exit code, an error of a rank, and a remark of the launcher.
    fn reason(code: i32, error: &str, remark: &str) -> Option<String> {
        let lines = |text: &str| (!text.is_empty()).then(|| text.to_string()).into_iter().collect();
        let end = StreamEnd { errors: lines(error), held: lines(remark) };
        ExitReason::read(code, &[StreamEnd::default(), end]).map(|reason| reason.to_string())
    }

    #[test]
    fn what_would_happen_again_is_no_reason_to_restart() {
        for (code, error) in [
            (0, ""),
            (1, "error: rank 0: the loss is NaN at step 3\n"),
            (2, "error: rank 0: the plan `dp` ...\n"),
            (130, ""),
        ] {
            assert_eq!(reason(code, error, ""), None, "{code}");
        }
    }

    #[test]
    fn what_may_hold_the_next_time_is_told_with_its_rank() {
        let stall = "error: no operation was completed for 2 s; chain of waits:\n  rank 0, device 0: ...\n  \
                     it stands at rank 1 (vm, process 7)\n";
        let open_mpi =
            "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).\n";
        let hydra = "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n";
        let slurm = "srun: error: node-1: task 3: Killed\n";
        for (code, error, remark, expected) in [
            (3, stall, "", "the job stood still at rank 1"),
            (3, "", "", "the job stood still"),
            (4, "error: rank 1 has not started after 3 s\n", "", "rank 1 did not start"),
            (5, "error: rank 1: matmul of t7 failed\n", "", "rank 1 failed"),
            (101, "", "", "a rank failed"),
            (137, stall, "", "the job stood still at rank 1"),
            (137, "error: rank 2: a connection is lost\n", open_mpi, "rank 2 failed"),
            (137, "", open_mpi, "rank 1 was ended by signal 9"),
            (9, "", hydra, "a rank was ended by signal 9"),
            (137, "", slurm, "rank 3 was ended by signal 9"),
            (143, "", "", "a rank was ended by signal 15"),
            (1, "", "", "the launcher ended with exit code 1"),
            (205, "", "", "the launcher ended with exit code 205"),
        ] {
            assert_eq!(reason(code, error, remark).as_deref(), Some(expected), "{code}");
        }
    }
}
