//! Leaving a job: together, and within a limit.
//!
//! When all ranks have come to the end, each ends the message library and then its process. A rank that is stopped on the
//! way would keep its launcher waiting for ever, with no process left that could tell. So a rank of this host waits until
//! none of the others shows itself any more (`arrivals.rs`); only the end of the process itself is not watched.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::watch::{STALLED, Say};
use super::{Arrival, Waiting};

/// How long it may take; the library's own limit is 5 s.
const LIMIT: Duration = Duration::from_secs(8);

/// How often a rank looks whether the others have gone.
const LOOK: Duration = Duration::from_millis(2);

/// A rank on its way out of a job: dropping this waits for the others.
pub struct Leaving {
    /// Shows this rank until it waits; none if ranks do not see each other.
    arrival: Option<Arc<Arrival>>,
    /// The other ranks of this host.
    others: Vec<u32>,
    /// Ends the process if it takes too long. Dropped after the others have gone.
    _limit: Option<Waiting>,
}

impl Leaving {
    /// `rank` begins to leave; `others` are all other ranks, if all are of this host.
    pub fn start(arrival: Option<Arc<Arrival>>, rank: u32, others: Vec<u32>, say: &Say) -> Leaving {
        let (say, neighbors, asked) =
            (Arc::clone(say), arrival.as_ref().map(|arrival| arrival.neighbors()), others.clone());
        let late = move || {
            let stopped = neighbors.map(|neighbors| neighbors.stopped(&asked)).unwrap_or_default();
            let who = match stopped.first() {
                Some(one) => format!("rank {one} is stopped and has not left the job"),
                None => "a rank has not left the job".into(),
            };
            say(&format!(
                "{who} after {} s, and rank {rank} waits for it; all steps are done, and what was to be saved is saved",
                LIMIT.as_secs()
            ));
            std::process::exit(STALLED);
        };
        // Without a thread there is no limit.
        Leaving { arrival, others, _limit: Waiting::start(LIMIT, late).ok() }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let Some(arrival) = self.arrival.take() else { return };
        let neighbors = arrival.neighbors();
        drop(arrival);
        while neighbors.missing(&self.others).len() < self.others.len() {
            thread::park_timeout(LOOK);
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use super::*;

    #[test]
    fn a_rank_waits_until_the_others_have_gone_and_shows_itself_no_more() {
        let prefix = format!("phalanx-test-{}-leaving-", std::process::id());
        let [zero, one] = [0, 1].map(|rank| Arrival::show(&prefix, rank).unwrap());
        let neighbors = one.neighbors();
        let say: Say = Arc::new(|text: &str| panic!("{text}"));
        let leaving = Leaving::start(Some(Arc::new(zero)), 0, vec![1], &say);
        assert!(neighbors.missing(&[0, 1]).is_empty());
        let goes = AtomicBool::new(false);
        thread::scope(|scope| {
            let left = scope.spawn(|| {
                drop(leaving);
                goes.load(SeqCst)
            });
            while neighbors.missing(&[0, 1]) != [0] {
                thread::yield_now();
            }
            goes.store(true, SeqCst);
            drop(one);
            assert!(left.join().unwrap(), "it has waited for rank 1");
        });
    }
}
