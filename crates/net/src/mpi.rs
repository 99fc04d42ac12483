//! A job of processes that an MPI launcher started, over whichever MPI library is there at run time.
//!
//! Below [`Mpi`]: `library` loads one and `abi` says how it spells things; `engine` decides which thread calls it when,
//! `backoff` how often, and `orders` are what it is to start; `state` and `active` are what is under way, `connection`
//! and `layout` messages that were set up; `agreements` and `alerts` are the small things. Nothing in here waits for
//! another rank inside the library, and nothing reads the environment. Unsafe, because the other side is C.

mod abi;
mod active;
mod agreements;
mod alerts;
mod backoff;
mod connection;
mod engine;
mod event_count;
mod layout;
mod library;
mod orders;
pub mod raw;
mod state;

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::ptr;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use connection::{Connection, Summary};
use engine::{Comms, Engine};
use library::Library;
use state::State;

pub use library::Launcher;

use crate::{Done, DriverWork, Message, NetError, Network, Transfers};

/// How long the end of a job waits for alerts that were not received.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long the end of the library may take after all ranks agreed to it. Some transports of MPICH wait forever when
/// one rank is some milliseconds later than another; a process that has waited that long has nothing more to lose.
const FAREWELL: Duration = Duration::from_secs(5);

/// What a process ends with in which a callback panics, as if its main thread had.
const PANICKED: i32 = 101;

/// Which library to use.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its file; without, the usual names are tried.
    pub library: Option<PathBuf>,
    /// What started this process.
    pub launcher: Launcher,
}

/// One rank of a job over MPI. At most one exists in the life of a process.
pub struct Mpi {
    engine: Arc<Engine>,
    own: Option<JoinHandle<()>>,
    largest_tag: u32,
}

impl Mpi {
    /// Loads the library and joins the job that the launcher started; without one, a job of a single rank.
    pub fn start(options: Options) -> Result<Mpi, NetError> {
        let library = Library::load(options.library.as_deref(), options.launcher)?;
        // SAFETY: the library was just loaded, and no other thread knows of it; `init` checks that it was not used
        // before.
        unsafe { init(&library) }?;
        let world = library.abi.world;
        // SAFETY: as above, and the library is started.
        let rank = int(|value| unsafe { library.comm_rank(world, value) })?;
        // SAFETY: as above.
        let size = int(|value| unsafe { library.comm_size(world, value) })?;
        library.rank.get_or_init(|| rank);
        // SAFETY: as above.
        let largest_tag = unsafe { largest_tag(&library) }?;
        // SAFETY: as above.
        let comms = unsafe {
            Comms { transfers: copy(&library)?, agreements: copy(&library)?, alerts: copy(&library)? }
        };
        let mut state = State::new(&library);
        // SAFETY: as above; no other receive was begun.
        unsafe { alerts::listen(&mut state, &library, comms.alerts) }?;
        let engine = Arc::new(Engine::new(library, comms, (rank, size), state));
        let own = employ(&engine)?;
        Ok(Mpi { engine, own: Some(own), largest_tag })
    }

    fn mismatch(&self, problem: String) -> NetError {
        NetError::Mismatch { rank: self.engine.rank, problem }
    }
}

/// Starts the library so that any thread may call it, one at a time, and that errors come back.
///
/// # Safety
/// No other thread is in the library.
unsafe fn init(library: &Library) -> Result<(), NetError> {
    let mut before = 0;
    // SAFETY: this function may be called before the library is started.
    unsafe { library.initialized(&mut before) }?;
    if before != 0 {
        return Err(NetError::Library("this process has used MPI already, and that works only once".into()));
    }
    let (asked, mut granted) = (library.abi.serialized, 0);
    // SAFETY: the library accepts a program that has no arguments.
    unsafe { library.init_thread(ptr::null_mut(), ptr::null_mut(), asked, &mut granted) }?;
    if granted < asked {
        let level = if granted == 0 { "MPI_THREAD_SINGLE" } else { "MPI_THREAD_FUNNELED" };
        let version = &library.version;
        return Err(NetError::Library(format!(
            "{version} grants {level} ({granted}), and MPI_THREAD_SERIALIZED ({asked}) is needed; use a library that was \
             built with support for threads"
        )));
    }
    // SAFETY: the library is started. Copies of the communicator inherit this.
    unsafe { library.comm_set_errhandler(library.abi.world, library.abi.errors_return) }
}

/// The largest tag of the library.
unsafe fn largest_tag(library: &Library) -> Result<u32, NetError> {
    let (mut value, mut found) = (ptr::null(), 0);
    // SAFETY: the caller's duty; the attribute is a pointer to an integer.
    unsafe { library.comm_get_attr(library.abi.world, library.abi.tag_bound, &mut value, &mut found) }?;
    if found == 0 || value.is_null() {
        // What the standard promises.
        return Ok(32_767);
    }
    // SAFETY: the library says where it is.
    Ok(unsafe { value.read() }.max(0) as u32)
}

/// A communicator of all ranks whose messages meet no others.
unsafe fn copy(library: &Library) -> Result<abi::Handle, NetError> {
    let mut comm = 0;
    // SAFETY: the caller's duty.
    unsafe { library.comm_dup(library.abi.world, &mut comm) }?;
    Ok(comm)
}

/// An integer that is not negative.
fn int(read: impl FnOnce(*mut c_int) -> Result<(), NetError>) -> Result<u32, NetError> {
    let mut value = 0;
    read(&mut value)?;
    Ok(value.max(0) as u32)
}

/// Starts the network's own thread. Should a callback panic on it, nothing would move any more and all ranks would wait
/// for each other; so the job ends.
fn employ(engine: &Arc<Engine>) -> Result<JoinHandle<()>, NetError> {
    let shared = engine.clone();
    let serve = move || {
        if catch_unwind(AssertUnwindSafe(|| shared.serve())).is_err() {
            shared.abort(PANICKED);
        }
    };
    let own = thread::Builder::new().name("phalanx-mpi".into()).spawn(serve).map_err(|error| {
        let problem = format!("the thread that drives MPI cannot be started: {error}");
        NetError::Mismatch { rank: engine.rank, problem }
    })?;
    engine.employ(own.thread().clone());
    Ok(own)
}

/// Messages that were set up.
struct Connected {
    engine: Arc<Engine>,
    number: usize,
}

impl Transfers for Connected {
    unsafe fn start(&self, batch: usize) {
        // SAFETY: the caller's duty.
        unsafe { self.engine.order(self.number, batch) };
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.engine.disconnect(self.number);
    }
}

impl Network for Mpi {
    fn rank(&self) -> u32 {
        self.engine.rank
    }

    fn size(&self) -> u32 {
        self.engine.size
    }

    fn carrier(&self) -> String {
        // The rest of the line describes the build.
        let version = &self.engine.library.version;
        version.split(',').next().unwrap_or(version).to_string()
    }

    unsafe fn connect(&self, batches: Vec<Vec<Message>>, done: Done) -> Result<Box<dyn Transfers>, NetError> {
        let Engine { library, comms, size, .. } = &*self.engine;
        let checked = connection::check(&batches, *size, self.largest_tag);
        let summary =
            checked.map(|()| Summary::new(&batches, *size)).map_err(|problem| self.mismatch(problem));
        let connected = summary.and_then(|summary| {
            let number = self.engine.call(|state| {
                state.usable()?;
                // SAFETY: called under the lock; the memory is the caller's duty.
                let connection = unsafe { Connection::new(library, comms.transfers, batches, done) }?;
                Ok(state.insert(connection))
            })?;
            Ok((Connected { engine: self.engine.clone(), number }, summary))
        });
        // A rank that fails says so by bringing nothing, so that no other waits for it.
        let mine = connected.as_ref().map_or_else(|_| Vec::new(), |(_, summary)| summary.encode());
        let all = self.engine.all_gather(&mine)?;
        let (connected, _) = connected?;
        let mut summaries = Vec::new();
        for (rank, bytes) in all.iter().enumerate() {
            let failed = || self.mismatch(format!("rank {rank} could not set up its messages"));
            summaries.push(Summary::decode(bytes, *size).ok_or_else(failed)?);
        }
        Summary::agree(&summaries).map_err(|problem| self.mismatch(problem))?;
        Ok(Box::new(connected))
    }

    fn barrier(&self) -> Result<(), NetError> {
        self.engine.barrier()
    }

    fn broadcast(&self, root: u32, bytes: &mut Vec<u8>) -> Result<(), NetError> {
        self.engine.broadcast(root, bytes)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, NetError> {
        self.engine.all_gather(mine)
    }

    fn carry(&self, from: u32, to: u32, bytes: &mut [u8]) -> Result<(), NetError> {
        self.engine.carry(from, to, bytes)
    }

    fn drive_with(&self, work: &mut dyn DriverWork) {
        self.engine.drive_with(work);
    }

    fn wake_driver(&self) {
        self.engine.wake();
    }

    fn alert(&self, text: &str) {
        self.engine.call_soon(|state| {
            if state.usable().is_ok() {
                // SAFETY: called under the lock.
                unsafe { alerts::send(state, &self.engine, text) };
            }
        });
        self.engine.wake();
    }

    fn on_alert(&self, callback: Box<dyn Fn(u32, &str) + Send + Sync>) {
        self.engine.alert_listener.set(callback.into());
    }

    fn abort(&self, code: i32) -> ! {
        self.engine.abort(code)
    }
}

impl Drop for Mpi {
    /// Leaves the job together with all other ranks. After an error or in a panic it just leaves: the others may never
    /// come, and the launcher ends them when this process ends.
    fn drop(&mut self) {
        self.engine.stop();
        if let Some(own) = self.own.take() {
            // It ends the process rather than panic.
            let _ = own.join();
        }
        let mut farewell = !thread::panicking() && self.engine.call(|state| state.is_well());
        if farewell {
            let deadline = Instant::now() + LAST_WORDS;
            let spoken = || !self.engine.call(|state| state.active.alerts_out());
            self.engine.drive_with(&mut || spoken() || Instant::now() > deadline);
            farewell = self.engine.barrier().is_ok();
        }
        let (engine, (tell, told)) = (self.engine.clone(), mpsc::channel());
        thread::spawn(move || {
            engine.leave(farewell);
            let _ = tell.send(());
        });
        let _ = told.recv_timeout(FAREWELL);
    }
}
