//! Processes that work together, the *ranks* of a job, and what moves between them.
//!
//! A [`Network`] is one rank's view of the job. Two kinds of things go over it. *Transfers* are set up once and started
//! again and again: each moves bytes from memory of one rank straight into memory of another, and a callback reports
//! when it is complete. *Agreements* are small: all ranks make the same calls in the same order, one at a time.
//!
//! Nothing moves by itself: a thread of the network's own drives it, and so does every thread that waits in it.

use std::sync::Arc;

use phalanx_strided::{ByteRuns, Nest, Place};

/// Why ranks cannot talk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum NetError {
    /// There is no library to talk with.
    #[error("{0}")]
    Library(String),
    /// The library refuses a call.
    #[error("rank {rank}: {call} failed: {why}")]
    Call { rank: u32, call: &'static str, why: String },
    /// Ranks do not fit together.
    #[error("rank {rank}: {problem}")]
    Mismatch { rank: u32, problem: String },
}

/// Bytes in memory, in the order of the runs. The memory belongs to the code that made the region.
#[derive(Clone, Debug)]
pub struct Region {
    /// What the places of the runs are relative to.
    pub base: *mut u8,
    /// Where the bytes lie.
    pub runs: ByteRuns,
}

// SAFETY: a region is an address and sizes; code that follows the address answers for it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Runs of `run` bytes from `base` on, of which `grid` says how many there are along each dimension and how many
    /// bytes from one to the next, outermost first.
    pub fn new(base: *mut u8, run: usize, grid: &[(usize, usize)]) -> Region {
        let (extents, strides): (Vec<usize>, _) = grid.iter().copied().unzip();
        Region { base, runs: Nest::in_order(run, &extents, [Place { start: 0, strides }]) }
    }

    /// All bytes it has.
    pub fn bytes(&self) -> usize {
        self.runs.bytes()
    }

    /// The first byte of the first run.
    pub fn start(&self) -> *mut u8 {
        self.base.wrapping_add(self.runs.places[0].start)
    }
}

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From this rank to the peer.
    Send,
    /// From the peer to this rank.
    Receive,
}

/// One end of a message between two ranks. Both ends have the same tag and the same number of bytes; the regions may
/// have different grids.
#[derive(Clone, Debug)]
pub struct Message {
    /// Which end this is.
    pub way: Way,
    /// The other rank.
    pub peer: u32,
    /// What distinguishes it from all other messages from the one rank to the other, of all batches that are connected
    /// at the same time.
    pub tag: u32,
    /// What is sent, or where it goes.
    pub region: Region,
}

/// Called with the number of every batch that completes, on the thread that drives, so it must be quick. An error says
/// what happened; the batch will never be complete then.
pub type Done = Arc<dyn Fn(usize, Result<(), NetError>) + Send + Sync>;

/// Called with every alert: the rank it comes from, and its text.
pub type AlertCallback = Box<dyn Fn(u32, &str) + Send + Sync>;

/// Messages that were set up.
pub trait Transfers: Send + Sync {
    /// Starts all messages of a batch, which is not under way. Returns at once.
    ///
    /// # Safety
    /// Until the batch is complete, nothing writes what it sends and nothing touches what it receives into.
    unsafe fn start(&self, batch: usize);
}

/// What [`DriverWork::advance`] achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// There was nothing to do.
    Idle,
    /// Something was done: more may follow.
    Worked,
    /// The network need not be driven any longer.
    Over,
}

/// Work that a thread does between its polls of a network that it drives.
pub trait DriverWork {
    /// Does what is ready. The network makes no progress meanwhile, so it must be short.
    fn advance(&mut self) -> Advance;

    /// Whether a processor has nothing to do until messages arrive. If not, the processors that compute need the
    /// thread's core more.
    fn has_idle_compute(&self) -> bool {
        true
    }

    /// Whether the thread may sleep. It gives up what it holds: work that becomes ready meanwhile is left to other
    /// threads.
    fn may_sleep(&mut self) -> bool {
        true
    }
}

/// Does nothing until the closure says that it is over.
impl<F: FnMut() -> bool> DriverWork for F {
    fn advance(&mut self) -> Advance {
        if self() { Advance::Over } else { Advance::Idle }
    }
}

/// One rank's view of a job.
pub trait Network: Send + Sync {
    /// Which rank this is.
    fn rank(&self) -> u32;

    /// How many there are.
    fn size(&self) -> u32;

    /// What carries the bytes, for people: `threads`, or a library and its version.
    fn carrier(&self) -> String;

    /// Sets up batches of messages. All ranks call it together; messages meet their other ends by peer and tag.
    /// Dropping the transfers, when no batch is under way, frees what belongs to them.
    ///
    /// # Safety
    /// The memory of all regions outlives the transfers.
    unsafe fn connect(&self, batches: Vec<Vec<Message>>, done: Done) -> Result<Box<dyn Transfers>, NetError>;

    /// Waits until all ranks are here.
    fn barrier(&self) -> Result<(), NetError>;

    /// Makes `bytes` those of rank `root` everywhere.
    fn broadcast(&self, root: u32, bytes: &mut Vec<u8>) -> Result<(), NetError>;

    /// What every rank brings, in rank order.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, NetError>;

    /// Brings bytes from one rank to another, which both call; other ranks may do something else. The sender's buffer
    /// is read, the receiver's is written and has the right length.
    fn carry(&self, from: u32, to: u32, bytes: &mut [u8]) -> Result<(), NetError>;

    /// Drives the network on this thread until `until` says so.
    fn drive(&self, until: &dyn Fn() -> bool) {
        self.drive_with(&mut || until());
    }

    /// Drives the network on this thread and does `work` between polls, until that is over.
    fn drive_with(&self, work: &mut dyn DriverWork);

    /// Wakes a driver that sleeps: a processor has run out of work until messages arrive, or a run has failed.
    fn wake_driver(&self) {}

    /// Sends a text to all other ranks and waits for none of them. It is lost if the network itself stands still.
    fn alert(&self, text: &str);

    /// From now on calls `callback` with every alert of another rank, on the thread that drives.
    fn on_alert(&self, callback: AlertCallback);

    /// Ends all ranks of the job at once.
    fn abort(&self, code: i32) -> !;
}
