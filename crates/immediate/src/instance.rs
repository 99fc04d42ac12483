//! Instances: elements of a rectangle, laid out in bytes of a memory or of the caller.
//!
//! An [`Instance`] is a handle; clones and views are the same bytes. It keeps its layout for good, so whatever was
//! worked out from the layout holds as long as the instance does. Bytes are touched only between entering and leaving
//! (`memory/access.rs`), which is what makes all of this safe to use from any thread in any order.
//!
//! Views are other layouts over the same bytes. They have no life of their own: they go with their instance.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

use arrayvec::ArrayVec;
use phalanx_program::MAX_RANK;
use phalanx_runtime::parts::Measured;
use phalanx_runtime::sync::{AtomicBool, Ordering};

use crate::layout::{Element, Layout, LayoutError};
use crate::memory::{AccessError, AccessMode, Actor, Entered, Footprint, Home, Owed, Refusal, Region, User};
use crate::space::Rect;

/// The name of an instance: a number and how many had it before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId {
    index: u32,
    generation: u32,
}

impl InstanceId {
    pub(crate) fn new(index: u32, generation: u32) -> InstanceId {
        InstanceId { index, generation }
    }

    /// Its number among those that are there.
    pub fn index(self) -> u32 {
        self.index
    }

    /// Which owner of the number it is.
    pub fn generation(self) -> u32 {
        self.generation
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "i{}.{}", self.index, self.generation)
    }
}

/// What all views of an instance share.
pub(crate) struct InstanceState {
    pub(crate) id: InstanceId,
    pub(crate) region: Arc<Region>,
    /// The memory whose range the region is; none if the caller supplied it.
    home: Weak<Home>,
    /// Whether an instance over bytes of the caller is gone. The bytes themselves stay open to others.
    detached: AtomicBool,
    measured: Option<Box<Measured>>,
}

impl InstanceState {
    pub(crate) fn new(
        id: InstanceId,
        region: Arc<Region>,
        home: Weak<Home>,
        measured: Option<Box<Measured>>,
    ) -> InstanceState {
        InstanceState { id, region, home, detached: AtomicBool::new(false), measured }
    }

    /// Notes something for the profile, if there is one.
    pub(crate) fn measure(&self, note: impl FnOnce(&Measured)) {
        if let Some(measured) = &self.measured {
            note(measured);
        }
    }

    /// It has its bytes now, from `start` on in its memory.
    pub(crate) fn open(&self, start: u64) {
        self.measure(Measured::ready);
        self.region.access.open(start as usize);
    }

    /// The memory it is in, if that is still there.
    pub(crate) fn home(&self) -> Option<Arc<Home>> {
        self.home.upgrade()
    }

    /// Ends an instance over bytes of the caller. Whether it had not ended.
    pub(crate) fn detach(&self) -> bool {
        // Relaxed: the flag guards no data; a copy that misses it writes bytes that the region keeps alive.
        !self.detached.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_released(&self) -> bool {
        // Relaxed: as in `detach`.
        self.detached.load(Ordering::Relaxed) || self.region.access.is_closed()
    }

    /// Lets `user` use its bytes until the result is dropped.
    #[inline]
    pub(crate) fn enter<'a>(&'a self, user: &'a User) -> Result<AccessGuard<'a>, AccessError> {
        if user.mode != AccessMode::Read && !self.region.is_writable() {
            return Err(AccessError::ReadOnly(self.id));
        }
        // Relaxed: as in `detach`.
        if self.detached.load(Ordering::Relaxed) {
            return Err(AccessError::Released(self.id));
        }
        loop {
            // SAFETY: `AccessGuard` borrows the user and leaves when it is dropped; nothing in this crate forgets one.
            match unsafe { self.region.access.enter(user) } {
                Ok(entered) => return Ok(AccessGuard { state: self, user, entered }),
                // The other reduction has all it needs and holds no lock we have, so it ends soon.
                Err(Refusal::Turn) => std::thread::yield_now(),
                Err(refusal) => return Err(self.explain(refusal, user.mode)),
            }
        }
    }

    #[cold]
    fn explain(&self, refusal: Refusal, mode: AccessMode) -> AccessError {
        let instance = self.id;
        match refusal {
            Refusal::NotReady => AccessError::NotReady(instance),
            Refusal::Released => AccessError::Released(instance),
            Refusal::Busy { by: other, mode: other_mode } => {
                AccessError::Unordered { instance, mode, other, other_mode }
            }
            Refusal::Turn => unreachable!("a reduction that must wait its turn tries again"),
        }
    }
}

/// Bytes of an instance that are in use.
pub(crate) struct AccessGuard<'a> {
    state: &'a InstanceState,
    user: &'a User,
    entered: Entered,
}

impl AccessGuard<'_> {
    /// The address of the instance's first byte; see [`Region::address`].
    pub(crate) fn address(&self) -> *mut u8 {
        self.state.region.address(&self.entered)
    }
}

impl Drop for AccessGuard<'_> {
    fn drop(&mut self) {
        if self.state.region.access.leave(self.user) == Owed::Bytes
            && let Some(home) = self.state.home.upgrade()
        {
            home.vacate(self.state.id);
        }
    }
}

/// Elements of a rectangle in memory.
#[derive(Clone)]
pub struct Instance {
    state: Arc<InstanceState>,
    view: Arc<View>,
}

/// Which elements.
struct View {
    layout: Layout,
    /// Where the first point of the layout lies in the coordinates of the whole instance, if elements are the same.
    whole_lo: Option<ArrayVec<i64, MAX_RANK>>,
}

/// A layout that needs more bytes than there are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rect} of {element} ends at byte {need} of {have}; use a smaller layout")]
pub struct DoesNotFit {
    /// The points.
    pub rect: Box<Rect>,
    /// What each holds.
    pub element: Element,
    /// Bytes that the layout needs.
    pub need: usize,
    /// Bytes that are there.
    pub have: usize,
}

impl DoesNotFit {
    /// Fails if `layout` does not fit `have` bytes.
    pub(crate) fn check(layout: &Layout, have: usize) -> Result<(), DoesNotFit> {
        if layout.end() <= have {
            return Ok(());
        }
        Err(DoesNotFit {
            rect: Box::new(*layout.rect()),
            element: layout.element(),
            need: layout.end(),
            have,
        })
    }
}

impl Instance {
    /// All of `state`, which holds `layout`: copies rely on it without further checks.
    pub(crate) fn new(state: Arc<InstanceState>, layout: Layout) -> Instance {
        assert!(layout.end() <= state.region.bytes(), "{} has room for its layout", state.id);
        let whole_lo = Some(layout.rect().lo().iter().copied().collect());
        Instance { state, view: Arc::new(View { layout, whole_lo }) }
    }

    /// Other elements of the same block, which holds `layout`.
    fn with(&self, layout: Layout, whole_lo: Option<ArrayVec<i64, MAX_RANK>>) -> Instance {
        Instance { state: Arc::clone(&self.state), view: Arc::new(View { layout, whole_lo }) }
    }

    pub(crate) fn state(&self) -> &Arc<InstanceState> {
        &self.state
    }

    /// Its name; views have that of the whole.
    pub fn id(&self) -> InstanceId {
        self.state.id
    }

    /// Where its elements lie.
    pub fn layout(&self) -> &Layout {
        &self.view.layout
    }

    /// Its points.
    pub fn rect(&self) -> &Rect {
        self.layout().rect()
    }

    /// Whether it is gone.
    pub fn is_released(&self) -> bool {
        self.state.is_released()
    }

    /// Whether its bytes may be written.
    pub fn is_writable(&self) -> bool {
        self.state.region.is_writable()
    }

    /// The points of `part` under the coordinates they have.
    pub fn view(&self, part: Rect) -> Result<Instance, LayoutError> {
        let whole_lo = self.to_whole(part.lo());
        Ok(self.with(self.layout().narrow(part)?, whole_lo))
    }

    /// The same points under coordinates that start at zero.
    pub fn zero_based(&self) -> Instance {
        self.with(self.layout().zero_based(), self.view.whole_lo.clone())
    }

    /// Other elements over the same bytes: a field of records, or bytes seen as numbers.
    pub fn alias(&self, layout: Layout) -> Result<Instance, DoesNotFit> {
        DoesNotFit::check(&layout, self.state.region.bytes())?;
        Ok(self.with(layout, None))
    }

    /// Calls `look` with the bytes from the first element to the last.
    pub fn read<R>(&self, look: impl FnOnce(&[u8]) -> R) -> Result<R, AccessError> {
        let span = self.layout().base()..self.layout().end();
        let user = host(AccessMode::Read, &span);
        let held = self.state.enter(&user)?;
        // SAFETY: the span lies in the region, by the check in `new`; `held` keeps writers out until it is dropped.
        let bytes =
            unsafe { std::slice::from_raw_parts(held.address().wrapping_add(span.start), span.len()) };
        Ok(look(bytes))
    }

    /// Calls `change` with the bytes from the first element to the last.
    pub fn write<R>(&self, change: impl FnOnce(&mut [u8]) -> R) -> Result<R, AccessError> {
        let span = self.layout().base()..self.layout().end();
        let user = host(AccessMode::Write, &span);
        let held = self.state.enter(&user)?;
        // SAFETY: as in `read`; `held` keeps all others out and is given to writable regions only.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(held.address().wrapping_add(span.start), span.len()) };
        Ok(change(bytes))
    }

    /// The bytes that the elements of `part` take, which is not empty and lies inside.
    pub(crate) fn footprint(&self, part: &Rect) -> Footprint {
        let start = self.layout().offset_inside(part.lo());
        let end = self.layout().offset_inside(part.hi()) + self.layout().element().bytes();
        let cells = || Rect::new(&self.to_whole(part.lo())?, &self.to_whole(part.hi())?).ok();
        Footprint { span: start..end, cells: cells().map(|cells| (self.id(), cells)) }
    }

    /// The coordinates of a point in the whole instance, if elements are the same.
    fn to_whole(&self, point: &[i64]) -> Option<ArrayVec<i64, MAX_RANK>> {
        let lo = self.rect().lo();
        let shift = |((&at, &lo), &whole): ((&i64, &i64), &i64)| whole.wrapping_add(at.wrapping_sub(lo));
        Some(point.iter().zip(lo).zip(self.view.whole_lo.as_ref()?).map(shift).collect())
    }
}

/// A closure over all bytes of `span`.
fn host(mode: AccessMode, span: &Range<usize>) -> User {
    User { actor: Actor::Host, mode, footprint: Footprint { span: span.clone(), cells: None } }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of {}", self.id(), self.rect(), self.layout().element())
    }
}
