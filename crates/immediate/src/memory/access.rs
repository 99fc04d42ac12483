//! The users inside an instance right now.
//!
//! Events order operations, and an operation that is not ordered after one it shares bytes with is its author's
//! mistake. Here is where that mistake is noticed instead of becoming a data race: a user that touches bytes enters
//! first, says which, and leaves after. Two may be inside if both read or if their bytes are apart; otherwise the
//! second is refused with the name of the first. Reductions into the same bytes commute, so the second one takes its
//! turn instead.
//!
//! # Protocol
//!
//! Mostly there is no other user, and then entering and leaving are one exchange each of one word, the *occupant*:
//!
//! | occupant | inside | may be changed by |
//! |---|---|---|
//! | `FREE` | no user, and it is open | a user that enters, to its own address; the holder of the lock, to `LISTED` |
//! | address of a user | that user alone | that user, to `FREE`; the holder of the lock, to `LISTED` |
//! | `LISTED` | those on the list, or it is not open | the holder of the lock that leaves an open, empty list, to `FREE` |
//!
//! A user that finds the occupant not free takes the lock, sets the occupant to `LISTED` and puts the user it found
//! there on the list. So no user is inside unseen: under the lock all users are on the list, and none can join or leave
//! without the lock. A user on the list is at its address until it leaves, for which it now needs the lock; so it may
//! be looked at.
//!
//! One plan may be inside twice, by two threads, under one address. Both are on the list then, and since they are the
//! same value it does not matter which of the two entries goes first. The occupant cannot hold that address while one
//! of them is on the list, because it is `LISTED`.
//!
//! What was done before a `leave` happens before what follows the next `enter`.

use std::ptr::{self, NonNull};

use phalanx_runtime::sync::{AtomicPtr, AtomicUsize, Mutex, MutexGuard, Ordering, lock};

use super::user::{AccessMode, Actor, User};

/// The users of one instance.
#[derive(Debug)]
pub(crate) struct Access {
    occupant: AtomicPtr<User>,
    /// Where the bytes start, once it is open.
    offset: AtomicUsize,
    list: Mutex<List>,
}

const FREE: *mut User = ptr::null_mut();
/// No user lies at so low an address.
const LISTED: *mut User = ptr::dangling_mut();

#[derive(Debug)]
struct List {
    phase: Phase,
    inside: Vec<Inside>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It has no bytes yet.
    Unready,
    Open,
    Closed,
}

/// The address of a user that is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inside(NonNull<User>);

// SAFETY: a user is a value that every thread may read.
unsafe impl Send for Inside {}

/// A user is inside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entered {
    /// Where the instance's bytes start.
    pub(crate) offset: usize,
}

/// Why a user cannot enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotReady,
    Released,
    /// Another one is in the way.
    Busy {
        by: Actor,
        mode: AccessMode,
    },
    /// Both reduce: try again, since the other one only has to finish.
    Turn,
}

/// What the caller that leaves or closes owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Owed {
    Nothing,
    /// To give the bytes back: it is closed and no user is inside.
    Bytes,
}

/// The orderings of the occupant word. Models weaken each to see themselves fail.
#[derive(Clone, Copy)]
struct Protocol {
    /// Acquire sees what was done before the occupant became free, and the offset; pairs with `leave`. Release
    /// publishes the user; pairs with `list`.
    enter: Ordering,
    /// Publishes what was done inside; pairs with `enter` and `list`.
    leave: Ordering,
    /// Sees the user it finds, or what the last one did; pairs with `enter` and `leave`.
    list: Ordering,
}

const PROTOCOL: Protocol =
    Protocol { enter: Ordering::AcqRel, leave: Ordering::Release, list: Ordering::Acquire };

impl Access {
    /// For an instance without bytes yet.
    pub(crate) fn unready() -> Access {
        let list = List { phase: Phase::Unready, inside: Vec::with_capacity(2) };
        Access { occupant: AtomicPtr::new(LISTED), offset: AtomicUsize::new(0), list: Mutex::new(list) }
    }

    /// For an instance whose bytes start at zero.
    pub(crate) fn ready() -> Access {
        let access = Access::unready();
        access.open(0);
        access
    }

    /// The instance has its bytes now, from `offset` on.
    pub(crate) fn open(&self, offset: usize) {
        let mut list = lock(&self.list);
        list.phase = Phase::Open;
        // Relaxed: published by the store behind it.
        self.offset.store(offset, Ordering::Relaxed);
        self.occupant.store(FREE, PROTOCOL.leave);
    }

    /// Lets no user in any more.
    pub(crate) fn close(&self) -> Owed {
        let mut list = self.list_all(PROTOCOL);
        list.phase = Phase::Closed;
        if list.inside.is_empty() { Owed::Bytes } else { Owed::Nothing }
    }

    /// Whether it is closed.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.list).phase == Phase::Closed
    }

    /// Lets `user` in.
    ///
    /// # Safety
    /// If it enters, it stays where it is until [`Access::leave`] has been called with it.
    #[inline]
    pub(crate) unsafe fn enter(&self, user: &User) -> Result<Entered, Refusal> {
        // SAFETY: the caller's promise.
        unsafe { self.enter_with(user, PROTOCOL) }
    }

    /// The user that entered is done.
    #[inline]
    pub(crate) fn leave(&self, user: &User) -> Owed {
        self.leave_with(user, PROTOCOL)
    }

    /// # Safety
    /// As [`Access::enter`].
    #[inline]
    unsafe fn enter_with(&self, user: &User, protocol: Protocol) -> Result<Entered, Refusal> {
        let address = ptr::from_ref(user).cast_mut();
        // Relaxed on failure: what follows takes the lock.
        if self.occupant.compare_exchange(FREE, address, protocol.enter, Ordering::Relaxed).is_err() {
            self.join_list(user, protocol)?;
        }
        // Relaxed: published by the thread that made the occupant free, or set the phase under the lock.
        Ok(Entered { offset: self.offset.load(Ordering::Relaxed) })
    }

    #[cold]
    fn join_list(&self, user: &User, protocol: Protocol) -> Result<(), Refusal> {
        let mut list = self.list_all(protocol);
        match list.phase {
            Phase::Unready => return Err(Refusal::NotReady),
            Phase::Closed => return Err(Refusal::Released),
            Phase::Open => {}
        }
        // SAFETY: a user on the list is at its address until it leaves, and for that it needs the lock, which we have.
        let mut others = list.inside.iter().map(|inside| unsafe { inside.0.as_ref() });
        if let Some(other) = others.find(|other| user.clashes(other)) {
            return Err(match (user.mode, other.mode) {
                (AccessMode::Reduce, AccessMode::Reduce) => Refusal::Turn,
                (_, mode) => Refusal::Busy { by: other.actor, mode },
            });
        }
        list.inside.push(Inside(user.into()));
        Ok(())
    }

    /// The list with all users on it that are inside. None joins or leaves until it is dropped.
    fn list_all(&self, protocol: Protocol) -> MutexGuard<'_, List> {
        let mut list = lock(&self.list);
        let before = self.occupant.swap(LISTED, protocol.list);
        if before != LISTED {
            list.inside.extend(NonNull::new(before).map(Inside));
        }
        list
    }

    #[inline]
    fn leave_with(&self, user: &User, protocol: Protocol) -> Owed {
        let address = ptr::from_ref(user).cast_mut();
        // Relaxed on failure: what follows takes the lock.
        match self.occupant.compare_exchange(address, FREE, protocol.leave, Ordering::Relaxed) {
            Ok(_) => Owed::Nothing,
            Err(_) => self.leave_list(user, protocol),
        }
    }

    #[cold]
    fn leave_list(&self, user: &User, protocol: Protocol) -> Owed {
        let mut list = lock(&self.list);
        let place = list.inside.iter().position(|inside| *inside == Inside(user.into()));
        list.inside.swap_remove(place.expect("a user that leaves has entered"));
        match (list.phase, list.inside.is_empty()) {
            (Phase::Closed, true) => return Owed::Bytes,
            (Phase::Open, true) => self.occupant.store(FREE, protocol.leave),
            _ => {}
        }
        Owed::Nothing
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests;
