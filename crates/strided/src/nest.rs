//! The loops of a copy: the longest runs of bytes that are contiguous in every operand, and how to step over them.
//!
//! Dimensions are visited with the destination's largest stride outermost, whatever order they are declared in; layouts
//! have no overlapping elements, so order does not matter to the result. Nothing here is an address: places are
//! relative to the first byte of each operand.

use arrayvec::ArrayVec;

use crate::MAX_LOOPS;

/// One number for each dimension or loop.
pub type Strides = ArrayVec<usize, MAX_LOOPS>;

/// Loops over runs, outermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nest {
    /// Bytes of a run, a multiple of the element's.
    pub run: usize,
    /// Runs along each loop.
    pub extents: Strides,
    /// The operands, the destination first.
    pub places: Vec<Place>,
}

/// Where an operand's runs lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The first one.
    pub start: usize,
    /// From one to the next along each loop, in bytes.
    pub strides: Strides,
}

impl Nest {
    /// The loops over a space of `extents`, none of them 0, for operands whose first element and steps along each
    /// dimension `places` says in bytes, the destination's first; `run` is the bytes of an element.
    pub fn new(run: usize, extents: &[usize], mut places: Vec<Place>) -> Nest {
        let mut dims: Strides = (0..extents.len()).filter(|&dim| extents[dim] > 1).collect();
        dims.sort_unstable_by_key(|&dim| std::cmp::Reverse(places[0].strides[dim]));
        for place in &mut places {
            place.strides = dims.iter().map(|&dim| place.strides[dim]).collect();
        }
        let mut nest = Nest { run, extents: dims.iter().map(|&dim| extents[dim]).collect(), places };
        nest.join_loops();
        nest.lengthen_run();
        nest
    }

    /// Makes one loop of two where the outer one goes on where the inner one ends, in every operand.
    fn join_loops(&mut self) {
        for inner in (1..self.extents.len()).rev() {
            let outer = inner - 1;
            let extent = self.extents[inner];
            if self.places.iter().all(|place| place.strides[outer] == place.strides[inner] * extent) {
                self.extents[outer] *= extent;
                self.extents.remove(inner);
                for place in &mut self.places {
                    place.strides.remove(outer);
                }
            }
        }
    }

    /// Makes the innermost loop part of the run if its steps are the run, in every operand.
    fn lengthen_run(&mut self) {
        let dense = |place: &Place| place.strides.last() == Some(&self.run);
        if self.places.iter().all(dense)
            && let Some(extent) = self.extents.pop()
        {
            self.run *= extent;
            for place in &mut self.places {
                place.strides.pop();
            }
        }
    }
}
