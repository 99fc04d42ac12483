//! Groups: one queue that several processors serve beside their own.

use std::sync::Arc;

use super::Processor;
use super::queue::Queue;

/// Processors that share a queue. A task of the group runs on whichever member comes to it first; of a task of the
/// group and one of the member's own with the same priority, a member takes its own first. Dropping the group takes
/// nothing from its tasks: they run all the same, on any member.
#[derive(Clone)]
pub struct Group(Arc<Queue>);

/// Why there is no such group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// It has no members.
    #[error("a group of no processors would never run a task; give it at least one")]
    Empty,
    /// A member does not exist.
    #[error("a group with processor {processor} of a runtime with {processors}; members are 0 to {}", processors - 1)]
    NoSuchProcessor {
        /// The member.
        processor: u32,
        /// How many processors the runtime has.
        processors: u32,
    },
}

impl Group {
    pub(crate) fn new(members: &[Arc<Processor>]) -> Result<Group, GroupError> {
        let first = members.first().ok_or(GroupError::Empty)?;
        Ok(Group(Arc::new(Queue::shared(members, &first.own))))
    }

    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.0
    }
}
