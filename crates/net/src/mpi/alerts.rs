//! Texts between ranks that nobody waits for: one receive stands ready at all times, and sends are forgotten.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use super::abi::Handle;
use super::active::Owner;
use super::engine::Engine;
use super::library::Library;
use super::state::{Event, State};
use crate::NetError;

/// Bytes of the longest alert; what is longer is cut.
pub(crate) const LONGEST: usize = 64 * 1024;

/// The tag of alerts, which have a communicator of their own.
const TAG: c_int = 0;

type Hear = Arc<dyn Fn(u32, &str) + Send + Sync>;

/// Who hears alerts. Those that came before anybody did are kept.
#[derive(Default)]
pub(crate) struct Hearing(Mutex<Ears>);

#[derive(Default)]
struct Ears {
    hear: Option<Hear>,
    missed: Vec<(u32, String)>,
}

impl Hearing {
    /// From now on `hear` hears, first of all what was missed.
    pub(crate) fn set(&self, hear: Hear) {
        let missed = {
            let mut ears = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            ears.hear = Some(hear.clone());
            std::mem::take(&mut ears.missed)
        };
        for (from, text) in missed {
            hear(from, &text);
        }
    }

    /// An alert came.
    pub(crate) fn heard(&self, from: u32, text: String) {
        let hear = {
            let mut ears = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match &ears.hear {
                Some(hear) => hear.clone(),
                None => return ears.missed.push((from, text)),
            }
        };
        hear(from, &text);
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
        // A rank that cannot be reached must not keep the others from hearing.
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
pub(crate) unsafe fn read(state: &State, library: &Library, status: usize) -> Option<Event> {
    let mut length = 0;
    // SAFETY: the caller's duty; the status is that of a receive.
    unsafe { library.get_count(state.active.statuses.pointer(status), library.abi.byte, &mut length) }
        .ok()?;
    let from = u32::try_from(state.active.statuses.source(status)).ok()?;
    let bytes = state.alert.get(..usize::try_from(length).ok()?)?;
    Some(Event::Heard { from, text: String::from_utf8_lossy(bytes).into_owned() })
}
