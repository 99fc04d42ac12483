//! What a rank does outside of steps, and the thread that finds a rank that stands still there.
//!
//! Before the first step and after the last one no operation shows that a rank moves, and some phases take long: kernels
//! are measured, schedules searched, files written. So time alone says nothing. When a rank is in one phase for the
//! limit, it asks all others what they do. A rank that lives answers from a thread that does nothing else; if one does
//! not, the job can never go on, and the lowest rank that answers says so and ends it. During steps the watchdog of
//! operations does all this.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::alerts::{Alerts, FORWARD};
use super::watch::{GRACE, REPORT_TIMEOUT, STALLED, Say};

/// The phases of a rank, watched until this is dropped.
pub struct Phases {
    alerts: Arc<Alerts>,
    now: Arc<Now>,
    thread: Option<JoinHandle<()>>,
}

/// What the rank does now.
struct Now {
    /// The phase and since when; no phase where the watchdog of operations watches.
    phase: Mutex<(Option<&'static str>, Instant)>,
    over: AtomicBool,
}

impl Now {
    fn lock(&self) -> MutexGuard<'_, (Option<&'static str>, Instant)> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Phases {
    /// Watches from now on: a phase may take `limit` before the others are asked.
    pub fn watch(alerts: &Arc<Alerts>, limit: Duration, say: &Say) -> Phases {
        let phase = Mutex::new((Some("connecting"), Instant::now()));
        let now = Arc::new(Now { phase, over: AtomicBool::new(false) });
        let (hears, tells, say) = (Arc::clone(alerts), Arc::clone(&now), Arc::clone(say));
        let watch = move || Guard { alerts: &hears, now: &tells, limit, say: &say, asked: None }.run();
        let thread = thread::Builder::new().name("phalanx-phases".into()).spawn(watch);
        Phases { alerts: Arc::clone(alerts), now, thread: thread.ok() }
    }

    /// The rank begins something else.
    pub fn enter(&self, phase: &'static str) {
        *self.now.lock() = (Some(phase), Instant::now());
    }

    /// From now on operations show that the rank moves.
    pub fn steps(&self) {
        *self.now.lock() = (None, Instant::now());
    }
}

impl Drop for Phases {
    fn drop(&mut self) {
        // Relaxed: the thread looks at nothing else that depends on it.
        self.now.over.store(true, Relaxed);
        self.alerts.wake();
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }
}

struct Guard<'a> {
    alerts: &'a Alerts,
    now: &'a Now,
    limit: Duration,
    say: &'a Say,
    /// When the others were asked, in the phase that goes on.
    asked: Option<Instant>,
}

impl Guard<'_> {
    fn run(mut self) {
        let tick = (self.limit / 8).clamp(Duration::from_millis(20), Duration::from_secs(1));
        // Relaxed: see `drop`.
        while !self.now.over.load(Relaxed) {
            let heard = self.alerts.heard();
            drop(if heard.asked { heard } else { self.alerts.wait(heard, tick) });
            let (phase, since) = *self.now.lock();
            self.alerts.answer(phase.unwrap_or("running steps"));
            match phase {
                Some(phase) if since.elapsed() >= self.limit => self.look(phase, since),
                _ => self.asked = None,
            }
        }
    }

    /// The phase takes long: asks the others, and then counts their answers.
    fn look(&mut self, phase: &str, since: Instant) {
        let grace = GRACE.max(self.limit / 4);
        let asked = *self.asked.get_or_insert_with(|| {
            self.alerts.ask();
            Instant::now()
        });
        if asked.elapsed() < grace {
            return;
        }
        let (rank, size) = (self.alerts.network().rank(), self.alerts.network().size());
        let heard = self.alerts.heard();
        let silent: Vec<u32> =
            (0..size).filter(|other| *other != rank && !heard.phases.contains_key(other)).collect();
        let is_lowest = heard.phases.keys().next().is_none_or(|&lowest| lowest > rank);
        let is_failed = heard.failure().is_some();
        drop(heard);
        if silent.is_empty() || is_failed {
            // All live: something takes long, or the failure of a rank is being reported.
            self.asked = asked.elapsed().lt(&self.limit).then_some(asked);
        } else if is_lowest || asked.elapsed() >= grace + REPORT_TIMEOUT {
            (self.say)(&message(&silent, rank, phase, since.elapsed()));
            self.alerts.pause(FORWARD);
            self.alerts.network().abort(STALLED)
        }
    }
}

fn message(silent: &[u32], rank: u32, phase: &str, long: Duration) -> String {
    let (who, answers) = match silent {
        [one] => (format!("rank {one}"), "does"),
        several => (format!("ranks {several:?}"), "do"),
    };
    let seconds = long.as_secs();
    format!("{who} {answers} not answer; rank {rank} is {phase} since {seconds} s (--stall-seconds)")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use phalanx_net::Network;
    use phalanx_net::local::Local;

    use super::*;

    #[test]
    fn a_rank_that_lives_answers_what_it_does() {
        let ranks: Vec<_> = Local::job(2)
            .into_iter()
            .map(|local| Alerts::listen(&(Arc::new(local) as Arc<dyn Network>)))
            .collect();
        let (says, said) = channel();
        let says = Mutex::new(says);
        let say: Say = Arc::new(move |text: &str| says.lock().unwrap().send(text.to_string()).unwrap());
        let phases = Phases::watch(&ranks[1], Duration::from_secs(3600), &say);
        for (phase, expected) in [(Some("compiling"), "compiling"), (None, "running steps")] {
            phase.map_or_else(|| phases.steps(), |phase| phases.enter(phase));
            ranks[0].ask();
            let mut heard = ranks[0].heard();
            while heard.phases.is_empty() {
                heard = ranks[0].wait(heard, Duration::from_secs(600));
            }
            assert_eq!(heard.phases[&1], expected);
        }
        drop(phases);
        assert!(said.try_recv().is_err(), "nothing is wrong");
    }

    #[test]
    fn the_message_names_rank_and_phase() {
        let long = Duration::from_millis(61_900);
        assert_eq!(
            message(&[1], 0, "comparing options", long),
            "rank 1 does not answer; rank 0 is comparing options since 61 s (--stall-seconds)"
        );
        assert_eq!(
            message(&[2, 3], 0, "compiling", long),
            "ranks [2, 3] do not answer; rank 0 is compiling since 61 s (--stall-seconds)"
        );
    }
}
