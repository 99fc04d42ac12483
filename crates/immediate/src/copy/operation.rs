//! Copies as bodies of a graph's operations.
//!
//! Each run finds out where the bytes of the plan's instances are and whether the instances are still there, so what a
//! run cannot use fails its operation by name and is never touched. Between runs an instance can be replaced by
//! another.

use std::fmt;
use std::sync::{Arc, PoisonError};

use phalanx_runtime::Function;
use phalanx_runtime::sync::RwLock;

use super::{CopyError, CopyPlan, Rebound};
use crate::instance::{Instance, InstanceId};

/// A plan that operations of graphs do, and whose instances can be replaced meanwhile. Clones are the same plan.
#[derive(Clone)]
pub struct SharedPlan(Arc<RwLock<CopyPlan>>);

impl SharedPlan {
    /// Shares `plan`.
    pub fn new(plan: CopyPlan) -> SharedPlan {
        SharedPlan(Arc::new(RwLock::new(plan)))
    }

    /// The body of an operation that does the plan. It never waits for an event, so the operation can be non-blocking
    /// or direct; it fails if an instance is not ready or gone, or if another operation uses the same bytes and nothing
    /// orders the two.
    pub fn function(&self) -> Function {
        let plan = self.clone();
        Box::new(move |context| {
            let outcome = plan.0.read().unwrap_or_else(PoisonError::into_inner).execute();
            if let Err(fault) = outcome {
                context.fail(fault);
            }
        })
    }

    /// Puts `new` in the place of the instance called `old`, for all operations that start afterwards; see
    /// [`CopyPlan::rebind`].
    pub fn rebind(&self, old: InstanceId, new: &Instance) -> Result<Rebound, CopyError> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).rebind(old, new)
    }
}

impl fmt::Display for SharedPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&*self.0.read().unwrap_or_else(PoisonError::into_inner), f)
    }
}
