//! The directory of instances: numbers that are used again, each time with the next generation.
//!
//! An id of an older generation never finds the instance that has its number now.

use phalanx_runtime::sync::{Mutex, lock};

use crate::instance::{Instance, InstanceId};

/// The id names an instance that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} has been released; name the instance that took its place")]
pub struct StaleInstance(pub InstanceId);

/// All instances that are there.
#[derive(Default)]
pub(crate) struct Directory(Mutex<State>);

#[derive(Default)]
struct State {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    /// Of the instance that is here, or of the next one.
    generation: u32,
    instance: Option<Instance>,
}

impl Directory {
    /// Adds the instance that `make` makes of its id.
    pub(crate) fn insert(&self, make: impl FnOnce(InstanceId) -> Instance) -> Instance {
        let mut state = lock(&self.0);
        let index = state.free.pop().unwrap_or_else(|| {
            state.slots.push(Slot { generation: 1, instance: None });
            u32::try_from(state.slots.len() - 1).expect("fewer than four billion instances at a time")
        });
        let slot = &mut state.slots[index as usize];
        let instance = make(InstanceId::new(index, slot.generation));
        slot.instance = Some(instance.clone());
        instance
    }

    pub(crate) fn get(&self, id: InstanceId) -> Result<Instance, StaleInstance> {
        let state = lock(&self.0);
        let slot = state.slots.get(id.index() as usize).filter(|slot| slot.generation == id.generation());
        slot.and_then(|slot| slot.instance.clone()).ok_or(StaleInstance(id))
    }

    /// Takes the instance out, if it is still here, and gives its number free.
    pub(crate) fn remove(&self, id: InstanceId) -> Option<Instance> {
        let state = &mut *lock(&self.0);
        let slot = state.slots.get_mut(id.index() as usize)?;
        let instance = slot.instance.take_if(|_| slot.generation == id.generation())?;
        // A number whose generations are used up is not used again.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            state.free.push(id.index());
        }
        Some(instance)
    }

    /// Numbers ever used: the most instances at the same time.
    pub(crate) fn used(&self) -> usize {
        lock(&self.0).slots.len()
    }
}
