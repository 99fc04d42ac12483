//! Starting a job again that broke off: how often, from where, and on how many ranks.
//!
//! The restarts are a total: one that makes no progress counts like any other, so a job that can go no further ends.
//! What killed a rank is mostly gone the next time, and the launcher puts its processes onto hosts that are there; so
//! the first restart is on all ranks. One that breaks off before it has committed a checkpoint has met something that
//! stays: the next one is on fewer ranks, if that is allowed. A host that no longer answers is left out at once. Ranks
//! that were given up do not come back: a job that grows and shrinks with a shaky host would do neither well.
//!
//! Attempts run one after the other in this process; the processes of one are gone before the next begins
//! (`running.rs`).

use std::ffi::OsString;
use std::path::PathBuf;

use phalanx::ckpt::Checkpoints;
use phalanx::train::Elastic;
use serde::Serialize;

use super::exit_reason::ExitReason;
use super::hosts::HostList;
use super::words::{add_flag, set_flag};
use super::{reach, running};
use crate::failure::Failure;
use crate::{output, train};

/// One start of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// How many came before it.
    pub number: u32,
    /// Its processes.
    pub ranks: u32,
    /// What each of them runs.
    pub job: Vec<OsString>,
    /// Hosts that are left out.
    pub lost: Vec<String>,
}

/// What is known when an attempt has broken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tried {
    /// Restarts that are left.
    left: u32,
    /// Ranks it had.
    ranks: u32,
    /// The fewest that suffice.
    least: u32,
    /// How many of its ranks the hosts that answer take.
    room: u32,
    /// Whether it was a restart that has committed nothing.
    is_vain: bool,
}

/// What to do then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    /// Start as many ranks again.
    Again,
    /// Start fewer, at most this many.
    Fewer(u32),
    /// All restarts are used up.
    UsedUp,
    /// Too few hosts answer.
    NoRoom,
}

fn decide(tried: Tried) -> Decision {
    match tried {
        Tried { left: 0, .. } => Decision::UsedUp,
        Tried { room, least, .. } if room < least => Decision::NoRoom,
        Tried { room, ranks, .. } if room < ranks => Decision::Fewer(room),
        Tried { is_vain: true, ranks, least, .. } if least < ranks => Decision::Fewer(ranks - 1),
        _ => Decision::Again,
    }
}

/// How a job is to be restarted.
pub struct Restarts {
    most: u32,
    ranks: u32,
    least: u32,
    checkpoints: (PathBuf, Checkpoints),
    /// What fewer ranks run, if there may be fewer.
    elastic: Option<Elastic>,
    /// The hosts, and those that have answered so far.
    hosts: Option<(HostList, Vec<String>)>,
    /// The newest checkpoint when the last attempt began.
    newest: Option<u64>,
    resumes: bool,
    is_json: bool,
}

/// A restart, for programs.
#[derive(Serialize)]
struct Restart {
    attempt: u32,
    of: u32,
    reason: String,
    rank: Option<u32>,
    /// The step after which it goes on.
    step: u64,
    ranks: u32,
    lost_hosts: Vec<String>,
}

#[derive(Serialize)]
struct Line {
    restart: Restart,
}

impl Restarts {
    /// What `args` ask for, whose job is that of `train`.
    pub fn new(most: u32, args: &super::Args, train: &train::Args) -> Result<Restarts, Failure> {
        let config = train.config()?;
        let Some(dir) = config.checkpoint.clone() else {
            let why = "--max-restarts needs checkpoints to go on from: add --checkpoint DIR to the job, or \
                       `checkpoint` to its file";
            return Err(Failure::Input(why.into()));
        };
        let (ranks, least) = (args.ranks, args.min_ranks.unwrap_or(args.ranks));
        if least > ranks {
            return Err(Failure::Input(format!("--min-ranks {least} is more than the {ranks} of -n")));
        }
        let elastic = (least < ranks).then(|| Elastic::new(&config, ranks)).transpose();
        let elastic =
            elastic.map_err(|error| Failure::Input(format!("--min-ranks {least} of {ranks}: {error}")))?;
        let hosts = match &args.hosts {
            Some(file) => Some(HostList::read(file)?),
            None => HostList::of_slurm(),
        };
        Ok(Restarts {
            most,
            ranks,
            least,
            checkpoints: (dir.clone(), Checkpoints::open(dir)),
            elastic,
            hosts: hosts.map(|list| (list, Vec::new())),
            newest: None,
            resumes: config.resume,
            is_json: train.is_json(),
        })
    }

    /// Looks around before the first attempt: what is to be compared later.
    pub fn begin(mut self) -> Result<Restarts, Failure> {
        running::adopt_orphans();
        self.newest = self.newest_checkpoint();
        if let Some((list, known)) = &mut self.hosts {
            *known = reach::answering(&list.names()?, list.agent());
        }
        Ok(self)
    }

    /// The attempt that follows `attempt`, which broke off, which is announced to the user; an error if there is none.
    pub fn next(&mut self, attempt: &Attempt, reason: ExitReason) -> Result<Attempt, Failure> {
        let newest = self.newest_checkpoint();
        let (lost, room) = self.lost_hosts(attempt)?;
        let is_vain = attempt.number > 0 && newest <= self.newest;
        let left = self.most.saturating_sub(attempt.number);
        let decision = decide(Tried { left, ranks: attempt.ranks, least: self.least, room, is_vain });
        let mut next = Attempt { number: attempt.number + 1, lost, ..attempt.clone() };
        match decision {
            Decision::Again => {}
            // If the plan suits no smaller number, the same one is tried again, unless hosts are missing.
            Decision::Fewer(most) if self.shrink(&mut next, most) || room >= attempt.ranks => {}
            Decision::UsedUp => return Err(self.used_up(reason, newest)),
            Decision::Fewer(_) | Decision::NoRoom => return Err(self.no_room(reason, &next, room)),
        }
        if !self.resumes {
            add_flag(&mut next.job, "--resume");
            self.resumes = true;
        }
        self.newest = newest;
        self.tell(&next, reason);
        Ok(next)
    }

    /// The step of the newest checkpoint. A directory that cannot be read has none: the ranks will say why.
    fn newest_checkpoint(&self) -> Option<u64> {
        self.checkpoints.1.list().ok()?.last().copied()
    }

    /// Hosts that answered before and no longer do, and how many ranks the others take.
    fn lost_hosts(&self, attempt: &Attempt) -> Result<(Vec<String>, u32), Failure> {
        let Some((list, known)) = &self.hosts else { return Ok((Vec::new(), attempt.ranks)) };
        let answering = reach::answering(known, list.agent());
        let lost: Vec<String> = known.iter().filter(|host| !answering.contains(host)).cloned().collect();
        let room = list.room(self.ranks as usize, &lost)?;
        Ok((lost, attempt.ranks.min(u32::try_from(room).unwrap_or(u32::MAX))))
    }

    /// Gives an attempt at most that many ranks, and the plan that they run; whether there is one.
    fn shrink(&self, next: &mut Attempt, most: u32) -> bool {
        let Some(elastic) = &self.elastic else { return false };
        // Errors in model or data are reported by the ranks.
        let Ok(Some(smaller)) = elastic.first_fit((self.least..=most).rev()) else { return false };
        next.ranks = smaller.ranks;
        set_flag(&mut next.job, "--devices", smaller.devices.to_string());
        set_flag(&mut next.job, "--plan", smaller.plan);
        true
    }

    fn tell(&self, next: &Attempt, reason: ExitReason) {
        let (number, most, step) = (next.number, self.most, self.newest);
        let from = step.map_or("from the start".into(), |step| format!("after step {step}"));
        let mut line = format!(
            "restart {number} of {most}: {reason}; going on {from} on {}",
            output::count(next.ranks as usize, "rank")
        );
        if !next.lost.is_empty() {
            line += &format!(", without {}, which cannot be reached", next.lost.join(", "));
        }
        eprintln!("{line}");
        if !self.is_json {
            return;
        }
        let restart = Restart {
            attempt: number,
            of: most,
            reason: reason.to_string(),
            rank: reason.rank,
            step: step.unwrap_or(0),
            ranks: next.ranks,
            lost_hosts: next.lost.clone(),
        };
        // A reader that has gone does not stop the job.
        _ = output::json(&Line { restart });
    }

    fn used_up(&self, reason: ExitReason, newest: Option<u64>) -> Failure {
        let (used, dir) = (output::count(self.most as usize, "restart"), self.checkpoints.0.display());
        let saved = newest.map_or(format!("{dir} has no checkpoint"), |step| {
            format!("{dir} has step {step}, from which --resume goes on")
        });
        Failure::Broken(format!("{reason}, and the job has used up its {used} (--max-restarts); {saved}"))
    }

    fn no_room(&self, reason: ExitReason, next: &Attempt, room: u32) -> Failure {
        let (least, lost) = (self.least, next.lost.join(", "));
        let why = match room < least {
            true => format!(
                "the other hosts take {}, --min-ranks is {least}",
                output::count(room as usize, "rank")
            ),
            false => format!("the plan suits no number of ranks from {least} to {room}"),
        };
        Failure::Broken(format!("{reason}, and {lost} cannot be reached: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIED: Tried = Tried { left: 2, ranks: 4, least: 2, room: 4, is_vain: false };

    #[test]
    fn the_ranks_stay_unless_a_restart_was_in_vain() {
        assert_eq!(decide(TRIED), Decision::Again);
        assert_eq!(decide(Tried { is_vain: true, ..TRIED }), Decision::Fewer(3));
        assert_eq!(
            decide(Tried { is_vain: true, least: 4, ..TRIED }),
            Decision::Again,
            "no fewer are allowed"
        );
        assert_eq!(decide(Tried { is_vain: true, ranks: 2, room: 2, ..TRIED }), Decision::Again);
    }

    #[test]
    fn hosts_that_are_lost_take_their_ranks_with_them() {
        assert_eq!(decide(Tried { room: 2, ..TRIED }), Decision::Fewer(2));
        assert_eq!(decide(Tried { room: 2, is_vain: true, ..TRIED }), Decision::Fewer(2));
        assert_eq!(decide(Tried { room: 1, ..TRIED }), Decision::NoRoom);
    }

    #[test]
    fn restarts_are_a_total() {
        for (is_vain, room) in [(false, 4), (true, 4), (false, 1)] {
            assert_eq!(decide(Tried { left: 0, is_vain, room, ..TRIED }), Decision::UsedUp);
        }
    }
}
