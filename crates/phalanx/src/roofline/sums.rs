//! Sums the times of operations into rows and lanes.

use std::collections::BTreeMap;

use phalanx_program::{Lane, Operation, Payload, Program, TRANSFERS};

use super::{By, LaneTime, Peaks, Roofline, RooflineLimit, Row};
use crate::costs::{Signature, Work, movement_work};

/// Below this share of its time a kernel's roofline does not explain it.
const EXPLAINED: f64 = 0.1;

/// Steps that were measured.
pub struct Times<'a> {
    pub program: &'a Program,
    /// Of every operation, in program order, over all steps.
    pub seconds: &'a [f64],
    /// Of all steps.
    pub wall: f64,
    pub steps: usize,
}

/// What a row is made of, in one step.
#[derive(Clone, Copy, Default)]
struct Sum {
    seconds: f64,
    launches: usize,
    work: Work,
    /// The least seconds of operations that computing bounds, and of those that memory bounds.
    least: (f64, f64),
}

impl Times<'_> {
    /// All that is told of the steps, on devices with these peaks, which compute at most `fma_peak_gflops` together.
    pub fn roofline(&self, by: By, device_peaks: Peaks, fma_peak_gflops: f64) -> Roofline {
        let (step, devices) = (self.wall / self.steps as f64, self.program.homes().count());
        let lanes = self.lanes();
        let sums = self.sums(by, device_peaks);
        let flops: f64 = sums.values().map(|sum| sum.work.flops).sum();
        let whole = step * devices as f64;
        let mut rows: Vec<Row> = sums.into_iter().map(|(name, sum)| sum.row(name, whole)).collect();
        rows.sort_by(|a, b| b.ms.total_cmp(&a.ms));
        let idle_ms: f64 = lanes.iter().filter(|lane| !lane.beside).map(|lane| lane.idle_ms).sum();
        let gflops = rate(flops, step);
        Roofline {
            by,
            steps: self.steps,
            devices,
            device_peaks,
            fma_peak_gflops,
            ms_per_step: 1e3 * step,
            gflops,
            peak_share: gflops / fma_peak_gflops,
            idle_ms,
            idle_share: idle_ms / (1e3 * whole),
            rows,
            lanes,
        }
    }

    /// The operations of a lane with their seconds in one step.
    fn operations(&self, lane: &Lane) -> impl Iterator<Item = (&Operation, f64)> {
        let seconds = &self.seconds[lane.operations.start as usize..];
        self.program.operations_of(lane).iter().zip(seconds.iter().map(|all| all / self.steps as f64))
    }

    fn sums(&self, by: By, peaks: Peaks) -> BTreeMap<String, Sum> {
        let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
        for (operation, seconds) in self.program.homes().flat_map(|lane| self.operations(lane)) {
            let signature = Signature::of_operation(self.program, operation, peaks.cores);
            let label = self.program.label(operation);
            let name = match by {
                By::Kernel => signature.kernel.clone(),
                By::Layer => label.to_string(),
                By::Operation => {
                    let sizes = signature.sizes().map_or(String::new(), |sizes| format!(" ({sizes})"));
                    format!("{} {label}{sizes}", signature.kernel)
                }
            };
            let work = match operation.payload {
                Payload::Movement(_) => movement_work(self.program.pieces(operation)),
                _ => signature.work(),
            };
            sums.entry(name).or_default().add(seconds, work, peaks);
        }
        sums
    }

    fn lanes(&self) -> Vec<LaneTime> {
        let step_ms = 1e3 * self.wall / self.steps as f64;
        let time = |(number, lane): (u32, &Lane)| {
            let (mut computing_ms, mut moving_ms) = (0.0, 0.0);
            for (operation, seconds) in self.operations(lane) {
                let moves = TRANSFERS.contains(&self.program.kernel(operation));
                *(if moves { &mut moving_ms } else { &mut computing_ms }) += 1e3 * seconds;
            }
            let idle_ms = step_ms - computing_ms - moving_ms;
            LaneTime { device: lane.device, beside: lane.home != number, computing_ms, moving_ms, idle_ms }
        };
        (0..).zip(self.program.lanes()).map(time).collect()
    }
}

impl Sum {
    fn add(&mut self, seconds: f64, work: Work, peaks: Peaks) {
        self.seconds += seconds;
        self.launches += 1;
        self.work.flops += work.flops;
        self.work.bytes += work.bytes;
        match peaks.seconds(work) {
            (compute, memory) if compute >= memory => self.least.0 += compute,
            (_, memory) => self.least.1 += memory,
        }
    }

    /// The row of this name; the computing lanes have `whole` seconds.
    fn row(self, name: String, whole: f64) -> Row {
        let Sum { seconds, launches, work, least: (compute, memory) } = self;
        let least = compute + memory;
        let bound_by = match () {
            () if least < EXPLAINED * seconds => RooflineLimit::Overhead,
            () if compute >= memory => RooflineLimit::Compute,
            () => RooflineLimit::Memory,
        };
        Row {
            name,
            ms: 1e3 * seconds,
            share: seconds / whole,
            launches,
            gflops: rate(work.flops, seconds),
            gb_per_s: rate(work.bytes, seconds),
            roofline_share: if seconds > 0.0 { least / seconds } else { 1.0 },
            bound_by,
            lost_ms: 1e3 * (seconds - least).max(0.0),
        }
    }
}

/// Of so much in some seconds, 10⁹ in one; what takes no time has no rate.
fn rate(count: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { count / seconds / 1e9 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEAKS: Peaks = Peaks { cores: 1, gflops: 100.0, gb_per_s: 10.0 };

    /// The row of operations with these operations, bytes and seconds, of ten seconds in all.
    fn row(operations: &[(f64, f64, f64)]) -> Row {
        let mut sum = Sum::default();
        for &(flops, bytes, seconds) in operations {
            sum.add(seconds, Work { flops, bytes }, PEAKS);
        }
        sum.row("kernel".into(), 10.0)
    }

    #[test]
    fn a_row_has_its_rates_its_bound_and_what_is_lost() {
        let slow = row(&[(2e11, 1e9, 4.0)]);
        assert_eq!((slow.ms, slow.share, slow.launches), (4000.0, 0.4, 1));
        assert_eq!((slow.gflops, slow.gb_per_s), (50.0, 0.25));
        assert_eq!((slow.roofline_share, slow.bound_by, slow.lost_ms), (0.5, RooflineLimit::Compute, 2000.0));
        let cached = row(&[(1e9, 4e10, 2.0)]);
        assert_eq!(
            (cached.roofline_share, cached.bound_by, cached.lost_ms),
            (2.0, RooflineLimit::Memory, 0.0)
        );
        let mixed = row(&[(1e11, 0.0, 2.0), (0.0, 3e10, 4.0)]);
        assert_eq!((mixed.launches, mixed.bound_by, mixed.lost_ms), (2, RooflineLimit::Memory, 2000.0));
        assert_eq!(row(&[(1e10, 0.0, 1.5)]).bound_by, RooflineLimit::Overhead);
    }
}
