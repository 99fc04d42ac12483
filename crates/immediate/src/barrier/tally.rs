//! Counts the arrivals of one barrier. No events are triggered and nothing is locked here.
//!
//! The generation in flight is the oldest that has not triggered. Only it can complete, so generations do so in order.
//! It needs `needs` arrivals and what its own alterations add; completing makes those part of `needs`. A generation
//! needs at least one arrival, so one without arrivals is not complete.
//!
//! An alteration is announced, with a stamp, before it is delivered. Messages made with a handle of that stamp are held
//! until it is applied: an arrival never counts before the increase that makes room for it.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;

use phalanx_runtime::{Event, Fault};

use super::{Barrier, BarrierError, NoResult};

/// Sums of past generations that can be read.
const RESULTS_KEPT: usize = 1000;

/// What is done to a barrier, when its time has come.
pub(super) struct Message {
    pub(super) barrier: Barrier,
    pub(super) change: Change,
    /// The fault of what came before: the change is made all the same, and the generation poisoned.
    pub(super) fault: Option<Fault>,
}

#[derive(Clone, Copy)]
pub(super) enum Change {
    Arrive { count: u32, value: i64 },
    Alter { delta: i32, stamp: u64 },
}

#[derive(Default)]
pub(super) struct Tally {
    /// The first generation since the barrier was created; earlier ones belong to a destroyed one in the same place.
    first: u32,
    /// The generation in flight.
    current: u32,
    /// Arrivals that the generation in flight needs, without its own alterations. Zero: there is no barrier.
    needs: i64,
    /// Generations in flight or ahead that have been touched.
    phases: BTreeMap<u32, Phase>,
    /// Sums of the generations before the one in flight, the last one last.
    results: VecDeque<i64>,
    /// Generations that failed, with their events.
    failed: Vec<(u32, Event)>,
    /// The last stamp given.
    stamps: u64,
    /// Stamps of alterations that are announced and not applied.
    announced: Vec<u64>,
    /// Messages that wait for one of those.
    held: Vec<Message>,
}

#[derive(Default)]
struct Phase {
    event: Option<Event>,
    arrived: i64,
    /// What alterations from this generation on add to the arrivals needed.
    altered: i64,
    sum: i64,
    fault: Option<Fault>,
}

impl Tally {
    /// Starts a new barrier; the generation it starts with.
    pub(super) fn open(&mut self, needs: NonZeroU32) -> u32 {
        self.needs = needs.get().into();
        self.current = self.current.max(1);
        self.first = self.current;
        self.current
    }

    /// Ends the barrier; events of generations that have not triggered.
    pub(super) fn close(&mut self, barrier: Barrier) -> Result<Vec<(u32, Event)>, BarrierError> {
        self.verify_exists(barrier)?;
        let phases = std::mem::take(&mut self.phases);
        self.current = phases.keys().last().map_or(self.current, |last| last + 1);
        self.needs = 0;
        self.results.clear();
        self.announced.clear();
        self.held.clear();
        Ok(phases.into_iter().filter_map(|(generation, phase)| Some((generation, phase.event?))).collect())
    }

    /// Whether another barrier can follow: it should not be the one to run out of generations.
    pub(super) fn has_generations(&self) -> bool {
        self.current < Barrier::END / 2
    }

    /// A stamp for an alteration of `barrier` that will be delivered.
    pub(super) fn announce(&mut self, barrier: Barrier) -> Result<u64, BarrierError> {
        self.verify_in_flight(barrier)?;
        self.stamps += 1;
        self.announced.push(self.stamps);
        Ok(self.stamps)
    }

    /// Applies `message`, and what was held back for it; or holds it back for the alteration that it depends on.
    pub(super) fn deliver(&mut self, message: Message) -> Result<(), BarrierError> {
        if self.announced.contains(&message.barrier.stamp) {
            self.held.push(message);
            return Ok(());
        }
        let applied = self.apply(message);
        let free = |tally: &Tally| {
            tally.held.iter().position(|message| !tally.announced.contains(&message.barrier.stamp))
        };
        while let Some(place) = free(self) {
            let message = self.held.swap_remove(place);
            self.apply_late(message);
        }
        applied
    }

    /// As `deliver`, for a message whose sender has gone: what it cannot do poisons the generation in flight.
    pub(super) fn deliver_late(&mut self, message: Message) {
        let barrier = message.barrier;
        if let Err(error) = self.deliver(message) {
            self.poison_current(barrier, error);
        }
    }

    /// Takes out the generation in flight if it is complete: its number, event and fault.
    pub(super) fn pop_complete(&mut self) -> Option<(u32, Option<Event>, Option<Fault>)> {
        let phase = self.phases.get(&self.current)?;
        if phase.arrived < self.needs + phase.altered {
            return None;
        }
        let generation = self.current;
        let phase = self.phases.remove(&generation)?;
        self.needs += phase.altered;
        self.current += 1;
        if self.results.len() == RESULTS_KEPT {
            self.results.pop_front();
        }
        self.results.push_back(phase.sum);
        Some((generation, phase.event, phase.fault))
    }

    /// The event of a generation, made by `create` if it is the first time that one is asked for.
    pub(super) fn event(
        &mut self,
        barrier: Barrier,
        create: impl FnOnce() -> Event,
    ) -> Result<Event, BarrierError> {
        if barrier.generation < self.current || barrier == Barrier::NONE {
            return Ok(self.failed(barrier.generation).unwrap_or(Event::NONE));
        }
        self.verify_exists(barrier)?;
        Ok(*self.phase(barrier.generation).event.get_or_insert_with(create))
    }

    /// Keeps the event of a generation that failed.
    pub(super) fn remember_failed(&mut self, generation: u32, event: Event) {
        self.failed.push((generation, event));
    }

    /// The event of a generation that failed.
    pub(super) fn failed(&self, generation: u32) -> Option<Event> {
        self.failed.iter().find(|(failed, _)| *failed == generation).map(|(_, event)| *event)
    }

    /// The sum of a generation's values.
    pub(super) fn result(&self, barrier: Barrier) -> Result<i64, NoResult> {
        let ago = self.current.checked_sub(barrier.generation).filter(|ago| *ago > 0);
        let ago = ago.ok_or(NoResult::Pending(barrier))? as usize;
        let place = self.results.len().checked_sub(ago);
        let oldest = self.current - self.results.len() as u32;
        place.map(|place| self.results[place]).ok_or(NoResult::Forgotten { barrier, oldest })
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn skip_to(&mut self, generation: u32) {
        self.current = generation;
    }

    fn apply(&mut self, message: Message) -> Result<(), BarrierError> {
        let Message { barrier, change, fault } = message;
        match change {
            Change::Arrive { count, value } => self.arrive(barrier, count, value)?,
            Change::Alter { delta, stamp } => {
                // Also if it fails: what depends on it would wait forever.
                self.announced.retain(|announced| *announced != stamp);
                self.alter(barrier, delta)?;
            }
        }
        if let Some(fault) = fault {
            self.phase(barrier.generation).fault.get_or_insert(fault);
        }
        Ok(())
    }

    fn apply_late(&mut self, message: Message) {
        let barrier = message.barrier;
        if let Err(error) = self.apply(message) {
            self.poison_current(barrier, error);
        }
    }

    fn poison_current(&mut self, barrier: Barrier, error: BarrierError) {
        // A message for a destroyed barrier says nothing of the one that has its place now.
        if self.verify_exists(barrier).is_ok() {
            self.phase(self.current).fault.get_or_insert_with(|| Fault::refused(barrier, error));
        }
    }

    fn arrive(&mut self, barrier: Barrier, count: u32, value: i64) -> Result<(), BarrierError> {
        self.verify_in_flight(barrier)?;
        let needs = self.needs_of(barrier.generation);
        let phase = self.phase(barrier.generation);
        if phase.arrived + i64::from(count) > needs {
            return Err(BarrierError::TooMany { barrier, needs, arrived: phase.arrived, count });
        }
        phase.arrived += i64::from(count);
        phase.sum = phase.sum.wrapping_add(value);
        Ok(())
    }

    fn alter(&mut self, barrier: Barrier, delta: i32) -> Result<(), BarrierError> {
        self.verify_in_flight(barrier)?;
        // The generation itself is checked too, touched or not.
        self.phase(barrier.generation);
        let mut needs = self.needs + i64::from(delta);
        for (&generation, phase) in &self.phases {
            needs += phase.altered;
            let arrived = phase.arrived;
            if generation >= barrier.generation && needs < arrived.max(1) {
                return Err(BarrierError::TooFew { barrier, delta, generation, needs, arrived });
            }
        }
        self.phase(barrier.generation).altered += i64::from(delta);
        Ok(())
    }

    fn phase(&mut self, generation: u32) -> &mut Phase {
        self.phases.entry(generation).or_default()
    }

    /// Arrivals that a generation in flight or ahead needs.
    fn needs_of(&self, generation: u32) -> i64 {
        let altered: i64 = self.phases.range(..=generation).map(|(_, phase)| phase.altered).sum();
        self.needs + altered
    }

    fn verify_exists(&self, barrier: Barrier) -> Result<(), BarrierError> {
        if self.needs == 0 || barrier.generation < self.first {
            return Err(BarrierError::Unknown(barrier));
        }
        Ok(())
    }

    pub(super) fn verify_in_flight(&self, barrier: Barrier) -> Result<(), BarrierError> {
        self.verify_exists(barrier)?;
        if barrier.generation < self.current {
            return Err(BarrierError::Triggered { barrier, current: self.current });
        }
        Ok(())
    }
}
