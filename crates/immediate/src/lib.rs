//! What a task runtime has beyond replay: barriers, reservations, memories with instances in them, fills, copies and
//! ordered reductions between instances, and a device without hardware. No training step goes through this crate.
//!
//! Everything is deferred: it happens after an event of a [`Runtime`](phalanx_runtime::Runtime) and gives an event.
//!
//! Unsafe code lives where bytes are shared with their users: `memory`, `instance` and `copy`.

mod barrier;
mod copy;
mod instance;
mod layout;
mod memory;
mod reservation;
mod software;
mod space;

pub use barrier::{Arrival, Barrier, BarrierError, Barriers, NoResult};
pub use copy::{
    CopyError, CopyKind, CopyPlan, Initial, MAX_INLINE_COPY, MAX_SOURCES, Rebound, Reduction, SharedPlan,
};
pub use instance::{DoesNotFit, Instance, InstanceId};
pub use layout::{Element, Layout, LayoutError, MAX_ELEMENT};
pub use memory::{AccessError, AccessMode, Actor, External, Memories, Memory, ReleaseError, StaleInstance};
pub use reservation::{Mode, NotHeld, Reservation};
pub use software::{DrainMode, QueueOrder, Software, SoftwareConfig};
pub use space::{Rect, RectError};
