//! Memories: bytes, instances in them, and instances that wait for bytes.
//!
//! Everything is deferred: an allocation returns at once, with an event that triggers when the instance has its bytes;
//! a release happens when its precondition has. An allocation that can never come about is poisoned at once.
//!
//! A release whose precondition fails does not happen: the instance stays usable and may be released again. An
//! allocation that relied on it gets other bytes or is poisoned. A release that meets a copy at work takes effect when
//! the copy is done.
//!
//! Here are the handles. `home` keeps one memory's events, `allocator` decides which instance gets which bytes,
//! `region` is the bytes, `user` says which operation uses which of them, `access` which are inside, `directory` has
//! all instances by name.

mod access;
mod allocator;
mod directory;
mod holes;
mod home;
mod region;
mod user;

use std::fmt;
use std::sync::{Arc, Weak};

use phalanx_runtime::parts::Measured;
use phalanx_runtime::sync::AtomicU32;
use phalanx_runtime::{Clock, Event, Events, Profile, Runtime};

use crate::instance::{DoesNotFit, Instance, InstanceId, InstanceState};
use crate::layout::{Element, Layout, LayoutError};
use crate::space::Rect;
use directory::Directory;

pub(crate) use access::{Entered, Owed, Refusal};
pub use directory::StaleInstance;
pub(crate) use home::Home;
pub use region::External;
pub(crate) use region::Region;
pub use user::{AccessError, AccessMode, Actor};
pub(crate) use user::{Footprint, User};

/// Where instances made from a layout start: a multiple of this, as cache lines do.
const ALIGN: u64 = 64;

/// The memories of a runtime and all instances in them. Clones are the same.
#[derive(Clone)]
pub struct Memories {
    pub(crate) world: Arc<World>,
    /// What instances and copies made through this handle are reported to.
    pub(crate) profile: Option<Profile>,
}

/// What memories share.
pub(crate) struct World {
    pub(crate) events: Arc<Events>,
    /// Copy plans made so far: their numbers.
    pub(crate) plans: AtomicU32,
    pub(crate) clock: Clock,
    instances: Directory,
}

/// Why an instance cannot be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// It is gone.
    #[error(transparent)]
    Stale(#[from] StaleInstance),
    /// A release was requested before.
    #[error("the release of {0} was asked for before; release an instance once")]
    Twice(InstanceId),
}

impl Default for Memories {
    fn default() -> Memories {
        Memories::new()
    }
}

impl Memories {
    /// No memories yet, with events of their own and a clock that stands at 0.
    pub fn new() -> Memories {
        Memories::with(Arc::new(Events::default()), || 0)
    }

    /// No memories yet, whose operations work with the events of `runtime`.
    pub fn of(runtime: &Runtime) -> Memories {
        Memories::with(Arc::clone(runtime.events()), runtime.clock())
    }

    /// No memories yet; operations trigger events of `events`.
    fn with(events: Arc<Events>, clock: Clock) -> Memories {
        let (plans, instances) = (AtomicU32::new(0), Directory::default());
        let world = Arc::new(World { events, plans, clock, instances });
        Memories { world, profile: None }
    }

    /// The same memories; `profile` gets a report of each copy started and each instance made through this handle and
    /// through memories made by it.
    pub fn profiled(&self, profile: &Profile) -> Memories {
        Memories { world: Arc::clone(&self.world), profile: Some(profile.clone()) }
    }

    /// The events that operations here wait for and trigger.
    pub fn events(&self) -> &Arc<Events> {
        &self.world.events
    }

    /// A new memory of `capacity` bytes; `name` is for messages.
    pub fn memory(&self, name: &str, capacity: u64) -> Memory {
        let home = Arc::new(Home::new(name, capacity, &self.world));
        Memory { home, profile: self.profile.clone() }
    }

    /// An instance over bytes of the caller, ready at once.
    pub fn attach(&self, external: &External, layout: Layout) -> Result<Instance, DoesNotFit> {
        DoesNotFit::check(&layout, external.bytes())?;
        let region = Arc::clone(&external.0);
        let instance = self.world.insert(layout, region, Weak::new(), self.profile.as_ref());
        instance.state().measure(Measured::ready);
        Ok(instance)
    }

    /// The instance called `id`.
    pub fn instance(&self, id: InstanceId) -> Result<Instance, StaleInstance> {
        self.world.instances.get(id)
    }

    /// Releases an instance when `after` has triggered; not at all if that is poisoned.
    pub fn release(&self, id: InstanceId, after: Event) -> Result<(), ReleaseError> {
        let instance = self.world.instances.get(id)?;
        if let Some(home) = instance.state().home() {
            return home.release(id, after);
        }
        let world = Arc::clone(&self.world);
        self.world.events.subscribe(after, move |outcome| {
            if outcome.is_ok() && instance.state().detach() {
                world.instances.remove(id);
                instance.state().measure(|measured| measured.completed(&Ok(())));
            }
        });
        Ok(())
    }

    /// Numbers of instances ever used: the most that were there at the same time.
    pub fn ids_used(&self) -> usize {
        self.world.instances.used()
    }
}

impl World {
    /// Adds an instance whose layout fits `region`.
    fn insert(
        &self,
        layout: Layout,
        region: Arc<Region>,
        home: Weak<Home>,
        profile: Option<&Profile>,
    ) -> Instance {
        self.instances.insert(|id| {
            let measured = profile.map(|profile| self.measure(profile, id, layout.end()));
            Instance::new(Arc::new(InstanceState::new(id, region, home, measured)), layout)
        })
    }

    /// A profile was requested for an instance. Cold, so that instances without one do not pay for it.
    #[cold]
    fn measure(&self, profile: &Profile, id: InstanceId, bytes: usize) -> Box<Measured> {
        Box::new(Measured::instance(profile, self.clock, &id.to_string()).of_bytes(bytes))
    }

    /// Ends an instance that never became ready.
    fn end(&self, instance: &Instance) {
        // Nothing is owed: it has no placement, or the allocator has taken it.
        let _ = instance.state().region.access.close();
        self.instances.remove(instance.id());
    }
}

/// A memory. Clones are the same.
#[derive(Clone)]
pub struct Memory {
    home: Arc<Home>,
    /// What instances made through this handle are reported to.
    profile: Option<Profile>,
}

impl Memory {
    /// The same memory; `profile` gets a report of each instance made through this handle: when it was ready or
    /// refused, and when it gave its bytes back.
    pub fn profiled(&self, profile: &Profile) -> Memory {
        Memory { home: Arc::clone(&self.home), profile: Some(profile.clone()) }
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        self.home.name()
    }

    /// How many bytes it has.
    pub fn capacity(&self) -> u64 {
        self.home.capacity()
    }

    /// How many of them are free now.
    pub fn free(&self) -> u64 {
        self.home.free()
    }

    /// An instance of `bytes` plain bytes at a multiple of `align`, and the event of its having them.
    pub fn allocate(&self, bytes: u64, align: u64, after: Event) -> Result<(Instance, Event), LayoutError> {
        let element = Element::Bytes(1);
        let last = i64::try_from(bytes).unwrap_or(i64::MAX) - 1;
        let rect = Rect::new(&[0], &[last]).expect("both bounds have one coordinate");
        let layout = Layout::row_major(element, rect)?;
        Ok(self.home.create(layout, align.max(1), after, self.profile.as_ref()))
    }

    /// An instance with this layout, and the event of its having its bytes: when `after` has triggered, and what was
    /// released before has made room. Poisoned at once if there will never be room, later if `after` or a release
    /// that it relies on is. What the bytes hold at first is whatever was there.
    pub fn create(&self, layout: Layout, after: Event) -> (Instance, Event) {
        self.home.create(layout, ALIGN, after, self.profile.as_ref())
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory {} of {} bytes", self.name(), self.capacity())
    }
}
