//! The requests that are under way, side by side as the library tests them, and what each belongs to.

use std::ffi::c_int;
use std::sync::{Arc, OnceLock};

use super::abi::{Handle, Handles, Statuses};
use super::library::{Library, TestOutcome};
use crate::NetError;

/// What waits for one request.
pub(crate) type Ticket = OnceLock<Result<(), NetError>>;

/// What a request belongs to.
#[derive(Debug)]
pub(crate) enum Owner {
    /// The standing receive of alerts.
    Alert,
    /// An alert on its way; the bytes live until it has arrived.
    AlertOut(#[allow(dead_code, reason = "it only keeps the bytes")] Arc<[u8]>),
    /// A thread that waits for an agreement.
    Ticket(Arc<Ticket>),
    /// One message of a batch.
    Message {
        /// Of which connection.
        connection: u32,
        /// Of which of its batches.
        batch: u32,
        /// Which of the batch.
        message: u32,
    },
}

impl Owner {
    /// Whether a thread or callback waits for it: alerts come and go by themselves.
    fn counts(&self) -> bool {
        matches!(self, Owner::Ticket(_) | Owner::Message { .. })
    }
}

/// A request that is complete.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Whose it was.
    pub owner: Owner,
    /// Number of its status, until the next test.
    pub status: usize,
    /// The code of what went wrong.
    pub error: Option<c_int>,
}

/// All requests under way.
pub(crate) struct Active {
    handles: Handles,
    owners: Vec<Owner>,
    /// How many of them are waited for.
    pub awaited: usize,
    /// Statuses of those that were complete at the last test.
    pub statuses: Statuses,
    indices: Vec<c_int>,
    /// Numbers of statuses.
    order: Vec<usize>,
}

impl Active {
    /// None.
    pub(crate) fn new(library: &Library) -> Active {
        Active {
            handles: Handles::new(&library.abi),
            owners: Vec::new(),
            awaited: 0,
            statuses: Statuses::new(library.abi.status),
            indices: Vec::new(),
            order: Vec::new(),
        }
    }

    /// Adds a request that was started.
    ///
    /// In line, so that the owner is written where it stays: written in parts elsewhere and copied as a whole right
    /// behind a message, it would wait until that has left this core.
    #[inline(always)]
    pub(crate) fn push(&mut self, request: Handle, owner: Owner) {
        self.awaited += owner.counts() as usize;
        self.handles.push(request);
        self.owners.push(owner);
        self.make_room();
    }

    /// Sees to it that all can be complete at once.
    fn make_room(&mut self) {
        let n = self.owners.len();
        if self.indices.len() < n {
            self.indices.resize(n, 0);
            self.statuses.reserve(n);
        }
    }

    /// Moves those that are complete to `finished`.
    ///
    /// # Safety
    /// No other thread is in the library, and the memory of all requests is there.
    pub(crate) unsafe fn test(
        &mut self,
        library: &Library,
        finished: &mut Vec<Finished>,
    ) -> Result<(), NetError> {
        let (n, mut completed) = (self.owners.len(), 0);
        let (requests, indices) = (self.handles.as_mut_ptr(), self.indices.as_mut_ptr());
        let statuses = self.statuses.as_mut_ptr();
        // SAFETY: the arrays have at least `n` elements each.
        let outcome = unsafe { library.test_some(n as c_int, requests, &mut completed, indices, statuses) }?;
        // If no request among them is active, the count is negative.
        if completed > 0 {
            self.remove(completed as usize, outcome, finished);
        }
        Ok(())
    }

    fn remove(&mut self, completed: usize, outcome: TestOutcome, finished: &mut Vec<Finished>) {
        self.order.clear();
        self.order.extend(0..completed);
        // From the highest index on, so that the others stay where they are.
        self.order.sort_unstable_by_key(|status| std::cmp::Reverse(self.indices[*status]));
        for &status in &self.order {
            let index = self.indices[status] as usize;
            self.handles.swap_remove(index);
            let owner = self.owners.swap_remove(index);
            self.awaited -= owner.counts() as usize;
            let error = Some(self.statuses.error(status))
                .filter(|error| outcome == TestOutcome::Statuses && *error != 0);
            finished.push(Finished { owner, status, error });
        }
    }

    /// Gives up all that are waited for.
    pub(crate) fn give_up(&mut self) -> Vec<Owner> {
        self.awaited = 0;
        self.handles.clear();
        std::mem::take(&mut self.owners)
    }

    /// Whether alerts are still on their way.
    pub(crate) fn alerts_out(&self) -> bool {
        self.owners.iter().any(|owner| matches!(owner, Owner::AlertOut(_)))
    }

    /// The standing receive of alerts.
    pub(crate) fn standing(&self) -> Option<Handle> {
        let index = self.owners.iter().position(|owner| matches!(owner, Owner::Alert))?;
        Some(self.handles.get(index))
    }
}
