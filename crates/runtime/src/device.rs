//! Devices that do what they are given in order, later: the seam where a GPU plugs in.
//!
//! A device has *lanes*. What is enqueued on a lane happens in that order; lanes are independent of each other except
//! through *tokens*: recording a token on a lane gives a number that fires when everything enqueued there before is
//! done, and another lane can be made to wait for it. The host is notified when a token has fired.
//!
//! Three rules keep devices from blocking each other forever, whatever lanes the driver maps onto one queue:
//!
//! 1. a lane may wait only for a token that has been recorded already;
//! 2. an operation with effects on a device is issued only when everything it depends on, events from outside included,
//!    has happened on the host, tokens of its own graph left aside;
//! 3. graphs, and graphs and other work, are ordered by host events only.
//!
//! Order all calls to devices by the time of their issue: every wait, and every false order of two lanes that share a
//! queue, points from a later call to an earlier one. So there is no circle.

use crate::fault::Outcome;

/// A lane of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lane(pub u32);

/// A point in the work of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// A device, as the runtime sees it. All calls return at once.
pub trait Device: Send + Sync {
    /// A lane for the caller alone, until it is given back.
    fn lease(&self) -> Lane;

    /// Gives a lane back; everything on it is done.
    fn give_back(&self, lane: Lane);

    /// Does `work` after everything enqueued on `lane` before. A panic in it makes the tokens recorded after it on the
    /// lane fire poisoned.
    fn enqueue(&self, lane: Lane, work: Box<dyn FnOnce() + Send>);

    /// A token that fires when everything enqueued on `lane` so far is done.
    fn record(&self, lane: Lane) -> Token;

    /// A token that fires when everything enqueued on any lane so far is done.
    fn record_all(&self) -> Token;

    /// Lets what is enqueued on `lane` from now on happen after `token` has fired. If that is poisoned, tokens recorded
    /// on the lane from now on are too.
    fn wait(&self, lane: Lane, token: Token);

    /// Calls `then` when `token` has fired, on a thread of the device or on this one. A device calls it before it begins
    /// other work, on whichever lane: the end of a run is heard when it happens.
    fn when_fired(&self, token: Token, then: Box<dyn FnOnce(Outcome) + Send>);
}
