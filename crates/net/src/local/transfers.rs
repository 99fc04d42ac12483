//! Messages between threads: ends that meet in a table.
//!
//! An end that is started first waits in the table; the thread that starts the other one takes it out, copies, and
//! counts down both batches. The last count of a batch calls its owner's callback, which may start batches in turn:
//! those wait in a queue of the thread until the callback returns, so that two ranks that answer each other forever
//! need no more stack than one answer.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Job, copy, lock};
use crate::{Done, Message, NetError, Transfers, Way};

/// Ends that wait, by sender, receiver and tag.
pub(super) type Posted = HashMap<(u32, u32, u32), End>;

/// An end of a message that was started.
pub(super) struct End {
    batch: Arc<Batch>,
    message: usize,
}

impl End {
    fn message(&self) -> &Message {
        &self.batch.messages[self.message]
    }
}

struct Batch {
    number: usize,
    rank: u32,
    job: Arc<Job>,
    messages: Vec<Message>,
    /// Messages that are not complete.
    left: AtomicUsize,
    done: Done,
}

impl Batch {
    /// One message less.
    fn count_down(&self) {
        // AcqRel, pairs with itself: Release publishes what this thread copied; Acquire lets the last one, and so
        // the callback, see what all of them copied.
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.tell(Ok(()));
        }
    }

    fn tell(&self, result: Result<(), NetError>) {
        (self.done)(self.number, result);
        self.job.completed();
    }
}

/// The batches of one rank.
pub(super) struct Connected(Vec<Arc<Batch>>);

impl Connected {
    pub(super) fn new(rank: u32, job: Arc<Job>, batches: Vec<Vec<Message>>, done: Done) -> Connected {
        let batch = |(number, messages)| {
            let (job, done) = (job.clone(), done.clone());
            Arc::new(Batch { number, rank, job, messages, left: AtomicUsize::new(0), done })
        };
        Connected(batches.into_iter().enumerate().map(batch).collect())
    }
}

impl Transfers for Connected {
    unsafe fn start(&self, batch: usize) {
        let batch = &self.0[batch];
        // Relaxed: no thread counts down before an end is posted, which the table's lock publishes.
        let left = batch.left.swap(batch.messages.len(), Ordering::Relaxed);
        debug_assert_eq!(left, 0, "batch {} is under way", batch.number);
        DUE.with_borrow_mut(|due| {
            if batch.messages.is_empty() {
                due.push_back(Due::Nothing(batch.clone()));
            }
            let mut posted = lock(&batch.job.posted);
            due.extend((0..batch.messages.len()).filter_map(|message| post(&mut posted, batch, message)));
        });
        settle();
    }
}

/// Starts one end; what is due if the other one was started already.
fn post(posted: &mut Posted, batch: &Arc<Batch>, message: usize) -> Option<Due> {
    let Message { way, peer, tag, .. } = batch.messages[message];
    let end = End { batch: batch.clone(), message };
    let key = match way {
        Way::Send => (batch.rank, peer, tag),
        Way::Receive => (peer, batch.rank, tag),
    };
    match posted.remove(&key) {
        Some(other) if way == Way::Send => Some(Due::Copy(end, other)),
        Some(other) => Some(Due::Copy(other, end)),
        None => {
            posted.insert(key, end);
            None
        }
    }
}

/// What a thread owes.
enum Due {
    /// A copy from the first end to the second.
    Copy(End, End),
    /// Telling that a batch without messages is complete.
    Nothing(Arc<Batch>),
}

thread_local! {
    static DUE: RefCell<VecDeque<Due>> = const { RefCell::new(VecDeque::new()) };
    static SETTLING: Cell<bool> = const { Cell::new(false) };
}

/// Does what this thread owes, unless it is about to.
fn settle() {
    /// Ends the settling even if a callback panics.
    struct Settling;
    impl Drop for Settling {
        fn drop(&mut self) {
            SETTLING.set(false);
        }
    }
    if SETTLING.replace(true) {
        return;
    }
    let _settling = Settling;
    while let Some(due) = DUE.with_borrow_mut(VecDeque::pop_front) {
        match due {
            Due::Copy(send, receive) => transfer(&send, &receive),
            Due::Nothing(batch) => batch.tell(Ok(())),
        }
    }
}

fn transfer(send: &End, receive: &End) {
    let (from, to) = (&send.message().region, &receive.message().region);
    let (sent, room) = (from.bytes(), to.bytes());
    if sent != room {
        let (sender, receiver) = (send.batch.rank, receive.batch.rank);
        let tag = send.message().tag;
        let problem = format!(
            "message {tag} from rank {sender} to rank {receiver} has {sent} bytes and room for {room}"
        );
        for batch in [&send.batch, &receive.batch] {
            batch.tell(Err(NetError::Mismatch { rank: batch.rank, problem: problem.clone() }));
        }
        return;
    }
    // SAFETY: both batches are under way, so by the contracts of `connect` and `start` the memory is there, nothing
    // writes what is sent, and nothing else touches what is received into.
    unsafe { copy::copy(from, to) };
    receive.batch.count_down();
    send.batch.count_down();
}

/// Whether such messages are distinguishable and make sense.
pub(super) fn check(rank: u32, size: u32, batches: &[Vec<Message>]) -> Result<(), NetError> {
    let mut seen = HashSet::new();
    for Message { way, peer, tag, .. } in batches.iter().flatten() {
        let problem = if *peer >= size {
            format!("message {tag} has rank {peer} at its other end, of {size}")
        } else if !seen.insert((*way == Way::Send, *peer, *tag)) {
            format!("two messages with rank {peer} have tag {tag}, the same way")
        } else {
            continue;
        };
        return Err(NetError::Mismatch { rank, problem });
    }
    Ok(())
}
