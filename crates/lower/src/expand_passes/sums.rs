//! The gradient of a value from what its uses give: in which order they are added, and where.
//!
//! For every use a balanced tree over microbatches, then a chain over the uses in the order in which the backward walk
//! meets them: that decides the bits and follows from the model alone. Where each sum is computed changes no bit, so it is
//! where the fewest bytes change devices on the way to the value's own layer.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_ir::Binary;
use phalanx_ir::graph::{LayerId, ValueId};
use phalanx_ir::parallel::{DeviceGroup, Microbatch, ParallelType};
use phalanx_ir::sharded::{Operand, ShardedBuffer, ShardedTask};
use phalanx_ir::tasks::{BufferId, Role, TaskOp};

use super::Expander;
use super::places::{Place, Term, cheapest};

/// One gradient that reached a value.
pub(super) struct Contribution {
    pub(super) buffer: BufferId,
    pub(super) order: Order,
    /// The microbatch with which it is due.
    pub(super) due: u32,
    /// Which microbatch it comes from, if from one.
    pub(super) microbatch: Option<Microbatch>,
}

/// When the gradient of a use is added: that of a later layer first, of its first operand first. A parallel operator has the
/// place of the use it serves, so that chains are the same with and without it.
pub(super) type Order = (Reverse<LayerId>, usize);

/// A gradient or a sum of some, and the microbatch with which it is due.
type Addend = (BufferId, u32);

/// The devices of every tile.
type Groups = Arc<[DeviceGroup]>;

impl Expander<'_> {
    /// The whole gradient of `value`, if any reached it.
    pub(super) fn gradient(&mut self, value: ValueId) -> Option<BufferId> {
        let mut contributions = self.contributions.remove(&value)?;
        contributions.sort_by_key(|contribution| contribution.order);
        self.first_use.insert(value, contributions[0].order);
        let uses = by_use(contributions);
        self.check_microbatches(&uses);
        let terms = terms(&uses);
        let places = self.places(value, &terms);
        let mut sums: Vec<Addend> = Vec::with_capacity(terms.len());
        for (index, term) in terms.into_iter().enumerate() {
            sums.push(match term {
                Term::Given(addend) => addend,
                Term::Sum(left, right) => {
                    self.add(value, [sums[left], sums[right]], places.as_ref().map(|places| &places[index]))
                }
            });
        }
        sums.last().map(|&(buffer, _)| buffer)
    }

    /// Where each term lies or is computed; `None` where the first addend of each sum does well, or tilings differ.
    fn places(&mut self, value: ValueId, terms: &[Term<Addend>]) -> Option<Vec<Groups>> {
        let given = terms.iter().filter_map(|term| match term {
            Term::Given((buffer, _)) => Some(&self.sharded.buffers[*buffer]),
            Term::Sum(..) => None,
        });
        let first = given.clone().next()?;
        if given.clone().all(|addend| addend.groups == first.groups)
            || given.clone().any(|addend| addend.ty != first.ty)
        {
            return None;
        }
        let mut groups: Vec<Groups> = Vec::new();
        let mut own: Vec<Place> = Vec::new();
        for addend in given {
            own.push(number(&mut groups, &addend.groups));
        }
        let (ty, home) = self.gradient_layout(value, first.ty.sum_degree());
        let home = (ty == first.ty).then(|| number(&mut groups, &home));
        let mut own = own.into_iter();
        let terms: Vec<_> = terms
            .iter()
            .map(|term| match *term {
                Term::Given(_) => Term::Given(own.next().expect("one for each given addend")),
                Term::Sum(left, right) => Term::Sum(left, right),
            })
            .collect();
        let bytes: Vec<Vec<usize>> =
            groups.iter().map(|from| groups.iter().map(|to| moved_bytes(&ty, from, to)).collect()).collect();
        Some(cheapest(&terms, &bytes, home).into_iter().map(|place| Arc::clone(&groups[place])).collect())
    }

    /// Adds two gradients of `value` at `place`, or where the first lies.
    fn add(&mut self, value: ValueId, addends: [Addend; 2], place: Option<&Groups>) -> Addend {
        let due = addends[0].1.max(addends[1].1);
        let [left, right] = self.alike(value, addends.map(|(buffer, _)| buffer), due);
        let place = place.unwrap_or(&self.sharded.buffers[left].groups);
        let place = Arc::clone(place);
        (self.sum(value, [left, right], place, due), due)
    }

    /// Two contributions to the gradient of `value` with the same tiling: one that has fewer partial sums sets it.
    fn alike(&mut self, value: ValueId, buffers: [BufferId; 2], microbatch: u32) -> [BufferId; 2] {
        let sums = buffers.map(|buffer| self.sharded.buffers[buffer].ty.sum_degree());
        let fewest = buffers[usize::from(sums[1] < sums[0])];
        let ShardedBuffer { name, ty, groups, .. } = self.sharded.buffers[fewest].clone();
        buffers.map(|buffer| {
            if self.sharded.buffers[buffer].ty == ty {
                return buffer;
            }
            let to = self.push_buffer(&name, ty.clone(), Arc::clone(&groups), Role::Temp, None);
            let layer = self.name(value).to_string();
            self.sharded.push_move(buffer, to, &layer, microbatch);
            to
        })
    }

    /// The sum of two contributions to the gradient of `value`, tile by tile, on `groups`.
    fn sum(&mut self, value: ValueId, addends: [BufferId; 2], groups: Groups, microbatch: u32) -> BufferId {
        let ty = self.sharded.buffers[addends[0]].ty.clone();
        let (extents, map) = ty.grid();
        let name = format!("{}.grad", self.name(value));
        let buffer = self.push_buffer(&name, ty, Arc::clone(&groups), Role::Temp, None);
        let operand = |buffer| Operand { buffer, map: map.clone() };
        let (reads, writes) = (addends.map(operand).to_vec(), vec![operand(buffer)]);
        let layer = self.graph.layer_name(self.layer).to_string();
        let op = TaskOp::Binary { kind: Binary::Add };
        self.sharded.tasks.push(ShardedTask { op, reads, writes, extents, groups, layer, microbatch });
        buffer
    }
}

/// The position of `groups` in `known`, where it is put if it is new.
fn number(known: &mut Vec<Groups>, groups: &Groups) -> Place {
    known.iter().position(|other| other == groups).unwrap_or_else(|| {
        known.push(Arc::clone(groups));
        known.len() - 1
    })
}

/// The bytes that change devices when tiles on `from` are to be on `to`.
fn moved_bytes(ty: &ParallelType, from: &Groups, to: &Groups) -> usize {
    let missing = |(from, to): (&DeviceGroup, &DeviceGroup)| {
        to.devices().iter().filter(|&&device| !from.contains(device)).count()
    };
    from.iter().zip(to.iter()).map(missing).sum::<usize>() * ty.tile().bytes()
}

/// Groups contributions by use: the k-th of each microbatch belong together, microbatches ascending; what comes from no
/// microbatch is a use of its own.
fn by_use(contributions: Vec<Contribution>) -> Vec<Vec<Contribution>> {
    let mut seen: BTreeMap<u32, usize> = BTreeMap::new();
    // Where the k-th use by microbatches is among all uses.
    let mut by_parts: Vec<usize> = Vec::new();
    let mut uses: Vec<Vec<Contribution>> = Vec::new();
    for contribution in contributions {
        let Some(part) = contribution.microbatch else {
            uses.push(vec![contribution]);
            continue;
        };
        let turn = seen.entry(part.index).or_default();
        if *turn == by_parts.len() {
            by_parts.push(uses.len());
            uses.push(Vec::new());
        }
        uses[by_parts[*turn]].push(contribution);
        *turn += 1;
    }
    for parts in &mut uses {
        parts.sort_by_key(|contribution| contribution.microbatch.map(|part| part.index));
    }
    uses
}

/// The additions: for every use a balanced tree over its parts, then a chain over the uses.
fn terms(uses: &[Vec<Contribution>]) -> Vec<Term<Addend>> {
    let mut terms = Vec::new();
    let trees = uses.iter().map(|parts| tree(&mut terms, parts)).collect::<Vec<_>>();
    trees.into_iter().reduce(|sum, next| push(&mut terms, Term::Sum(sum, next)));
    terms
}

/// Appends the balanced tree over `parts`; gives its root.
fn tree(terms: &mut Vec<Term<Addend>>, parts: &[Contribution]) -> usize {
    if let [part] = parts {
        return push(terms, Term::Given((part.buffer, part.due)));
    }
    let (left, right) = parts.split_at(parts.len().next_power_of_two() / 2);
    let (left, right) = (tree(terms, left), tree(terms, right));
    push(terms, Term::Sum(left, right))
}

fn push<T>(list: &mut Vec<T>, item: T) -> usize {
    list.push(item);
    list.len() - 1
}
