//! Fire drills: something fails on purpose, so that one can see how a run ends on this machine before it matters.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use crate::ckpt::Fault;

/// What goes wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drill {
    /// A rank fails at a step: `panic@1:3`.
    Step(StepDrill),
    /// Writing a checkpoint fails, at a call of every rank's storage: `enospc@save:7`.
    Save(Fault),
}

/// What goes wrong, where and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepDrill {
    /// What.
    pub kind: DrillKind,
    /// On which rank.
    pub rank: u32,
    /// When.
    pub when: When,
}

/// When a drill begins; steps are counted from 1, and 0 is before the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At a step of the run, once: not again in a job that was restarted.
    Once(u64),
    /// At a step after every start, like a host that is broken: `kill@1:+3`.
    Each(u64),
    /// After the last step: `stop@1:end`.
    End,
    /// When all ranks have come to the end, while they leave the job: `stop@1:leave`.
    Leave,
}

impl When {
    /// Whether it is now: at `step` of a run of which other processes have done the first `past` ones.
    pub fn is_at(self, step: u64, past: u64) -> bool {
        match self {
            When::Once(at) => step == at,
            When::Each(at) => step.checked_sub(past) == Some(at),
            When::End | When::Leave => false,
        }
    }
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrillKind {
    /// A kernel panics.
    Panic,
    /// A weight becomes NaN.
    Nan,
    /// An operation never ends.
    Hang,
    /// The process is stopped, as by `kill -STOP`.
    Stop,
    /// The process is killed, as by `kill -9`.
    Kill,
}

const KINDS: [(&str, DrillKind); 5] = [
    ("panic", DrillKind::Panic),
    ("nan", DrillKind::Nan),
    ("hang", DrillKind::Hang),
    ("stop", DrillKind::Stop),
    ("kill", DrillKind::Kill),
];

/// Why a text is no drill.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a drill: write KIND@RANK:STEP like panic@1:3, or panic@1:+3 for the third step after every start, where \
     KIND is panic, nan, hang, stop or kill, stop@1:0 or kill@1:0 for the time before the first step, stop@1:end or \
     kill@1:end for the time after the last one, stop@1:leave or kill@1:leave for that when ranks leave the job, or KIND@save:CALL like enospc@save:7, where KIND is kill, stop, enospc, \
     eio, short, sync or rename"
)]
pub struct DrillError(String);

impl FromStr for Drill {
    type Err = DrillError;

    fn from_str(text: &str) -> Result<Self, DrillError> {
        let parse = || {
            let (kind, place) = text.split_once('@')?;
            let (place, number) = place.split_once(':')?;
            // The parser of numbers would take a sign, too.
            let count = |digits: &str| {
                digits.parse().ok().filter(|&count| count > 0 && digits.starts_with(|c: char| c != '+'))
            };
            if place == "save" {
                return Some(Drill::Save(Fault { kind: kind.parse().ok()?, call: count(number)? }));
            }
            let (_, kind) = *KINDS.iter().find(|(name, _)| *name == kind)?;
            let when = match number.strip_prefix('+') {
                Some(number) => When::Each(count(number)?),
                // Before the first step and after the last one there is no operation to fail.
                None if number == "0" && fails_as_a_whole(kind) => When::Once(0),
                None if number == "end" && fails_as_a_whole(kind) => When::End,
                None if number == "leave" && fails_as_a_whole(kind) => When::Leave,
                None => When::Once(count(number)?),
            };
            Some(Drill::Step(StepDrill { kind, rank: place.parse().ok()?, when }))
        };
        parse().ok_or_else(|| DrillError(text.into()))
    }
}

/// Whether it is the process that fails, and no operation.
fn fails_as_a_whole(kind: DrillKind) -> bool {
    matches!(kind, DrillKind::Stop | DrillKind::Kill)
}

/// Makes operations fail once it is armed.
#[derive(Clone, Debug, Default)]
pub struct FaultTrigger {
    /// What fails, and from which run on.
    armed: Arc<OnceLock<(DrillKind, u64)>>,
    fired: Arc<AtomicBool>,
}

impl FaultTrigger {
    /// Lets operations fail in the way of `kind` from run `run` on; the process at once, if that is what is asked for.
    pub fn arm(&self, kind: DrillKind, run: u64) {
        match kind {
            DrillKind::Panic | DrillKind::Hang => _ = self.armed.set((kind, run)),
            DrillKind::Nan => {}
            DrillKind::Stop => signal(rustix::process::Signal::STOP),
            DrillKind::Kill => signal(rustix::process::Signal::KILL),
        }
    }

    /// Called in every operation with the number of its run.
    pub fn check(&self, run: u64) {
        let Some((kind, _)) = self.armed.get().filter(|(_, first)| run >= *first) else { return };
        match kind {
            // Relaxed: the flag stands alone.
            DrillKind::Panic if !self.fired.swap(true, Relaxed) => panic!("this is a fire drill"),
            DrillKind::Hang => loop {
                std::thread::park();
            },
            _ => {}
        }
    }
}

fn signal(signal: rustix::process::Signal) {
    // It is our own process: the signal cannot be refused.
    let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ckpt::FaultKind;

    #[test]
    fn drills_are_read() {
        for (text, when) in [("hang@2:7", When::Once(7)), ("hang@2:+7", When::Each(7))] {
            assert_eq!(text.parse(), Ok(Drill::Step(StepDrill { kind: DrillKind::Hang, rank: 2, when })));
        }
        let early = StepDrill { kind: DrillKind::Stop, rank: 2, when: When::Once(0) };
        assert_eq!("stop@2:0".parse(), Ok(Drill::Step(early)));
        assert_eq!("stop@2:end".parse(), Ok(Drill::Step(StepDrill { when: When::End, ..early })));
        assert_eq!("stop@2:leave".parse(), Ok(Drill::Step(StepDrill { when: When::Leave, ..early })));
        let fault = Fault { kind: FaultKind::NoSpace, call: 7 };
        assert_eq!("enospc@save:7".parse(), Ok(Drill::Save(fault)));
        let wrong = [
            "hang@2:end",
            "stop@2:+end",
            "hang",
            "hang@2",
            "hang@x:7",
            "hang@2:0",
            "stop@2:00",
            "stop@2:+0",
            "fire@2:7",
            "@1:1",
        ];
        let more =
            ["enospc@1:7", "hang@save:7", "eio@save:0", "eio@save", "eio@save:+7", "hang@2:+0", "hang@2:++7"];
        for text in wrong.into_iter().chain(more) {
            assert_eq!(text.parse::<Drill>(), Err(DrillError(text.into())));
        }
    }

    #[test]
    fn a_drill_for_each_start_counts_from_there() {
        let at = |when: When, past| {
            (past + 1..=past + 5).filter(|&step| when.is_at(step, past)).collect::<Vec<_>>()
        };
        assert_eq!([0, 2, 3].map(|past| at(When::Once(3), past)), [vec![3], vec![3], vec![]]);
        assert_eq!([0, 2, 3].map(|past| at(When::Each(3), past)), [vec![3], vec![5], vec![6]]);
    }

    #[test]
    fn an_armed_trigger_panics_once() {
        let trigger = FaultTrigger::default();
        trigger.check(2);
        trigger.clone().arm(DrillKind::Panic, 2);
        trigger.check(1);
        let fired = std::panic::catch_unwind(|| trigger.check(2)).unwrap_err();
        assert_eq!(fired.downcast_ref(), Some(&"this is a fire drill"));
        trigger.check(2);
    }
}
