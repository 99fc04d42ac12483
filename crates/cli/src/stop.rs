//! Ctrl-C: the first one asks the run to stop after its step, the second one ends the process.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::failure::Failure;

/// The exit code of a run that was asked to stop.
pub const STOPPED: u8 = 130;

static ASKED: AtomicBool = AtomicBool::new(false);

/// From now on listens for Ctrl-C.
pub fn listen() -> Result<(), Failure> {
    let heard = || {
        // Relaxed: the flag stands alone.
        if ASKED.swap(true, Relaxed) {
            std::process::exit(i32::from(STOPPED));
        }
    };
    ctrlc::set_handler(heard).map_err(|error| Failure::Run(format!("cannot listen for Ctrl-C: {error}")))
}

/// Whether the run was asked to stop.
pub fn is_asked() -> bool {
    // Relaxed: the flag stands alone.
    ASKED.load(Relaxed)
}
