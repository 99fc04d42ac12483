//! Models of the occupant word: writers inside are alone, see each other's bytes, and a user that is refused sees which
//! one is in the way.

use std::panic::catch_unwind;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread::spawn;

use super::*;
use crate::memory::user::Footprint;

/// An instance, the bytes of it, and what every user prepares before it enters.
struct Instance {
    access: Access,
    bytes: Cell,
    prepared: [Cell; 2],
    users: [User; 2],
}

/// A word that loom watches.
#[derive(Default)]
struct Cell(UnsafeCell<u32>);

// SAFETY: loom checks every access.
unsafe impl Sync for Cell {}
// SAFETY: as above.
unsafe impl Send for Cell {}

impl Cell {
    fn add(&self) {
        // SAFETY: loom checks that no other thread has access.
        self.0.with_mut(|cell| unsafe { *cell += 1 });
    }

    fn get(&self) -> u32 {
        // SAFETY: loom checks that no other thread writes.
        self.0.with(|cell| unsafe { *cell })
    }
}

impl Instance {
    fn new() -> Instance {
        let user = |number| User {
            actor: Actor::Copy(number),
            mode: AccessMode::Write,
            footprint: Footprint { span: 0..8, cells: None },
        };
        Instance {
            access: Access::ready(),
            bytes: Cell::default(),
            prepared: Default::default(),
            users: [user(0), user(1)],
        }
    }

    /// Prepares, enters, writes and leaves; what leaving owes. A user that is in the way has prepared.
    fn use_bytes(&self, number: usize, protocol: Protocol) -> Result<Owed, Refusal> {
        let user = &self.users[number];
        self.prepared[number].add();
        // SAFETY: users are part of the instance, which outlives its threads.
        let entered = unsafe { self.access.enter_with(user, protocol) };
        match entered {
            Err(refusal) => {
                if let Refusal::Busy { .. } = refusal {
                    assert_eq!(self.prepared[1 - number].get(), 1);
                }
                Err(refusal)
            }
            Ok(_) => {
                self.bytes.add();
                Ok(self.access.leave_with(user, protocol))
            }
        }
    }
}

/// Two users write at the same time; the one that is refused finds the other one prepared.
fn two_write(protocol: Protocol) {
    let instance = Arc::new(Instance::new());
    let other = spawn({
        let instance = Arc::clone(&instance);
        move || instance.use_bytes(1, protocol)
    });
    let first = instance.use_bytes(0, protocol);
    let outcomes = [first, other.join().expect("it does not panic")];
    let inside = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert!(inside > 0, "two refuse each other");
    assert_eq!(instance.access.close(), Owed::Bytes);
    assert_eq!(instance.bytes.get() as usize, inside);
}

/// One writes while another one closes: the bytes are owed once, when no user is inside.
fn one_closes(protocol: Protocol) {
    let instance = Arc::new(Instance::new());
    let other = spawn({
        let instance = Arc::clone(&instance);
        move || instance.use_bytes(1, protocol)
    });
    let mut list = instance.access.list_all(protocol);
    list.phase = Phase::Closed;
    let empty = list.inside.is_empty();
    drop(list);
    if empty {
        instance.bytes.add();
    }
    let left = other.join().expect("it does not panic");
    assert_eq!(left == Ok(Owed::Bytes), !empty, "the bytes are given back once");
    assert_ne!(left, Err(Refusal::NotReady));
}

/// Runs `model` in every order; whether loom found one in which it fails.
fn fails(model: impl Fn() + Sync + Send + std::panic::UnwindSafe + 'static) -> bool {
    catch_unwind(|| loom::model(model)).is_err()
}

#[test]
fn who_is_inside_is_alone_and_seen() {
    loom::model(|| two_write(PROTOCOL));
}

#[test]
fn the_bytes_of_a_closed_instance_are_owed_once() {
    loom::model(|| one_closes(PROTOCOL));
}

#[test]
fn a_weaker_door_fails() {
    let (acquire, release, relaxed) = (Ordering::Acquire, Ordering::Release, Ordering::Relaxed);
    assert!(fails(move || two_write(Protocol { enter: acquire, ..PROTOCOL })), "the user is not published");
    assert!(fails(move || two_write(Protocol { enter: release, ..PROTOCOL })), "the bytes are not seen");
    assert!(fails(move || two_write(Protocol { leave: relaxed, ..PROTOCOL })), "the bytes are not published");
    assert!(fails(move || two_write(Protocol { list: relaxed, ..PROTOCOL })), "the user is not seen");
    assert!(
        fails(move || one_closes(Protocol { list: relaxed, ..PROTOCOL })),
        "the bytes are given back early"
    );
}
