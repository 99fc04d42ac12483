//! Ctrl-C: the first one asks the run to stop after its step, the second one ends the process.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::failure::Failure;

/// The exit code of a run that was asked to stop.
pub const STOPPED: u8 = 130;

static ASKED: AtomicBool = AtomicBool::new(false);

/// From now on listens for Ctrl-C.
pub fn listen() -> Result<(), Failure> {
    on_each(|| {
        // Relaxed: the flag stands alone.
        if ASKED.swap(true, Relaxed) {
            std::process::exit(i32::from(STOPPED));
        }
    })
}

/// From now on calls `heard` at each signal that asks to stop.
///
/// SIGUSR1 is one of them because Open MPI hands no other one on to its ranks without killing them.
pub fn on_each(mut heard: impl FnMut() + Send + 'static) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1])
        .map_err(|error| Failure::Run(format!("cannot listen for Ctrl-C: {error}")))?;
    thread::spawn(move || signals.forever().for_each(|_| heard()));
    Ok(())
}

/// Asks the run to stop, as Ctrl-C does.
pub fn ask() {
    // Relaxed: the flag stands alone.
    ASKED.store(true, Relaxed);
}

/// Whether the run was asked to stop.
pub fn is_asked() -> bool {
    // Relaxed: the flag stands alone.
    ASKED.load(Relaxed)
}
