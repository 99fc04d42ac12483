//! A job of threads: every rank is a handle, and all of them share one process.
//!
//! Transfers are copies. The thread that starts the second end of a message copies its bytes and completes both sides,
//! so nothing has to be driven. Agreements are meetings under a lock, each of which all ranks attend before the next
//! one begins; a rank whose handle is dropped attends none, and threads that wait for it get an error. A message that
//! was started and whose other end belongs to a dropped handle stays where it is, as it would between processes.
//!
//! Nothing is buffered: a [`Network::carry`] ends for both sides together. What works here needs no luck elsewhere.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{Advance, AlertCallback, Done, DriverWork, Message, NetError, Network, Transfers};

mod copy;
mod meeting;
mod transfers;

use meeting::{Call, Meeting};
use transfers::{Connected, Posted};

/// How long [`Network::drive_with`] sleeps at most before it asks again: what it waits for may be none of the network's
/// doing.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// One rank of a job of threads.
pub struct Local {
    rank: u32,
    job: Arc<Job>,
}

impl Local {
    /// The ranks of a job, each for a thread of its own.
    pub fn job(size: u32) -> Vec<Local> {
        let job = Arc::new(Job::new(size));
        (0..size).map(|rank| Local { rank, job: job.clone() }).collect()
    }

    /// The only rank of a job.
    pub fn alone() -> Local {
        Local { rank: 0, job: Arc::new(Job::new(1)) }
    }

    fn mismatch(&self, problem: String) -> NetError {
        NetError::Mismatch { rank: self.rank, problem }
    }

    /// Meets all other ranks: what each of them brings.
    fn meet(&self, call: Call, mine: &[u8]) -> Result<Arc<Vec<Vec<u8>>>, NetError> {
        let mut state = self.job.state();
        let round = state.meeting.round;
        state.meeting.attend(self.rank, call, mine);
        self.job.changed.notify_all();
        while state.meeting.round == round {
            if let Some(problem) = state.meeting.problem(&state.gone) {
                return Err(self.mismatch(problem));
            }
            state = self.job.wait(state);
        }
        Ok(state.meeting.brought.clone())
    }

    /// Hands bytes over to `to`, and returns when they are taken.
    fn hand(&self, to: u32, bytes: &[u8]) -> Result<(), NetError> {
        let way = (self.rank, to);
        let mut state = self.job.state();
        state.carried.insert(way, bytes.to_vec());
        self.job.changed.notify_all();
        while state.carried.contains_key(&way) {
            if state.gone[to as usize] {
                state.carried.remove(&way);
                return Err(self.mismatch(format!("rank {to} has left the job and takes no bytes")));
            }
            state = self.job.wait(state);
        }
        Ok(())
    }

    /// Takes what `from` hands over.
    fn take(&self, from: u32, bytes: &mut [u8]) -> Result<(), NetError> {
        let mut state = self.job.state();
        let taken = loop {
            if let Some(taken) = state.carried.remove(&(from, self.rank)) {
                break taken;
            }
            if state.gone[from as usize] {
                return Err(self.mismatch(format!("rank {from} has left the job and brings no bytes")));
            }
            state = self.job.wait(state);
        };
        drop(state);
        self.job.changed.notify_all();
        if taken.len() != bytes.len() {
            let (sent, room) = (taken.len(), bytes.len());
            return Err(self.mismatch(format!("rank {from} brings {sent} bytes where {room} are expected")));
        }
        bytes.copy_from_slice(&taken);
        Ok(())
    }
}

impl Network for Local {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.job.size
    }

    fn carrier(&self) -> String {
        "threads".into()
    }

    unsafe fn connect(&self, batches: Vec<Vec<Message>>, done: Done) -> Result<Box<dyn Transfers>, NetError> {
        transfers::check(self.rank, self.job.size, &batches)?;
        self.meet(Call::Connect, &[])?;
        Ok(Box::new(Connected::new(self.rank, self.job.clone(), batches, done)))
    }

    fn barrier(&self) -> Result<(), NetError> {
        self.meet(Call::Barrier, &[]).map(drop)
    }

    fn broadcast(&self, root: u32, bytes: &mut Vec<u8>) -> Result<(), NetError> {
        if root >= self.job.size {
            return Err(self.mismatch(format!("there is no rank {root} to broadcast, of {}", self.job.size)));
        }
        let mine: &[u8] = if self.rank == root { bytes } else { &[] };
        let brought = self.meet(Call::Broadcast(root), mine)?;
        if self.rank != root {
            bytes.clone_from(&brought[root as usize]);
        }
        Ok(())
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, NetError> {
        Ok(self.meet(Call::AllGather, mine)?.to_vec())
    }

    fn carry(&self, from: u32, to: u32, bytes: &mut [u8]) -> Result<(), NetError> {
        if from.max(to) >= self.job.size || (self.rank != from && self.rank != to) {
            let size = self.job.size;
            return Err(self.mismatch(format!("it has no part in bytes from rank {from} to {to} of {size}")));
        }
        match (self.rank == from, self.rank == to) {
            (true, true) => Ok(()),
            (true, false) => self.hand(to, bytes),
            _ => self.take(from, bytes),
        }
    }

    fn drive_with(&self, work: &mut dyn DriverWork) {
        self.job.state().drivers += 1;
        loop {
            let seen = self.job.state().completions;
            // Without the lock, because it may do anything. What completes meanwhile is counted.
            match work.advance() {
                Advance::Over => break,
                Advance::Worked => continue,
                Advance::Idle if !work.may_sleep() => continue,
                Advance::Idle => {}
            }
            let state = self.job.state();
            if state.completions == seen {
                drop(self.job.changed.wait_timeout(state, LONGEST_SLEEP));
            }
        }
        self.job.state().drivers -= 1;
    }

    fn alert(&self, text: &str) {
        for rank in (0..self.job.size).filter(|rank| *rank != self.rank) {
            let callback = {
                let mut inboxes = lock(&self.job.inboxes);
                let inbox = &mut inboxes[rank as usize];
                if inbox.callback.is_none() {
                    inbox.pending.push_back((self.rank, text.into()));
                }
                inbox.callback.clone()
            };
            if let Some(callback) = callback {
                callback(self.rank, text);
            }
        }
    }

    fn on_alert(&self, callback: AlertCallback) {
        let callback = Arc::new(callback);
        let pending = {
            let mut inboxes = lock(&self.job.inboxes);
            let inbox = &mut inboxes[self.rank as usize];
            inbox.callback = Some(callback.clone());
            std::mem::take(&mut inbox.pending)
        };
        for (from, text) in pending {
            callback(from, &text);
        }
    }

    fn abort(&self, code: i32) -> ! {
        std::process::exit(code)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.job.state().gone[self.rank as usize] = true;
        self.job.changed.notify_all();
        let inbox = std::mem::take(&mut lock(&self.job.inboxes)[self.rank as usize]);
        // The callback may own anything, another handle included: dropped without the lock.
        drop(inbox);
    }
}

/// What all ranks share.
struct Job {
    size: u32,
    /// Ends of messages that wait for their other ends.
    posted: Mutex<Posted>,
    state: Mutex<State>,
    /// The state is another one.
    changed: Condvar,
    inboxes: Mutex<Vec<AlertInbox>>,
}

impl Job {
    fn new(size: u32) -> Job {
        let state = State {
            meeting: Meeting::new(size),
            carried: HashMap::new(),
            gone: vec![false; size as usize],
            completions: 0,
            drivers: 0,
        };
        Job {
            size,
            posted: Mutex::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            inboxes: Mutex::new((0..size).map(|_| AlertInbox::default()).collect()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the threads that drive: a batch is complete.
    fn completed(&self) {
        let mut state = self.state();
        state.completions += 1;
        if state.drivers > 0 {
            self.changed.notify_all();
        }
    }
}

struct State {
    meeting: Meeting,
    /// What is on its way, by sender and receiver.
    carried: HashMap<(u32, u32), Vec<u8>>,
    /// Ranks whose handles are dropped.
    gone: Vec<bool>,
    /// Batches completed so far.
    completions: u64,
    /// Threads that drive.
    drivers: usize,
}

/// How one rank receives alerts; those that come before it sets a callback are kept for it.
#[derive(Default)]
struct AlertInbox {
    callback: Option<Arc<AlertCallback>>,
    pending: VecDeque<(u32, String)>,
}

/// No invariant of ours is broken where a thread may panic: callbacks are never called with a lock held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
