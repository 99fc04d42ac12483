//! The watchdog of a rank: when nothing moves, it finds out who holds up whom, says it once, and ends the job.
//!
//! Each rank looks at its own operations. If none was completed for the limit, though steps are under way, the rank tells all
//! others how far its lanes are, and whoever hears of that answers likewise. If somebody moves, all go on. Else, a little
//! later, the lowest rank that has said anything prints the chain of waits and ends the job. Nobody waits for anybody meanwhile: a rank that is stopped or
//! dead is the one that does not answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use phalanx_program::Program;
use phalanx_runtime::{LaneState, Watch};

use super::alerts::{Alerts, FORWARD};
use super::chain::{At, Standing, chain, held_up};

/// How long ranks have to say how far they are.
const GRACE: Duration = Duration::from_secs(2);

/// How much longer the others leave the last word to the lowest rank.
const PATIENCE: Duration = Duration::from_secs(4);

/// The exit code of a job that stood still.
pub const STALLED: i32 = 3;

/// Says what is wrong, for people.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// Watches a rank until it is dropped.
pub struct Watchdog {
    alerts: Arc<Alerts>,
    active: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What the watchdog looks at.
pub struct Watched {
    /// The operations of this rank.
    pub watch: Watch,
    /// Those of a program that it runs between steps, if there is one: completing them is moving, too.
    pub between: Option<Watch>,
    /// Tells everybody's part of the program, when it is needed.
    pub parts: Box<dyn Fn() -> Vec<Program> + Send>,
    /// How long nothing may be completed.
    pub limit: Duration,
    /// How every rank is called, for people: host and process.
    pub names: Vec<String>,
    /// Says what is wrong.
    pub say: Say,
}

impl Watched {
    /// Operations that are complete so far.
    fn completed(&self) -> u64 {
        self.watch.completed() + self.between.as_ref().map_or(0, Watch::completed)
    }
}

impl Watchdog {
    /// Starts watching; not active yet.
    pub fn start(alerts: &Arc<Alerts>, watched: Watched) -> Watchdog {
        let active = Arc::new(AtomicBool::new(false));
        // Another one may have ended before.
        alerts.heard().over = false;
        let (hears, is_active) = (Arc::clone(alerts), Arc::clone(&active));
        let watch = move || run(&hears, &is_active, &watched);
        let thread = thread::Builder::new().name("phalanx-watch".into()).spawn(watch);
        Watchdog { alerts: Arc::clone(alerts), active, thread: thread.ok() }
    }

    /// From now on standing still is wrong, or not.
    pub fn set_active(&self, active: bool) {
        // Relaxed: the watchdog may learn of it a little later.
        self.active.store(active, Relaxed);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.alerts.end();
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }
}

fn run(alerts: &Alerts, active: &AtomicBool, watched: &Watched) {
    let tick = (watched.limit / 8).clamp(Duration::from_millis(20), Duration::from_secs(1));
    let (mut seen, mut moved) = (watched.completed(), Instant::now());
    let mut told = false;
    let rank = alerts.network().rank();
    loop {
        let mut heard = alerts.heard();
        if !heard.over {
            heard = alerts.wait(heard, tick);
        }
        if heard.over {
            return;
        }
        let alarm = heard.alarm;
        let first = heard.standings.keys().next().is_none_or(|&lowest| lowest >= rank);
        drop(heard);
        let now = watched.completed();
        // Relaxed: see `set_active`.
        if now != seen || !active.load(Relaxed) {
            (seen, moved) = (now, Instant::now());
        }
        if !told && (alarm.is_some() || moved.elapsed() >= watched.limit) {
            told = true;
            alerts.tell_standing(&standing(&watched.watch, moved.elapsed()));
        }
        let Some(alarm) = alarm.filter(|alarm| alarm.elapsed() >= GRACE) else { continue };
        let mut heard = alerts.heard();
        // A rank that waits for a slow one is not stuck, as long as anybody moves.
        let moves = |standing: &Standing| standing.seconds < watched.limit.as_secs() / 2;
        if heard.standings.values().any(moves) {
            (heard.alarm, told) = (None, false);
            heard.standings.clear();
            moved = Instant::now();
        } else if first || alarm.elapsed() >= GRACE + PATIENCE {
            let standings = std::mem::take(&mut heard.standings);
            drop(heard);
            (watched.say)(&explain(watched, alerts.network().size(), standings));
            alerts.pause(FORWARD);
            alerts.network().abort(STALLED);
        }
    }
}

fn standing(watch: &Watch, still: Duration) -> Standing {
    let at = |lane: LaneState| At { run: lane.run, done: lane.done as u32, running: lane.running };
    let lanes = watch.lanes().into_iter().map(at).collect();
    Standing { launched: watch.launched(), seconds: still.as_secs(), lanes }
}

/// What is known, for people.
fn explain(watched: &Watched, size: u32, mut standings: BTreeMap<u32, Standing>) -> String {
    let standings: Vec<_> = (0..size).map(|rank| standings.remove(&rank)).collect();
    let parts = (watched.parts)();
    let links = chain(&parts, &standings, held_up(&parts, &standings));
    let seconds = watched.limit.as_secs_f64();
    let mut text =
        format!("no operation was completed for {seconds} s (--stall-seconds); who waits for whom:");
    links.iter().for_each(|link| text.push_str(&format!("\n  {link}")));
    if let Some(last) = links.last() {
        let name = watched.names.get(last.rank as usize).map_or("", String::as_str);
        let standing = standings[last.rank as usize].as_ref();
        let since =
            standing.map_or(String::new(), |at| format!(", where nothing moves since {} s", at.seconds));
        text.push_str(&format!("\n  it stands at rank {} ({name}){since}", last.rank));
    }
    text
}

#[cfg(test)]
mod tests;
