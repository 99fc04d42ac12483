//! Copying bytes from one grid of runs into another.

use crate::{MAX_DIMS, Region};

/// Copies all bytes of `from` to `to`, in order. Both have the same number of bytes.
///
/// # Safety
/// All bytes of both regions are in live memory; no two runs of `to` share a byte, and none shares one with `from`;
/// nothing else writes `from` or touches `to` meanwhile.
pub(super) unsafe fn copy(from: &Region, to: &Region) {
    debug_assert_eq!(from.bytes(), to.bytes(), "a message has as many bytes as it has room");
    let (mut sources, mut targets) = (Runs::new(from), Runs::new(to));
    let (mut source, mut target) = (sources.next(), targets.next());
    while let (Some((start, left)), Some((goal, room))) = (source, target) {
        let bytes = left.min(room);
        // SAFETY: both runs have that many bytes left, which the caller says are in live memory, apart and ours.
        unsafe { start.copy_to_nonoverlapping(goal, bytes) };
        source = rest(start, left, bytes).or_else(|| sources.next());
        target = rest(goal, room, bytes).or_else(|| targets.next());
    }
}

/// What is left of a run behind its first `bytes`.
fn rest(start: *mut u8, left: usize, bytes: usize) -> Option<(*mut u8, usize)> {
    (left > bytes).then(|| (start.wrapping_add(bytes), left - bytes))
}

/// The runs of a region in row-major order: their first bytes and lengths.
struct Runs<'a> {
    region: &'a Region,
    index: [usize; MAX_DIMS],
    left: bool,
}

impl Runs<'_> {
    fn new(region: &Region) -> Runs<'_> {
        Runs { region, index: [0; MAX_DIMS], left: region.bytes() > 0 }
    }
}

impl Iterator for Runs<'_> {
    type Item = (*mut u8, usize);

    fn next(&mut self) -> Option<(*mut u8, usize)> {
        if !self.left {
            return None;
        }
        let grid = &self.region.grid;
        let offset: usize = grid.iter().zip(self.index).map(|((_, stride), index)| index * stride).sum();
        self.left = false;
        for (dim, (count, _)) in grid.iter().enumerate().rev() {
            self.index[dim] += 1;
            if self.index[dim] < *count {
                self.left = true;
                break;
            }
            self.index[dim] = 0;
        }
        Some((self.region.start.wrapping_add(offset), self.region.run))
    }
}
