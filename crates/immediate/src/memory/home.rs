//! One memory: its bytes, its allocator, and the events of instances that wait for bytes.
//!
//! An instance is *waiting* until it has a placement and its precondition has triggered; then it is opened and its
//! ready event triggers. Under the lock of `State`, instances of this memory keep their numbers, and all threads see
//! the same state of waiting. Events are triggered with no lock held, since their waiters may call back into this
//! memory.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;

use phalanx_program::Slice;
use phalanx_runtime::parts::Measured;
use phalanx_runtime::sync::{Mutex, MutexGuard, lock};
use phalanx_runtime::{Arena, Event, Fault, Outcome, Profile};

use super::access::Owed;
use super::allocator::{Allocator, Changes, Verdict};
use super::{Region, ReleaseError, World};
use crate::instance::{Instance, InstanceId};
use crate::layout::Layout;

/// One memory.
pub(crate) struct Home {
    name: Box<str>,
    capacity: u64,
    arena: Arc<Arena>,
    start: Start,
    world: Arc<World>,
    state: Mutex<State>,
}

/// The address of an arena's first byte.
struct Start(NonNull<u8>);

// SAFETY: only an address; what may be done with it is the matter of `Region`.
unsafe impl Send for Start {}
// SAFETY: as above.
unsafe impl Sync for Start {}

struct State {
    allocator: Allocator,
    /// Instances that are not ready, by number.
    waiting: BTreeMap<u32, Waiting>,
}

/// An instance that is not ready, and what it waits for.
struct Waiting {
    instance: Instance,
    ready: Event,
    /// Where its bytes start, if it has them.
    placement: Option<u64>,
    /// Whether its precondition has triggered.
    due: bool,
}

/// The ready event of an instance, and its outcome, to be triggered once the lock is released.
struct Trigger {
    instance: Instance,
    ready: Event,
    outcome: Outcome,
}

type Triggers = Vec<Trigger>;

impl Home {
    pub(super) fn new(name: &str, capacity: u64, world: &Arc<World>) -> Home {
        let mut arena = Arena::new(capacity);
        let all = arena.get_mut(Slice { lane: 0, offset: 0, bytes: capacity });
        let start = Start(NonNull::from(all).cast());
        let state = State { allocator: Allocator::new(capacity), waiting: BTreeMap::new() };
        let (arena, world, state) = (Arc::new(arena), Arc::clone(world), Mutex::new(state));
        Home { name: name.into(), capacity, arena, start, world, state }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes that are free now.
    pub(super) fn free(&self) -> u64 {
        lock(&self.state).allocator.free()
    }

    pub(super) fn create(
        self: &Arc<Home>,
        layout: Layout,
        align: u64,
        after: Event,
        profile: Option<&Profile>,
    ) -> (Instance, Event) {
        let bytes = layout.end();
        let region = Region::of_memory(Arc::clone(&self.arena), self.start.0, bytes);
        let instance = self.world.insert(layout, Arc::new(region), Arc::downgrade(self), profile);
        let (id, events) = (instance.id(), &self.world.events);
        let mut state = lock(&self.state);
        let (verdict, changes) = state.allocator.ask(id.index(), bytes as u64, align);
        let mut triggers = self.apply(&mut state, changes);
        let ready = match verdict {
            Verdict::Now(start) if matches!(events.outcome(after), Some(Ok(()))) => {
                instance.state().open(start);
                Event::NONE
            }
            Verdict::Now(start) => state.wait(&instance, events.create(), Some(start)),
            Verdict::Later => state.wait(&instance, events.create(), None),
            Verdict::Never(free) => {
                let ready = events.create();
                self.world.end(&instance);
                let outcome = Err(self.no_room(&instance, free));
                triggers.push(Trigger { instance: instance.clone(), ready, outcome });
                ready
            }
        };
        drop(state);
        self.trigger(triggers);
        if events.outcome(ready).is_none() {
            let home = Arc::clone(self);
            events.subscribe(after, move |outcome| home.precondition_of_create(id, outcome));
        }
        (instance, ready)
    }

    pub(super) fn release(self: &Arc<Home>, id: InstanceId, after: Event) -> Result<(), ReleaseError> {
        let mut state = lock(&self.state);
        // Under the lock an instance of this memory keeps its number.
        self.world.instances.get(id)?;
        if !state.allocator.accept_release(id.index()) {
            return Err(ReleaseError::Twice(id));
        }
        drop(state);
        let home = Arc::clone(self);
        self.world.events.subscribe(after, move |outcome| match outcome {
            Ok(()) => home.end(id),
            Err(_) => home.cancel_release(id),
        });
        Ok(())
    }

    /// The precondition of an allocation has triggered.
    fn precondition_of_create(&self, id: InstanceId, outcome: &Outcome) {
        let mut state = lock(&self.state);
        // It may have been abandoned.
        let Some(waiting) = state.waiting_mut(id) else { return };
        if let Err(fault) = outcome {
            return self.abandon(state, id, fault.clone());
        }
        waiting.due = true;
        let triggers = state.make_ready(id.index()).into_iter().collect();
        drop(state);
        self.trigger(triggers);
    }

    /// The release of an instance happens.
    fn end(&self, id: InstanceId) {
        // It is gone if its allocation failed.
        let Ok(instance) = self.world.instances.get(id) else { return };
        let mut state = lock(&self.state);
        if state.waiting_mut(id).is_some() {
            let why = "released before it was ready; release it after its ready event";
            return self.abandon(state, id, Fault::refused(format_args!("allocation of {id}"), why));
        }
        drop(state);
        if instance.state().region.access.close() == Owed::Bytes {
            self.vacate(id);
        }
    }

    /// Gives the bytes of an instance back that can no longer be reached.
    pub(crate) fn vacate(&self, id: InstanceId) {
        let mut state = lock(&self.state);
        let changes = state.allocator.release(id.index());
        // The number last: its next owner may ask the allocator for a placement at once.
        let gone = self.world.instances.remove(id);
        // Noted before others get the bytes, reported when the lock is released.
        gone.iter().for_each(|gone| gone.state().measure(|measured| measured.over(&Ok(()))));
        let triggers = self.apply(&mut state, changes);
        drop(state);
        gone.iter().for_each(|gone| gone.state().measure(Measured::deliver));
        self.trigger(triggers);
    }

    /// An instance that is waiting never will be ready.
    fn abandon(&self, mut state: MutexGuard<'_, State>, id: InstanceId, fault: Fault) {
        let changes = state.allocator.release(id.index());
        let mut triggers: Triggers = state.fail(&self.world, id.index(), fault).into_iter().collect();
        triggers.extend(self.apply(&mut state, changes));
        drop(state);
        self.trigger(triggers);
    }

    /// The release of an instance will not happen.
    fn cancel_release(&self, id: InstanceId) {
        let mut state = lock(&self.state);
        // An allocation that failed takes its release with it, and the number may have another owner.
        if self.world.instances.get(id).is_err() {
            return;
        }
        let changes = state.allocator.cancel_release(id.index());
        let triggers = self.apply(&mut state, changes);
        drop(state);
        self.trigger(triggers);
    }

    /// Triggers the events that a change in the allocator concerns.
    fn apply(&self, state: &mut State, changes: Changes) -> Triggers {
        let mut triggers = Triggers::new();
        for (key, start) in changes.granted {
            if let Some(waiting) = state.waiting.get_mut(&key) {
                waiting.placement = Some(start);
            }
            triggers.extend(state.make_ready(key));
        }
        for key in changes.failed {
            let free = state.allocator.free();
            let Some(waiting) = state.waiting.get(&key) else { continue };
            let fault = self.no_room(&waiting.instance, free);
            triggers.extend(state.fail(&self.world, key, fault));
        }
        triggers
    }

    fn trigger(&self, triggers: Triggers) {
        for Trigger { instance, ready, outcome } in triggers {
            if outcome.is_err() {
                instance.state().measure(|measured| measured.completed(&outcome));
            }
            // No other code can trigger a ready event.
            let _ = self.world.events.complete(ready, outcome);
        }
    }

    fn no_room(&self, instance: &Instance, free: u64) -> Fault {
        let (need, all) = (instance.layout().end(), self.capacity);
        let why = format_args!(
            "memory {} has {free} of {all} bytes free and no releases to come that make room for {need}; release \
             instances first",
            self.name
        );
        Fault::refused(format_args!("allocation of {}", instance.id()), why)
    }
}

impl State {
    fn waiting_mut(&mut self, id: InstanceId) -> Option<&mut Waiting> {
        self.waiting.get_mut(&id.index()).filter(|waiting| waiting.instance.id() == id)
    }

    /// Adds an instance that is not ready; its ready event.
    fn wait(&mut self, instance: &Instance, ready: Event, placement: Option<u64>) -> Event {
        let waiting = Waiting { instance: instance.clone(), ready, placement, due: false };
        self.waiting.insert(instance.id().index(), waiting);
        ready
    }

    /// Opens the instance if it has its bytes and its precondition has triggered.
    fn make_ready(&mut self, key: u32) -> Option<Trigger> {
        let start = self.waiting.get(&key).filter(|waiting| waiting.due)?.placement?;
        let Waiting { instance, ready, .. } = self.waiting.remove(&key)?;
        instance.state().open(start);
        Some(Trigger { instance, ready, outcome: Ok(()) })
    }

    /// Ends an instance that is not ready.
    fn fail(&mut self, world: &World, key: u32, fault: Fault) -> Option<Trigger> {
        let Waiting { instance, ready, .. } = self.waiting.remove(&key)?;
        world.end(&instance);
        Some(Trigger { instance, ready, outcome: Err(fault) })
    }
}
