//! The loops of a copy: the longest runs of bytes that are contiguous in every operand, and how to step over them.
//! Nothing here is an address: places are relative to the first byte of each operand.

use arrayvec::ArrayVec;

use crate::MAX_LOOPS;

/// One number for each dimension or loop.
pub type Strides = ArrayVec<usize, MAX_LOOPS>;

/// Loops over runs, outermost first, for operands in a `Vec` or an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nest<P = Vec<Place>> {
    /// Bytes of a run, a multiple of the element's.
    pub run: usize,
    /// Runs along each loop.
    pub extents: Strides,
    /// The operands, the destination first. Each has a stride for every loop.
    pub places: P,
}

/// The runs of a single operand.
pub type ByteRuns = Nest<[Place; 1]>;

/// Where an operand's runs lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The first one.
    pub start: usize,
    /// From one to the next along each loop, in bytes.
    pub strides: Strides,
}

impl Place {
    /// Where the run at `index` starts.
    pub fn at(&self, index: &[usize]) -> usize {
        index.iter().zip(&self.strides).fold(self.start, |sum, (step, stride)| sum + step * stride)
    }
}

/// Calls `visit` with every index of a space with these extents, the last fastest.
pub fn walk(extents: &[usize], mut visit: impl FnMut(&[usize])) {
    let mut index: Strides = extents.iter().map(|_| 0).collect();
    if extents.contains(&0) {
        return;
    }
    loop {
        visit(&index);
        let Some(dim) = (0..extents.len()).rev().find(|&dim| index[dim] + 1 < extents[dim]) else { return };
        index[dim] += 1;
        index[dim + 1..].fill(0);
    }
}

impl<P: AsMut<[Place]>> Nest<P> {
    /// The loops over a space of `extents` for operands whose first element and steps along each dimension `places`
    /// says in bytes, the destination's first; `run` is the bytes of an element.
    ///
    /// The destination's largest stride becomes the outermost loop, whatever order dimensions are declared in: elements
    /// of a layout do not overlap, so order does not matter to the result.
    pub fn new(run: usize, extents: &[usize], mut places: P) -> Nest<P> {
        let mut dims: Strides = (0..extents.len()).collect();
        let destination = &places.as_mut()[0].strides;
        dims.sort_unstable_by_key(|&dim| std::cmp::Reverse(destination[dim]));
        Nest::of_dims(run, extents, dims, places)
    }

    /// The same loops with dimensions in the order in which they are declared, which is that of the bytes.
    pub fn in_order(run: usize, extents: &[usize], places: P) -> Nest<P> {
        Nest::of_dims(run, extents, (0..extents.len()).collect(), places)
    }

    fn of_dims(run: usize, extents: &[usize], mut dims: Strides, mut places: P) -> Nest<P> {
        let is_empty = extents.contains(&0);
        dims.retain(|dim| extents[*dim] > 1 && !is_empty);
        for place in places.as_mut() {
            place.strides = dims.iter().map(|&dim| place.strides[dim]).collect();
        }
        let run = if is_empty { 0 } else { run };
        let mut nest = Nest { run, extents: dims.iter().map(|&dim| extents[dim]).collect(), places };
        nest.join_loops();
        nest.lengthen_run();
        nest
    }

    /// Makes one loop of two where the outer one goes on where the inner one ends, in every operand.
    fn join_loops(&mut self) {
        for inner in (1..self.extents.len()).rev() {
            let (outer, extent) = (inner - 1, self.extents[inner]);
            let goes_on =
                |place: &Place| Some(place.strides[outer]) == place.strides[inner].checked_mul(extent);
            if self.places.as_mut().iter().all(goes_on) {
                self.extents[outer] *= extent;
                self.extents.remove(inner);
                self.places.as_mut().iter_mut().for_each(|place| _ = place.strides.remove(outer));
            }
        }
    }

    /// Makes the innermost loop part of the run if its steps are the run, in every operand.
    fn lengthen_run(&mut self) {
        let run = self.run;
        let is_dense = |place: &Place| place.strides.last() == Some(&run);
        if self.places.as_mut().iter().all(is_dense)
            && let Some(extent) = self.extents.pop()
        {
            self.run *= extent;
            self.places.as_mut().iter_mut().for_each(|place| _ = place.strides.pop());
        }
    }
}

impl<P> Nest<P> {
    /// All bytes of an operand's runs.
    pub fn bytes(&self) -> usize {
        self.extents.iter().fold(self.run, |bytes, &extent| bytes.saturating_mul(extent))
    }

    /// The byte after the last one of an operand's runs; nothing if they are empty or overlap each other.
    pub fn end(&self, place: &Place) -> Option<usize> {
        let mut width = self.run;
        for (&extent, &stride) in self.extents.iter().zip(&place.strides).rev() {
            if stride < width || extent == 0 {
                return None;
            }
            width = stride.checked_mul(extent - 1)?.checked_add(width)?;
        }
        if width == 0 { None } else { place.start.checked_add(width) }
    }

    /// Where the runs lie if they follow each other from `start` on.
    pub fn dense(&self, start: usize) -> Place {
        let inner = |dim: usize| self.extents[dim + 1..].iter().product::<usize>();
        Place { start, strides: (0..self.extents.len()).map(|dim| self.run * inner(dim)).collect() }
    }

    /// The runs of one operand, joined where they touch there.
    pub fn runs(&self, place: &Place) -> ByteRuns {
        Nest::in_order(self.run, &self.extents, [place.clone()])
    }
}

impl ByteRuns {
    /// The loops that copy `from`, byte after byte, to these runs. Nothing unless both have as many bytes and of two
    /// loops or runs that meet, one is a multiple of the other, as if both are joined from the same loops.
    pub fn with_source(&self, from: &ByteRuns) -> Option<Nest<[Place; 2]>> {
        let mut loops = [self, from].map(ByteRuns::byte_loops);
        let (run, _) = common_loop(&mut loops)?;
        let (mut extents, mut strides) = (Strides::new(), [const { Strides::new_const() }; 2]);
        while loops.iter().any(|loops| !loops.is_empty()) {
            let (extent, steps) = common_loop(&mut loops)?;
            extents.try_insert(0, extent).ok()?;
            strides.iter_mut().zip(steps).for_each(|(strides, step)| strides.insert(0, step));
        }
        let [to, from] = [self, from].map(|runs| runs.places[0].start);
        let [to_strides, from_strides] = strides;
        let places = [Place { start: to, strides: to_strides }, Place { start: from, strides: from_strides }];
        Some(Nest::in_order(run, &extents, places))
    }

    /// Extent and stride of every loop, the run as the innermost one.
    fn byte_loops(&self) -> ByteLoops {
        let loops =
            self.extents.iter().zip(&self.places[0].strides).map(|(&extent, &stride)| [extent, stride]);
        loops.filter(|[extent, _]| *extent != 1).chain([[self.run, 1]]).collect()
    }
}

type ByteLoops = ArrayVec<[usize; 2], { MAX_LOOPS + 1 }>;

/// Takes the largest common part of the innermost loops: its extent and both strides.
fn common_loop(loops: &mut [ByteLoops; 2]) -> Option<(usize, [usize; 2])> {
    let [[to_extent, to], [from_extent, from]] = [*loops[0].last()?, *loops[1].last()?];
    let common = to_extent.min(from_extent);
    for loops in loops {
        let [extent, stride] = loops.last_mut()?;
        if common == 0 || !extent.is_multiple_of(common) {
            return None;
        }
        (*extent, *stride) = (*extent / common, *stride * common);
        if *extent == 1 {
            loops.pop();
        }
    }
    Some((common, [to, from]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_visits_every_index_in_order() {
        let visited = |extents: &[usize]| {
            let mut seen = Vec::new();
            walk(extents, |index| seen.push(index.to_vec()));
            seen
        };
        assert_eq!(visited(&[]), [Vec::<usize>::new()]);
        assert_eq!(visited(&[2, 3]), [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]);
        assert!(visited(&[2, 0]).is_empty());
    }

    fn runs(run: usize, grid: &[(usize, usize)]) -> ByteRuns {
        let (extents, strides): (Vec<usize>, Strides) = grid.iter().copied().unzip();
        Nest::in_order(run, &extents, [Place { start: 0, strides }])
    }

    fn simple(run: usize, grid: &[(usize, usize)]) -> (usize, Vec<(usize, usize)>) {
        let Nest { run, extents, places: [place] } = runs(run, grid);
        (run, extents.into_iter().zip(place.strides).collect())
    }

    #[test]
    fn dimensions_that_continue_each_other_are_one() {
        assert_eq!(simple(4, &[]), (4, vec![]));
        assert_eq!(simple(4, &[(3, 8), (2, 4)]), (24, vec![]), "rows that touch");
        assert_eq!(simple(4, &[(3, 9), (2, 4)]), (8, vec![(3, 9)]), "rows apart");
        assert_eq!(simple(4, &[(5, 64), (3, 16), (1, 7)]), (4, vec![(5, 64), (3, 16)]));
        assert_eq!(simple(4, &[(4, 48), (3, 16)]), (4, vec![(12, 16)]), "one stride goes on");
        assert_eq!(simple(4, &[(3, 16), (2, 64)]), (4, vec![(3, 16), (2, 64)]), "in their order");
        assert_eq!(simple(4, &[(2, 8), (0, 16)]), (0, vec![]));
    }

    #[test]
    fn runs_reach_to_the_end_of_the_last_one() {
        let end = |start, run, grid: &[(usize, usize)]| {
            let (extents, strides) = grid.iter().copied().unzip();
            Nest { run, extents, places: () }.end(&Place { start, strides })
        };
        assert_eq!(end(64, 16, &[]), Some(80));
        assert_eq!(end(64, 4, &[(3, 100), (2, 8)]), Some(64 + 200 + 8 + 4));
        assert_eq!(end(0, 4, &[(2, 3)]), None, "runs overlap");
        assert_eq!(end(0, 4, &[(2, 8), (3, 4)]), None, "rows overlap");
        assert_eq!(end(0, 0, &[]), None, "no bytes");
        assert_eq!(end(0, 4, &[(0, 4)]), None, "no runs");
        assert_eq!(end(usize::MAX, 4, &[]), None);
        assert_eq!(end(0, 4, &[(usize::MAX, usize::MAX)]), None);
    }

    /// The places of all bytes, in order.
    fn bytes(nest: &Nest<impl AsRef<[Place]>>, place: usize) -> Vec<usize> {
        let place = &nest.places.as_ref()[place];
        let mut bytes = Vec::new();
        walk(&nest.extents, |index| bytes.extend(place.at(index)..place.at(index) + nest.run));
        bytes
    }

    #[test]
    fn two_grids_of_the_same_bytes_have_common_loops() {
        let grids = [
            runs(24, &[]),
            runs(4, &[(6, 10)]),
            runs(8, &[(3, 9)]),
            runs(2, &[(3, 100), (2, 20), (2, 5)]),
            runs(1, &[(24, 3)]),
            runs(4, &[(3, 7), (2, 40)]),
        ];
        for (to, from) in grids.iter().flat_map(|to| grids.iter().map(move |from| (to, from))) {
            let nest = to.with_source(from).expect("each loop divides the other");
            let pairs = |a: Vec<usize>, b: Vec<usize>| a.into_iter().zip(b).collect::<Vec<_>>();
            assert_eq!(pairs(bytes(&nest, 0), bytes(&nest, 1)), pairs(bytes(to, 0), bytes(from, 0)));
        }
        assert_eq!(grids[1].with_source(&runs(6, &[(4, 50)])), None, "neither divides the other");
        assert_eq!(grids[1].with_source(&runs(4, &[(3, 10)])), None, "fewer bytes");
        assert_eq!(grids[1].with_source(&runs(0, &[])), None);
    }
}
