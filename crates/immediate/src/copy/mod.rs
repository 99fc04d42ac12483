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
//! floats depend on the turns. Only dense rectangles, only within this process. Every memory can be reached from every
//! other one, so no copy needs a stop on its way.

mod error;
mod indexed;
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
use crate::memory::{AccessMode, Actor, User};
use crate::space::Rect;
pub use error::CopyError;
use error::CopyRefusal;
use indexed::{Indexed, Rows, row_nest};
pub use launch::MAX_INLINE_COPY;
pub use operation::SharedPlan;

/// What a plan does with the elements of its destination.
#[derive(Clone, Debug)]
pub enum CopyKind {
    /// Writes a pattern into each, as often as an element holds it.
    Fill(Box<[u8]>),
    /// Writes those of the source.
    Copy(Instance),
    /// Writes those of the source's rows that the indices name: row `i` is row `indices[i]` of the source.
    Gather {
        /// Where elements come from.
        source: Instance,
        /// Coordinates along the source's first dimension, by those along the destination's.
        indices: Instance,
    },
    /// Writes the rows that the indices name, and no other: row `indices[i]` is row `i` of the source. The last one counts if
    /// several have the same index.
    Scatter {
        /// Where elements come from.
        source: Instance,
        /// Coordinates along the destination's first dimension, by those along the source's.
        indices: Instance,
    },
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
    /// The loops; over one row if rows are found by index.
    nest: Nest,
    rows: Option<Rows>,
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
            CopyKind::Gather { source, indices } => {
                CopyKind::Gather { source: other(source), indices: other(indices) }
            }
            CopyKind::Scatter { source, indices } => {
                CopyKind::Scatter { source: other(source), indices: other(indices) }
            }
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

    fn enter_and_run(&self, work: &Work) -> Result<(), CopyRefusal> {
        let mut held: ArrayVec<AccessGuard<'_>, { MAX_SOURCES + 1 }> = ArrayVec::new();
        // The destination last: a copy that waits for its turn there holds nothing that another one waits for.
        for (source, user) in self.kind.sources().into_iter().zip(&work.users[1..]) {
            held.push(source.state().enter(user)?);
        }
        let to = self.destination.state().enter(&work.users[0])?;
        if let Some(rows) = &work.rows {
            return self.run_rows(work, rows, to.address(), [held[0].address(), held[1].address()]);
        }
        let sources = held.iter().map(AccessGuard::address);
        // SAFETY: the nest's runs lie in layouts that fit their regions (`Instance::new`), every region has been
        // entered for what is done with it, and the destination shares no bytes with sources (`work_out`).
        unsafe {
            match &self.kind {
                CopyKind::Fill(_) => phalanx_strided::fill(&work.nest, to.address(), &work.stamp),
                CopyKind::Copy(_) => phalanx_strided::copy(&work.nest, to.address(), held[0].address()),
                CopyKind::Gather { .. } | CopyKind::Scatter { .. } => unreachable!("rows are found by index"),
                CopyKind::Reduce { op, start, .. } => {
                    let at = [to.address()].into_iter().chain(sources).collect();
                    let element = self.destination.layout().element();
                    phalanx_strided::reduce(&work.nest, element, *op, *start, &at);
                }
            }
        }
        Ok(())
    }

    /// Copies row by row. The operands, source and indices, have been entered.
    fn run_rows(
        &self,
        work: &Work,
        rows: &Rows,
        to: *mut u8,
        [from, indices]: [*mut u8; 2],
    ) -> Result<(), CopyRefusal> {
        let is_scatter = matches!(self.kind, CopyKind::Scatter { .. });
        let copy = |walked: usize, indexed: usize| {
            let (to_row, from_row) = if is_scatter { (indexed, walked) } else { (walked, indexed) };
            let (to, from) = (to.wrapping_add(to_row), from.wrapping_add(from_row));
            // SAFETY: the nest is that of the first row, and both rows lie in the domains for which the layouts fit
            // their regions; those have been entered, and the destination shares no bytes with the source.
            unsafe { phalanx_strided::copy(&work.nest, to, from) };
        };
        // SAFETY: the indices have been entered for reading.
        unsafe { rows.visit(indices, copy) }
    }

    fn nest(&self) -> Option<&Nest> {
        self.work.as_ref().map(|work| &work.nest)
    }

    /// The destination, then the sources.
    fn operands(&self) -> impl Iterator<Item = &Instance> {
        [&self.destination].into_iter().chain(self.kind.sources())
    }

    fn work_out(&self) -> Result<Option<Work>, CopyError> {
        if let Some(indexed) = self.kind.indexed(&self.destination) {
            return self.work_out_rows(&indexed);
        }
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
        self.check_apart(&users, &domain)?;
        let layouts: ArrayVec<&Layout, { MAX_SOURCES + 1 }> = self.operands().map(Instance::layout).collect();
        let nest = nest(&domain, &layouts);
        let bytes = domain.volume() as usize * self.destination.layout().element().bytes();
        let stamp = match &self.kind {
            CopyKind::Fill(pattern) => stamp(pattern),
            _ => Box::default(),
        };
        Ok(Some(Work { nest, rows: None, users, stamp, bytes }))
    }

    fn work_out_rows(&self, indexed: &Indexed<'_>) -> Result<Option<Work>, CopyError> {
        let Some(domains) = indexed.domains(&self.rect)? else { return Ok(None) };
        let (to, from) = match self.kind {
            CopyKind::Scatter { .. } => (&domains.indexed, &domains.walked),
            _ => (&domains.walked, &domains.indexed),
        };
        let modes = [AccessMode::Write, AccessMode::Read, AccessMode::Read];
        let touched = self.operands().zip([to, from, &domains.indices]).zip(modes);
        let user = |((operand, domain), mode): ((&Instance, &Rect), AccessMode)| User {
            actor: Actor::Copy(self.number),
            mode,
            footprint: operand.footprint(domain),
        };
        let users: Vec<User> = touched.map(user).collect();
        self.check_apart(&users, to)?;
        let sources = self.kind.sources();
        let nest = row_nest([to, from], [self.destination.layout(), sources[0].layout()]);
        let rows = indexed.rows(&domains);
        let bytes = domains.walked.volume() as usize * self.destination.layout().element().bytes();
        Ok(Some(Work { nest, rows: Some(rows), users, stamp: Box::default(), bytes }))
    }

    /// Fails if the destination shares bytes with a source; `users` are those of the operands.
    fn check_apart(&self, users: &[User], domain: &Rect) -> Result<(), CopyError> {
        let shared =
            |operand: &Instance| std::ptr::eq(&*operand.state().region, &*self.destination.state().region);
        let mut sources = self.operands().zip(users).skip(1);
        match sources.any(|(operand, user)| shared(operand) && user.clashes(&users[0])) {
            true => Err(CopyError::Overlap { instance: self.destination.id(), domain: (*domain).into() }),
            false => Ok(()),
        }
    }
}

impl CopyKind {
    fn sources(&self) -> ArrayVec<&Instance, MAX_SOURCES> {
        match self {
            CopyKind::Fill(_) => ArrayVec::new(),
            CopyKind::Copy(source) => std::iter::once(source).collect(),
            CopyKind::Gather { source, indices } | CopyKind::Scatter { source, indices } => {
                [source, indices].into_iter().collect()
            }
            CopyKind::Reduce { sources, .. } => sources.iter().take(MAX_SOURCES).collect(),
        }
    }

    /// What is walked and what is indexed, if rows are found by index.
    fn indexed<'a>(&'a self, destination: &'a Instance) -> Option<Indexed<'a>> {
        match self {
            CopyKind::Gather { source, indices } => {
                Some(Indexed { walked: destination, indexed: source, indices })
            }
            CopyKind::Scatter { source, indices } => {
                Some(Indexed { walked: source, indexed: destination, indices })
            }
            _ => None,
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
    // Indices are looked at with their rows.
    let copied = kind.sources().len() - usize::from(kind.indexed(destination).is_some());
    match kind.sources().into_iter().take(copied).find(|source| !fits(source.layout().element())) {
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
            CopyKind::Gather { .. } => "gather",
            CopyKind::Scatter { .. } => "scatter",
            CopyKind::Reduce { .. } => "reduction",
        };
        write!(f, "{verb} c{} into {}", self.number, self.destination.id())
    }
}
