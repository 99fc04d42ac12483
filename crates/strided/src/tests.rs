//! Copies of runs, whichever way is chosen for them.

use super::kernel::{Axis, LINE, copy_runs};
use super::transpose;

/// What no source holds.
const UNTOUCHED: u8 = 0xEE;

/// `bytes` bytes that begin `shift` after a line.
struct Bytes {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Bytes {
    fn new(bytes: usize, shift: usize) -> Bytes {
        let memory = vec![UNTOUCHED; bytes + shift + LINE];
        let start = memory.as_ptr().align_offset(LINE) + shift;
        Bytes { memory, start, bytes }
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.bytes]
    }
}

/// Copies rows of runs with gaps on both sides and looks at every byte of the destination.
fn check(run: usize, [rows, columns]: [usize; 2], [to_gap, from_gap]: [usize; 2], shift: usize) {
    let [to_step, from_step] = [run + to_gap, run + from_gap];
    // A row is followed by a gap of its own, so that loops stay two.
    let [to_row, from_row] = [to_step, from_step].map(|step| step * columns + LINE);
    let mut to = Bytes::new(rows * to_row, shift);
    let from: Vec<u8> = (0..rows * from_row).map(|at| (at / 7 % 231) as u8).collect();
    let axes = [
        Axis { extent: rows, to: to_row, from: from_row },
        Axis { extent: columns, to: to_step, from: from_step },
    ];
    // SAFETY: runs lie inside both slices, which do not overlap.
    unsafe { copy_runs(run, &axes, to.get().as_mut_ptr(), from.as_ptr()) };
    for (to, from) in to.get().chunks(to_row).zip(from.chunks(from_row)) {
        let (to, rest) = to.split_at(to_step * columns);
        assert!(rest.iter().all(|&byte| byte == UNTOUCHED), "behind a row of runs of {run}");
        for (to, from) in to.chunks(to_step).zip(from.chunks(from_step)) {
            assert!(to[..run] == from[..run], "a run of {run}, {from_step} apart, shift {shift}");
            assert!(to[run..].iter().all(|&byte| byte == UNTOUCHED), "the gap behind a run of {run}");
        }
    }
}

#[test]
fn every_run_is_copied_and_nothing_else() {
    // Small; abreast; past the caches, in the order of runs and abreast.
    for bytes in [4 << 10, 300 << 10, 13 << 20] {
        for run in [4, 12, 20, 40, 64, 128, 192, 200, 256, 320, 384, 448, 512, 576, 1024, 2560, 8192] {
            for gaps in [[0, 2 * run], [LINE, LINE], [0, run / 4]] {
                let columns = (bytes / run / 3).max(1) | 1;
                check(run, [3, columns], gaps, 0);
            }
        }
    }
}

#[test]
fn a_destination_between_lines_is_copied_to() {
    for (bytes, run) in [(300 << 10, 256), (13 << 20, 256), (13 << 20, 1024)] {
        check(run, [2, bytes / run / 2], [0, run], 4);
    }
}

/// Transposes a matrix of units, each row of the destination followed by a gap, and looks at every byte of it.
fn check_transposed(unit: usize, [rows, columns]: [usize; 2], gap: usize, shift: usize) {
    let to_row = columns * unit + gap;
    let mut to = Bytes::new(rows * to_row, shift);
    let from: Vec<u8> = (0..rows * columns * unit).map(|at| (at / 5 % 233) as u8).collect();
    let axes = [
        Axis { extent: rows, to: to_row, from: unit },
        Axis { extent: columns, to: unit, from: rows * unit },
    ];
    // SAFETY: all units lie inside both slices, which do not overlap.
    unsafe { transpose::run(unit, &[], axes, to.get().as_mut_ptr(), from.as_ptr()) };
    for (row, to) in to.get().chunks(to_row).enumerate() {
        let (units, rest) = to.split_at(columns * unit);
        let expected = from.chunks(unit).skip(row).step_by(rows);
        assert!(
            units.chunks(unit).eq(expected),
            "row {row} of {rows} by {columns} units of {unit}, shift {shift}"
        );
        assert!(rest.iter().all(|&byte| byte == UNTOUCHED), "behind row {row}");
    }
}

#[test]
fn every_unit_is_transposed_and_nothing_else() {
    for unit in [1, 2, 4, 8, 16] {
        // Squares, what is left of them, and both past the caches.
        for [rows, columns] in [[64, 64], [33, 47], [7, 300], [1811, 1809]] {
            check_transposed(unit, [rows, columns], 0, 0);
            check_transposed(unit, [rows, columns], columns * unit % LINE + 12, 4);
        }
    }
    // Past the caches only if every row begins with a line.
    for (gap, shift) in [(0, 0), (LINE, 0), (4, 0), (0, 4)] {
        check_transposed(4, [1800, 1808], gap, shift);
    }
}
