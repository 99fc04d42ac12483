//! What movements cost: straight lines between a few measured sizes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use phalanx_ir::tasks::{TaskGraph, TaskId};
use phalanx_kernels::fill::FillParams;
use phalanx_kernels::{Team, Words};
use phalanx_program::rect::Tile;
use phalanx_program::{Builder, Draft, Piece, Program, ProgramError, RECEIVE, Slice, Wait};
use phalanx_runtime::Replay;

use super::bench::sample;
use super::{CostTable, Signature, middle};
use crate::device::{CpuDevice, Flavor};
use crate::session::polls;

/// The entries of [`LinkTable`].
const LINK: &str = "link";

/// Parts of the sums measured; one part is copied.
const PARTS: [usize; 4] = [1, 2, 4, 8];

/// Bytes of the results measured.
const SIZES: [u64; 5] = [64, 4 << 10, 64 << 10, 1 << 20, 8 << 20];

/// Nanoseconds before the first byte of a link that was not measured.
const LATENCY: u64 = 2000;

/// Bytes that such a link moves in a nanosecond.
const BANDWIDTH: u64 = 8;

/// Time as a function of a size: points in ascending order, at least one, of different sizes.
struct Curve(Vec<(u64, u64)>);

impl Curve {
    /// The time of `size`: on the line between its neighbours; as the smallest one, below it; beyond the largest one, on the
    /// line through the last two, or in proportion if there is only one.
    fn at(&self, size: u64) -> u64 {
        let next = self.0.partition_point(|point| point.0 < size);
        let (low, high) = match (next, &self.0[..]) {
            (0, points) => return points[0].1,
            (_, &[only]) => ((0, 0), only),
            (next, points) => {
                let high = next.min(points.len() - 1);
                (points[high - 1], points[high])
            }
        };
        let [x, x0, y0, x1, y1] = [size, low.0, low.1, high.0, high.1].map(i128::from);
        let time = y0 + (y1 - y0).saturating_mul(x - x0) / (x1 - x0).max(1);
        // Noise may let a line fall; beyond the last point it stays where that point is.
        u64::try_from(time.max(0)).unwrap_or(u64::MAX).max(if next == self.0.len() { high.1 } else { 0 })
    }
}

/// The points of every kind of movement in a cost table, by their kernels' names.
fn curves(cost_table: &CostTable) -> BTreeMap<&str, Curve> {
    let mut curves: BTreeMap<&str, Curve> = BTreeMap::new();
    for (signature, ns) in cost_table.entries().filter(|(signature, _)| signature.words.is_empty()) {
        if let &[bytes] = &signature.writes[..] {
            curves.entry(&signature.kernel).or_insert(Curve(Vec::new())).0.push((bytes, ns));
        }
    }
    for Curve(points) in curves.values_mut() {
        points.sort_unstable();
        // A file may have a size twice, with different reads or cores.
        points.dedup_by_key(|point| point.0);
        // More bytes never take less time: where it seems so, something else ran when the fewer were measured.
        let mut least = u64::MAX;
        for point in points.iter_mut().rev() {
            least = least.min(point.1);
            point.1 = least;
        }
    }
    curves
}

/// How long bytes take from one device of a process to another.
pub struct LinkTable(Option<Curve>);

impl LinkTable {
    pub(super) fn of(cost_table: &CostTable) -> LinkTable {
        LinkTable(curves(cost_table).remove(LINK))
    }

    /// Nanoseconds from the moment when one device has written some bytes to the moment when another has them.
    pub fn time(&self, bytes: u64) -> u64 {
        match &self.0 {
            Some(curve) => curve.at(bytes),
            None => LATENCY + bytes / BANDWIDTH,
        }
    }
}

/// The work of receiving: by the number of parts added, the time of their sum's bytes.
pub(super) struct Moves(BTreeMap<u64, Curve>);

impl Moves {
    pub(super) fn of(cost_table: &CostTable) -> Moves {
        let parts = |kernel: &str| match kernel {
            "copy" => Some(1),
            _ => kernel.strip_prefix("sum")?.parse().ok(),
        };
        Moves(
            curves(cost_table)
                .into_iter()
                .filter_map(|(kernel, curve)| Some((parts(kernel)?, curve)))
                .collect(),
        )
    }

    /// Nanoseconds of a receiving task once all bytes are there; `None` if that was not measured.
    pub(super) fn receive(&self, tasks: &TaskGraph, task: TaskId) -> Option<u64> {
        let task = &tasks.tasks[task];
        let (sources, mut sums) = (tasks.sources(&task.reads), BTreeMap::new());
        for &write in &task.writes {
            let element = tasks.buffers[write].ty.dtype.bytes();
            for piece in sources.pieces(write)? {
                *sums.entry(piece.sources.len() as u64).or_insert(0) +=
                    (piece.rect.volume() * element) as u64;
            }
        }
        sums.into_iter().map(|(parts, bytes)| self.at(parts, bytes)).sum()
    }

    fn at(&self, parts: u64, bytes: u64) -> Option<u64> {
        let by_parts: Vec<_> = self.0.iter().map(|(&parts, curve)| (parts, curve.at(bytes))).collect();
        (!by_parts.is_empty()).then(|| Curve(by_parts).at(parts))
    }
}

/// A movement of one piece to a device with nothing else to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    parts: usize,
    bytes: u64,
}

impl Transfer {
    /// The movements whose times `cost table` lacks.
    pub(super) fn missing(cost_table: &CostTable) -> Vec<Transfer> {
        let all = PARTS.into_iter().flat_map(|parts| SIZES.map(|bytes| Transfer { parts, bytes }));
        let lacks = |signature| !cost_table.entries.contains_key(&signature);
        all.filter(|transfer| transfer.signatures().any(|(signature, _)| lacks(signature))).collect()
    }

    /// What is measured: its kernel's name for people.
    pub(super) fn kernel(self) -> String {
        if self.parts == 1 { "copy".into() } else { format!("sum{}", self.parts) }
    }

    /// The entries it gives, and which time of [`Transfer::measure`] is theirs: the work, then the way.
    pub(super) fn signatures(self) -> impl Iterator<Item = (Signature, usize)> {
        let link = (self.parts == 1).then(|| LINK.to_string());
        let entry = move |kernel| {
            let (reads, writes) = (vec![self.bytes; self.parts], vec![self.bytes]);
            Signature { kernel, words: Vec::new(), reads, writes, cores: 1 }
        };
        [self.kernel()].into_iter().chain(link).map(entry).zip(0..)
    }

    /// Nanoseconds of the receiving operation, and from the end of the sender's last one to the end of it.
    pub(super) fn measure(self) -> Result<[u64; 2], String> {
        let program = self.program().map_err(|errors| crate::pipeline::first(&errors))?;
        let devices = (0..2).map(|_| CpuDevice::new(&program, Team::new(1), Flavor::Fast)).collect();
        let mut replay = Replay::new(program, devices, polls(2));
        let moments = watch(&mut replay, self.parts + 1);
        let runs = sample(|| {
            replay.run().map_err(|fault| fault.to_string())?;
            let [sent, received] = [&moments[self.parts - 1], &moments[self.parts]];
            let end = received[1].load(Relaxed);
            Ok([&received[0], &sent[1]].map(|start| end.saturating_sub(start.load(Relaxed))))
        })?;
        Ok([0, 1].map(|which| middle(&mut runs.iter().map(|times| times[which]).collect::<Vec<_>>())))
    }

    /// One device fills the parts, the other one receives their sum.
    fn program(self) -> Result<Program, Vec<ProgramError>> {
        let Transfer { parts, bytes } = self;
        let (elements, mut builder) = (bytes as usize / size_of::<f32>(), Builder::new("transfer"));
        let sources: Vec<_> =
            (0..parts as u64).map(|part| Slice { lane: 0, offset: part * bytes, bytes }).collect();
        builder.lane(0, bytes * parts as u64);
        let words = FillParams { n: elements, value: 0.5 }.to_words();
        for &source in &sources {
            builder.operation(Draft {
                kernel: "fill",
                params: &words,
                writes: &[source],
                ..Draft::default()
            });
        }
        let tile = Tile { origin: &[0], extents: &[elements] };
        let tiles: Vec<_> = (0..parts as u32).map(|part| (part, tile)).collect();
        let pieces = vec![Piece::new(size_of::<f32>(), tile, (0, tile), &tiles)];
        let lane = builder.lane(1, bytes);
        builder.operation(Draft {
            kernel: RECEIVE,
            pieces,
            reads: &sources,
            writes: &[Slice { lane, offset: 0, bytes }],
            scratch: Slice { lane, offset: 0, bytes: 0 },
            waits: &[Wait { lane: 0, position: parts as u32 - 1 }],
            ..Draft::default()
        });
        builder.finish()
    }
}

/// When every operation of the last run started and ended, in nanoseconds.
type Moments = Arc<[[AtomicU64; 2]]>;

/// Notes the moments of all runs from now on.
fn watch(replay: &mut Replay<CpuDevice>, operations: usize) -> Moments {
    let moments: Moments = (0..operations).map(|_| [0; 2].map(AtomicU64::new)).collect();
    let (noted, clock) = (Arc::clone(&moments), Instant::now());
    // Relaxed, here and where they are read: the end of a run orders its moments before every reader.
    let now = move |moment: &AtomicU64| moment.store(clock.elapsed().as_nanos() as u64, Relaxed);
    replay.observe(Some(Arc::new(move |position: usize, _, execute: &mut dyn FnMut()| {
        let [start, end] = &noted[position];
        now(start);
        execute();
        now(end);
    })));
    moments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_straight_between_points_and_beyond_them() {
        let curve = Curve(vec![(10, 100), (20, 300), (40, 200)]);
        let found = [0, 10, 15, 20, 30, 40, 60].map(|size| curve.at(size));
        assert_eq!(found, [100, 100, 200, 300, 250, 200, 200], "beyond the last point it does not fall");
        let one = Curve(vec![(10, 100)]);
        assert_eq!([5, 10, 25].map(|size| one.at(size)), [100, 100, 250]);
        assert_eq!(Curve(vec![(0, 7)]).at(1), 7, "a file may say anything");
        assert_eq!(Curve(vec![(1, 0), (2, u64::MAX)]).at(u64::MAX), u64::MAX);
    }

    #[test]
    fn sums_lie_between_those_with_fewer_and_more_parts() {
        let curve = |ns| Curve(vec![(100, ns), (200, 2 * ns)]);
        let moves = Moves([(1, curve(10)), (2, curve(30)), (4, curve(50))].into());
        let found = [1, 2, 3, 4, 6].map(|parts| moves.at(parts, 200));
        assert_eq!(found, [20, 60, 80, 100, 140].map(Some));
        assert_eq!(Moves(BTreeMap::new()).at(1, 200), None);
    }

    #[test]
    fn every_transfer_is_measured_once_and_gives_its_entries() {
        let mut cost_table = CostTable::new(super::super::Machine::this());
        assert_eq!(Transfer::missing(&cost_table).len(), PARTS.len() * SIZES.len());
        for transfer in [Transfer { parts: 1, bytes: 64 }, Transfer { parts: 8, bytes: 4096 }] {
            let times = transfer.measure().expect("the program runs");
            assert!(times[1] >= times[0], "the way takes longer than the work at its end: {times:?}");
            transfer.signatures().for_each(|(entry, which)| cost_table.set(entry, times[which]));
        }
        let kernels: Vec<_> =
            cost_table.entries().map(|(entry, _)| (entry.kernel.as_str(), entry.reads.len())).collect();
        assert_eq!(kernels, [("copy", 1), ("link", 1), ("sum8", 8)]);
        assert_eq!(Transfer::missing(&cost_table).len(), PARTS.len() * SIZES.len() - 2);
    }
}
