//! What a layer's tasks read and write: the frame of all parallel rules.
//!
//! A layer's tasks form a grid. Each slot has a [`TileMap`]: which tile of the operand or result a task uses. A task axis
//! that a map leaves out means that all tasks along it use the same tile: each then has it on its own device.

use std::fmt;

use super::tiling::{Coord, ParallelType};
use crate::text::{Cursor, ParseError};
use crate::{Op, OpError, TensorType};

/// A position in the list of a layer's task axes.
pub type Axis = usize;

/// Which tile a task uses: each place is a number whose digits are the task's places on these axes, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct TileMap {
    /// Axes that count partial sums.
    pub sum: Vec<Axis>,
    /// Axes that count copies.
    pub copy: Vec<Axis>,
    /// For every dimension the axes that count its blocks.
    pub dims: Vec<Vec<Axis>>,
}

impl TileMap {
    /// The tiling that these axes give a tensor; `None` if there is no such axis, or no such tiling.
    pub fn tiling(&self, global: &TensorType, extents: &[usize]) -> Option<ParallelType> {
        let degree = |axes: &Vec<Axis>| {
            axes.iter().try_fold(1_usize, |degree, &axis| degree.checked_mul(*extents.get(axis)?))
        };
        let degrees = self.dims.iter().map(degree).collect::<Option<Vec<usize>>>()?;
        ParallelType::tiled(global, &degrees, degree(&self.sum)?, degree(&self.copy)?)
    }

    /// The tile of the task at `place`.
    pub fn coord(&self, extents: &[usize], place: &[usize]) -> Coord {
        let number = |axes: &Vec<Axis>| axes.iter().fold(0, |n, &axis| n * extents[axis] + place[axis]);
        Coord {
            sum: number(&self.sum),
            copy: number(&self.copy),
            dims: self.dims.iter().map(number).collect(),
        }
    }

    /// The map of the gradient: copies become additive parts and partial sums copies.
    pub fn dual(&self) -> TileMap {
        TileMap { sum: self.copy.clone(), copy: self.sum.clone(), dims: self.dims.clone() }
    }

    /// Whether no axis is named: every task uses the one tile.
    pub fn is_trivial(&self) -> bool {
        self.sum.is_empty() && self.copy.is_empty() && self.dims.iter().all(Vec::is_empty)
    }
}

impl fmt::Display for TileMap {
    /// `{sum | copy | dim, dim}`, digits joined by `.`; nothing for a trivial map.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_trivial() {
            return Ok(());
        }
        let digits = |axes: &Vec<Axis>| match axes.is_empty() {
            true => "-".to_string(),
            false => axes.iter().map(Axis::to_string).collect::<Vec<_>>().join("."),
        };
        let dims: Vec<_> = self.dims.iter().map(digits).collect();
        write!(f, "{{{} | {} | {}}}", digits(&self.sum), digits(&self.copy), dims.join(", "))
    }
}

impl TileMap {
    /// Takes what `Display` writes; a trivial map has `rank` dimensions.
    pub fn parse(cursor: &mut Cursor<'_>, rank: usize) -> Result<TileMap, ParseError> {
        if !cursor.eat("{") {
            return Ok(TileMap { dims: vec![Vec::new(); rank], ..TileMap::default() });
        }
        let sum = parse_digits(cursor)?;
        cursor.expect("|")?;
        let copy = parse_digits(cursor)?;
        cursor.expect("|")?;
        let dims = if cursor.peek("}") { Vec::new() } else { cursor.list(parse_digits)? };
        cursor.expect("}")?;
        match dims.len() == rank {
            true => Ok(TileMap { sum, copy, dims }),
            false => cursor.error(format!("the map has {} dimensions, its tensor {rank}", dims.len())),
        }
    }
}

fn parse_digits(cursor: &mut Cursor<'_>) -> Result<Vec<Axis>, ParseError> {
    let word = cursor.word()?;
    if word == "-" {
        return Ok(Vec::new());
    }
    let digits: Result<Vec<Axis>, _> = word.split('.').map(str::parse).collect();
    digits.or_else(|_| cursor.error(format!("`{word}` is not a list of axes like 0.2 or -")))
}

/// The tasks of a layer and what each uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TilingRule {
    /// Extents of the grid of tasks; tasks are numbered with the last axis fastest.
    pub extents: Vec<usize>,
    /// For every operand the tile a task reads.
    pub operands: Vec<TileMap>,
    /// For every result the tile a task writes.
    pub results: Vec<TileMap>,
    /// Whether the bits are those of the whole operator: no rounding happens on partial sums or partial gradients.
    pub exact: bool,
}

impl TilingRule {
    /// How many tasks there are.
    pub fn tasks(&self) -> usize {
        self.extents.iter().fold(1, |tasks, &extent| tasks.saturating_mul(extent))
    }
}

impl ParallelType {
    /// A grid with one task for every tile, numbered like the tiles, and the map that gives each its own.
    pub fn grid(&self) -> (Vec<usize>, TileMap) {
        let mut extents = Vec::new();
        let mut axis = |extent: usize| match extent {
            1 => Vec::new(),
            _ => {
                extents.push(extent);
                vec![extents.len() - 1]
            }
        };
        let (sum, copy) = (axis(self.sum_degree()), axis(self.copy_degree()));
        let dims = self.dims().iter().map(|dim| axis(dim.degree)).collect();
        (extents, TileMap { sum, copy, dims })
    }
}

/// The place of task `index` in a grid.
pub fn place(extents: &[usize], mut index: usize) -> Vec<usize> {
    let mut place = vec![0; extents.len()];
    for (axis, &extent) in extents.iter().enumerate().rev() {
        place[axis] = index % extent;
        index /= extent;
    }
    place
}

/// A rule being written: axes are added, then every slot is checked against its map.
pub(super) struct Grid<'a> {
    pub op: &'a Op,
    pub operands: &'a [&'a ParallelType],
    pub extents: Vec<usize>,
}

impl<'a> Grid<'a> {
    /// No tasks yet.
    pub fn new(op: &'a Op, operands: &'a [&'a ParallelType]) -> Self {
        Grid { op, operands, extents: Vec::new() }
    }

    /// A new axis; none for an extent of one.
    pub fn axis(&mut self, extent: usize) -> Vec<Axis> {
        if extent == 1 {
            return Vec::new();
        }
        self.extents.push(extent);
        vec![self.extents.len() - 1]
    }

    /// Checks that operand `slot` has the tiling of `map`.
    pub fn check(&self, slot: usize, map: &TileMap) -> Result<(), OpError> {
        let found = self.operands[slot];
        match map.tiling(&found.global(), &self.extents) {
            Some(wanted) if wanted == *found => Ok(()),
            Some(wanted) => Err(self.wrong(slot, format!("its rule wants {wanted}"), repair(found, &wanted))),
            None => Err(self.wrong(
                slot,
                "its rule wants it cut where it does not divide".into(),
                "choose degrees that divide every extent".into(),
            )),
        }
    }

    /// Checks all operands and ends the rule.
    pub fn finish(
        self,
        operands: Vec<TileMap>,
        results: Vec<TileMap>,
        exact: bool,
    ) -> Result<TilingRule, OpError> {
        for (slot, map) in operands.iter().enumerate() {
            self.check(slot, map)?;
        }
        Ok(TilingRule { extents: self.extents, operands, results, exact })
    }

    /// An error about operand `slot`.
    pub fn wrong(&self, slot: usize, wanted: String, fix: String) -> OpError {
        let found = self.operands[slot].to_string();
        let op = self.op.to_text().0;
        OpError { slot: self.op.slot(slot), found, wanted: format!("{op}: {wanted}"), fix }
    }
}

/// The parallel operator that brings `found` closer to `wanted`.
fn repair(found: &ParallelType, wanted: &ParallelType) -> String {
    for (dim, (from, to)) in found.dims().iter().zip(wanted.dims()).enumerate() {
        if from.degree > to.degree && from.degree.is_multiple_of(to.degree) {
            return format!("apply combine dim={dim} degree={}", from.degree / to.degree);
        }
        if to.degree > from.degree && to.degree.is_multiple_of(from.degree) {
            return format!("apply repartition dim={dim} degree={}", to.degree / from.degree);
        }
    }
    let (sum, copy) = (found.sum_degree(), found.copy_degree());
    if sum > wanted.sum_degree() && sum.is_multiple_of(wanted.sum_degree()) {
        return format!("apply reduction degree={}", sum / wanted.sum_degree());
    }
    if wanted.copy_degree().is_multiple_of(copy) && wanted.copy_degree() > copy {
        return format!("apply replicate degree={}", wanted.copy_degree() / copy);
    }
    "change the degrees of the other operands".into()
}
