//! Texts between ranks that no thread waits for: one receive stands ready at all times, and sends are forgotten.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use super::abi::Handle;
use super::active::Owner;
use super::engine::Engine;
use super::library::Library;
use super::state::{NetEvent, State};
use crate::NetError;

/// Bytes of the longest alert; what is longer is cut.
pub(crate) const LONGEST: usize = 64 * 1024;

/// The tag of alerts, which have a communicator of their own.
const TAG: c_int = 0;

type SharedCallback = Arc<dyn Fn(u32, &str) + Send + Sync>;

/// The callback for alerts. Alerts that came before it was set are kept.
#[derive(Default)]
pub(crate) struct AlertListener(Mutex<ListenerState>);

#[derive(Default)]
struct ListenerState {
    callback: Option<SharedCallback>,
    missed: Vec<(u32, String)>,
}

impl AlertListener {
    /// Calls `callback` with every alert from now on, first of all with those that were kept.
    pub(crate) fn set(&self, callback: SharedCallback) {
        let missed = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.callback = Some(callback.clone());
            std::mem::take(&mut state.missed)
        };
        for (from, text) in missed {
            callback(from, &text);
        }
    }

    /// An alert came.
    pub(crate) fn deliver(&self, from: u32, text: String) {
        let callback = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match &state.callback {
                Some(callback) => callback.clone(),
                None => return state.missed.push((from, text)),
            }
        };
        callback(from, &text);
    }
}

/// Sends a text to all other ranks.
///
/// # Safety
/// No other thread is in the library.
pub(crate) unsafe fn send(state: &mut State, engine: &Engine, text: &str) {
    // A letter that is cut in two arrives as a mark of something unreadable.
    let bytes: Arc<[u8]> = text.as_bytes()[..text.len().min(LONGEST)].into();
    for peer in (0..engine.size).filter(|peer| *peer != engine.rank) {
        let mut request = 0;
        let (start, count, byte) = (bytes.as_ptr().cast(), bytes.len() as c_int, engine.library.abi.byte);
        // SAFETY: the caller's duty; the owner keeps the bytes.
        let sent = unsafe {
            engine.library.isend(start, count, byte, peer as c_int, TAG, engine.comms.alerts, &mut request)
        };
        // A rank that cannot be reached must not keep the text from the others.
        if sent.is_ok() {
            state.active.push(request, Owner::AlertOut(bytes.clone()));
        }
    }
}

/// Makes a receive stand ready.
///
/// # Safety
/// No other thread is in the library, and no other receive uses the state's buffer.
pub(crate) unsafe fn listen(state: &mut State, library: &Library, comm: Handle) -> Result<(), NetError> {
    let mut request = 0;
    let (start, abi) = (state.alert.as_mut_ptr().cast(), &library.abi);
    // SAFETY: the caller's duty; the buffer has as many bytes.
    unsafe {
        library.irecv(start, LONGEST as c_int, abi.byte, abi.any_source, abi.any_tag, comm, &mut request)
    }?;
    state.active.push(request, Owner::Alert);
    Ok(())
}

/// What came, by the status with this number.
///
/// # Safety
/// No other thread is in the library.
pub(crate) unsafe fn read(state: &State, library: &Library, status: usize) -> Option<NetEvent> {
    let mut length = 0;
    // SAFETY: the caller's duty; the status is that of a receive.
    unsafe { library.get_count(state.active.statuses.pointer(status), library.abi.byte, &mut length) }
        .ok()?;
    let from = u32::try_from(state.active.statuses.source(status)).ok()?;
    let bytes = state.alert.get(..usize::try_from(length).ok()?)?;
    Some(NetEvent::Alert { from, text: String::from_utf8_lossy(bytes).into_owned() })
}
