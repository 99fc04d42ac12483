//! Copies, fills and reductions between instances, worked out once and done many times.
//!
//! A [`CopyPlan`] is frozen: loops, runs and footprints relative to the first byte of each instance, no address and no
//! counter. Where an instance's bytes are is asked at each launch, together with whether it is still there, so a
//! plan never touches what has become of the bytes of a released instance. [`CopyPlan::rebind`] puts another instance
//! in its place.
//!
//! Two operations that share bytes and are not ordered by events are a mistake of their author, and not undefined
//! behaviour: each enters the instances it uses (`memory/access.rs`), and the second one fails with a fault that
//! names the first. Unordered reductions into the same bytes take turns; sums of integers are then exact, those of
//! floats depend on the turns. Only dense rectangles, only within this process.

mod error;
mod launch;
mod operation;
#[cfg(test)]
mod tests;

use std::fmt;

use arrayvec::ArrayVec;
use phalanx_runtime::{Fault, Outcome};
pub use phalanx_strided::{Initial, MAX_SOURCES, Reduction};
use phalanx_strided::{Nest, Place, Strides};

use crate::instance::{AccessGuard, Instance, InstanceId};
use crate::layout::{Element, Layout, MAX_ELEMENT};
use crate::memory::{AccessError, AccessMode, Actor, User};
use crate::space::Rect;
pub use error::CopyError;
pub use launch::MAX_INLINE_COPY;
pub use operation::SharedPlan;

/// What a plan does with the elements of its destination.
#[derive(Clone, Debug)]
pub enum CopyKind {
    /// Writes a pattern into each, as often as an element holds it.
    Fill(Box<[u8]>),
    /// Writes those of the source.
    Copy(Instance),
    /// Reduces those of the sources, in their order.
    Reduce {
        /// How two become one.
        op: Reduction,
        /// Where to start from.
        start: Initial,
        /// Where numbers come from.
        sources: Vec<Instance>,
    },
}

/// What became of a plan whose instance was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebound {
    /// Only addresses are others.
    Rebased,
    /// The layout differs, and so do the loops.
    Replanned,
}

/// A copy, fill or reduction that can be done again and again.
#[derive(Debug)]
pub struct CopyPlan {
    number: u32,
    kind: CopyKind,
    rect: Rect,
    destination: Instance,
    /// Nothing if there are no elements.
    work: Option<Work>,
}

/// What to do with the bytes of the destination and then the sources.
#[derive(Debug)]
struct Work {
    nest: Nest,
    users: Vec<User>,
    /// What a fill writes: whole patterns, or one byte if all are equal.
    stamp: Box<[u8]>,
    bytes: usize,
}

impl CopyPlan {
    /// Works out the plan over the points of `rect` that all instances have.
    pub(crate) fn new(
        number: u32,
        kind: CopyKind,
        rect: Rect,
        destination: Instance,
    ) -> Result<CopyPlan, CopyError> {
        check(&kind, &destination)?;
        let mut plan = CopyPlan { number, kind, rect, destination, work: None };
        plan.work = plan.work_out()?;
        Ok(plan)
    }

    /// Bytes that it writes.
    pub fn bytes(&self) -> usize {
        self.work.as_ref().map_or(0, |work| work.bytes)
    }

    /// Puts `new` in the place of the instance called `old`, wherever the plan uses that.
    pub fn rebind(&mut self, old: InstanceId, new: &Instance) -> Result<Rebound, CopyError> {
        let other = |instance: &Instance| if instance.id() == old { new } else { instance }.clone();
        if !self.operands().any(|operand| operand.id() == old) {
            let uses = self.destination.id();
            return Err(CopyError::NotUsed { plan: self.number, instance: old, uses });
        }
        let kind = match &self.kind {
            CopyKind::Fill(pattern) => CopyKind::Fill(pattern.clone()),
            CopyKind::Copy(source) => CopyKind::Copy(other(source)),
            CopyKind::Reduce { op, start, sources } => {
                CopyKind::Reduce { op: *op, start: *start, sources: sources.iter().map(other).collect() }
            }
        };
        let plan = CopyPlan::new(self.number, kind, self.rect, other(&self.destination))?;
        let rebound = if plan.nest() == self.nest() { Rebound::Rebased } else { Rebound::Replanned };
        *self = plan;
        Ok(rebound)
    }

    /// Does it now, on this thread.
    pub fn execute(&self) -> Outcome {
        let Some(work) = &self.work else { return Ok(()) };
        self.enter_and_run(work).map_err(|error| Fault::refused(self, error))
    }

    fn enter_and_run(&self, work: &Work) -> Result<(), AccessError> {
        let mut held: ArrayVec<AccessGuard<'_>, { MAX_SOURCES + 1 }> = ArrayVec::new();
        // The destination last: a copy that waits for its turn there holds nothing that another one waits for.
        for (source, user) in self.kind.sources().iter().zip(&work.users[1..]) {
            held.push(source.state().enter(user)?);
        }
        let to = self.destination.state().enter(&work.users[0])?;
        let sources = held.iter().map(AccessGuard::address);
        // SAFETY: the nest's runs lie in layouts that fit their regions (`Instance::new`), every region has been
        // entered for what is done with it, and the destination shares no bytes with sources (`work_out`).
        unsafe {
            match &self.kind {
                CopyKind::Fill(_) => phalanx_strided::fill(&work.nest, to.address(), &work.stamp),
                CopyKind::Copy(_) => phalanx_strided::copy(&work.nest, to.address(), held[0].address()),
                CopyKind::Reduce { op, start, .. } => {
                    let at = [to.address()].into_iter().chain(sources).collect();
                    let element = self.destination.layout().element();
                    phalanx_strided::reduce(&work.nest, element, *op, *start, &at);
                }
            }
        }
        Ok(())
    }

    fn nest(&self) -> Option<&Nest> {
        self.work.as_ref().map(|work| &work.nest)
    }

    /// The destination, then the sources.
    fn operands(&self) -> impl Iterator<Item = &Instance> {
        [&self.destination].into_iter().chain(self.kind.sources())
    }

    fn work_out(&self) -> Result<Option<Work>, CopyError> {
        let mut domain = self.rect;
        for operand in self.operands() {
            let both = domain.intersection(operand.rect()).ok_or_else(|| CopyError::Ranks {
                instance: operand.id(),
                has: (*operand.rect()).into(),
                rect: self.rect.into(),
            })?;
            domain = both;
        }
        if domain.is_empty() {
            return Ok(None);
        }
        let write = match self.kind {
            CopyKind::Reduce { start: Initial::Destination, .. } => AccessMode::Reduce,
            _ => AccessMode::Write,
        };
        let modes = std::iter::once(write).chain(std::iter::repeat(AccessMode::Read));
        let user = |(operand, mode): (&Instance, AccessMode)| User {
            actor: Actor::Copy(self.number),
            mode,
            footprint: operand.footprint(&domain),
        };
        let users: Vec<User> = self.operands().zip(modes).map(user).collect();
        let shared =
            |operand: &Instance| std::ptr::eq(&*operand.state().region, &*self.destination.state().region);
        let mut sources = self.operands().zip(&users).skip(1);
        if sources.any(|(operand, user)| shared(operand) && user.clashes(&users[0])) {
            return Err(CopyError::Overlap { instance: self.destination.id(), domain: domain.into() });
        }
        let layouts: ArrayVec<&Layout, { MAX_SOURCES + 1 }> = self.operands().map(Instance::layout).collect();
        let nest = nest(&domain, &layouts);
        let bytes = domain.volume() as usize * self.destination.layout().element().bytes();
        let stamp = match &self.kind {
            CopyKind::Fill(pattern) => stamp(pattern),
            _ => Box::default(),
        };
        Ok(Some(Work { nest, users, stamp, bytes }))
    }
}

impl CopyKind {
    fn sources(&self) -> &[Instance] {
        match self {
            CopyKind::Fill(_) => &[],
            CopyKind::Copy(source) => std::slice::from_ref(source),
            CopyKind::Reduce { sources, .. } => sources,
        }
    }
}

/// Whether the elements of all instances go with what is to be done.
fn check(kind: &CopyKind, destination: &Instance) -> Result<(), CopyError> {
    let (to, element) = (destination.id(), destination.layout().element());
    if !destination.is_writable() {
        return Err(CopyError::ReadOnly { destination: to });
    }
    let fits = |from: Element| match kind {
        CopyKind::Reduce { .. } => from == element,
        _ => from.bytes() == element.bytes(),
    };
    match kind {
        CopyKind::Fill(pattern) if pattern.is_empty() || !element.bytes().is_multiple_of(pattern.len()) => {
            return Err(CopyError::Pattern { pattern: pattern.len(), element });
        }
        CopyKind::Reduce { sources, .. } if !(1..=MAX_SOURCES).contains(&sources.len()) => {
            return Err(CopyError::SourceCount { sources: sources.len() });
        }
        CopyKind::Reduce { .. } if matches!(element, Element::Bytes(_)) => {
            return Err(CopyError::NotNumbers { destination: to, element });
        }
        _ => {}
    }
    match kind.sources().iter().find(|source| !fits(source.layout().element())) {
        None => Ok(()),
        Some(source) => Err(CopyError::Elements {
            source_id: source.id(),
            from: source.layout().element(),
            destination: to,
            to: element,
        }),
    }
}

/// The loops over `domain`, which is not empty and lies in all `layouts`; the destination's is the first.
fn nest(domain: &Rect, layouts: &[&Layout]) -> Nest {
    let extents: Strides = domain.extents().map(|extent| extent as usize).collect();
    let operand = |layout: &&Layout| Place {
        start: layout.offset_inside(domain.lo()),
        strides: layout.strides().iter().copied().collect(),
    };
    Nest::new(layouts[0].element().bytes(), &extents, layouts.iter().map(operand).collect())
}

/// The pattern as often as it fits the largest element, so that long runs are written in few pieces.
fn stamp(pattern: &[u8]) -> Box<[u8]> {
    match pattern.iter().all(|byte| *byte == pattern[0]) {
        true => pattern[..1].into(),
        false => pattern.repeat(MAX_ELEMENT / pattern.len()).into(),
    }
}

impl fmt::Display for CopyPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.kind {
            CopyKind::Fill(_) => "fill",
            CopyKind::Copy(_) => "copy",
            CopyKind::Reduce { .. } => "reduction",
        };
        write!(f, "{verb} c{} into {}", self.number, self.destination.id())
    }
}
