//! Where ranks agree: all come, each brings bytes, all see what was brought.

use std::fmt;
use std::sync::Arc;

/// The agreement that is under way, and what the one before came to. One place suffices for that: the next one cannot
/// end before all ranks have come to it, and so have left this one.
pub(super) struct Meeting {
    /// How many have ended.
    pub(super) round: u64,
    call: Option<Call>,
    here: Vec<Option<Vec<u8>>>,
    /// What every rank brought to the one before.
    pub(super) brought: Arc<Vec<Vec<u8>>>,
    broken: Option<String>,
}

impl Meeting {
    pub(super) fn new(size: u32) -> Meeting {
        let here = (0..size).map(|_| None).collect();
        Meeting { round: 0, call: None, here, brought: Arc::default(), broken: None }
    }

    /// `rank` comes; if it is the last one, the meeting ends.
    pub(super) fn attend(&mut self, rank: u32, call: Call, mine: &[u8]) {
        let of_others = *self.call.get_or_insert(call);
        if of_others != call {
            self.broken = Some(format!("rank {rank} calls {call} where others call {of_others}"));
        }
        self.here[rank as usize] = Some(mine.to_vec());
        if self.broken.is_none() && self.here.iter().all(Option::is_some) {
            self.brought = Arc::new(self.here.iter_mut().filter_map(Option::take).collect());
            self.call = None;
            self.round += 1;
        }
    }

    /// Why it will not end.
    pub(super) fn problem(&self, gone: &[bool]) -> Option<String> {
        let missing = self.here.iter().zip(gone).position(|(here, gone)| here.is_none() && *gone);
        self.broken.clone().or_else(|| {
            let call = self.call.map(|call| call.to_string()).unwrap_or_default();
            missing.map(|rank| format!("rank {rank} has left the job and does not come to {call}"))
        })
    }
}

/// What ranks meet for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Connect,
    Barrier,
    Broadcast(u32),
    AllGather,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Connect => f.write_str("connect"),
            Call::Barrier => f.write_str("barrier"),
            Call::Broadcast(root) => write!(f, "broadcast from rank {root}"),
            Call::AllGather => f.write_str("all_gather"),
        }
    }
}
