//! What a system makes of one graph: the time of an empty task, and METG at two shares of the ideal.

use std::collections::BTreeMap;
use std::time::Duration;

use super::metg::{TaskWork, metg};

/// The shares at which METG is reported. With two workers, a system that runs everything on one of them comes close to
/// half; three quarters need both.
pub const SHARES: [f64; 2] = [0.5, 0.75];

/// Seconds of bodies after which a graph is not timed again.
const LONG: f64 = 0.1;

/// What a system makes of one graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Nanoseconds of a run with empty bodies, divided by its tasks.
    pub empty_ns: f64,
    /// METG at each of [`SHARES`] in microseconds, where it is within reach.
    pub metg_us: [Option<f64>; 2],
}

/// The cost of a graph whose run takes what `run` returns for bodies of as many iterations as its first argument; it
/// times that as often as the second argument says, at most `repeat` times.
pub fn cost<E>(
    work: TaskWork,
    repeat: usize,
    mut run: impl FnMut(u64, usize) -> Result<Duration, E>,
) -> Result<Cost, E> {
    // Both searches begin with the same lengths.
    let mut known = BTreeMap::new();
    let mut time = |grain| {
        if let Some(&time) = known.get(&grain) {
            return Ok(time);
        }
        // Long bodies vary little, so that few repetitions do.
        let repeat = ((LONG / work.ideal_seconds(grain)) as usize).clamp(1, repeat);
        let time = run(grain, repeat)?;
        known.insert(grain, time);
        Ok(time)
    };
    let empty_ns = time(0)?.as_secs_f64() * 1e9 / work.tasks as f64;
    let mut metg_us = [None; 2];
    for (found, share) in metg_us.iter_mut().zip(SHARES) {
        *found = metg(work, share, &mut time)?.map(|seconds| seconds * 1e6);
    }
    Ok(Cost { empty_ns, metg_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_timed_twice_and_long_bodies_less_often() {
        let work = TaskWork { tasks: 1000, workers: 2, iteration_seconds: 2e-9 };
        let mut asked = Vec::new();
        let cost = cost(work, 9, |grain, repeat| {
            asked.push((grain, repeat));
            Ok::<_, ()>(Duration::from_secs_f64((40e-6 + grain as f64 * 2e-9) * 500.0))
        });
        let Cost { empty_ns, metg_us: [Some(half), Some(most)] } = cost.unwrap() else {
            panic!("both shares are within reach")
        };
        assert_eq!(empty_ns, 20_000.0);
        assert!((half / 40.0 - 1.0).abs() < 0.05 && (most / 120.0 - 1.0).abs() < 0.05, "{half} {most}");
        asked.sort_unstable();
        assert!(asked.is_sorted_by(|a, b| a.0 < b.0 && a.1 >= b.1), "{asked:?}");
        assert_eq!((asked[0], asked.last()), ((0, 9), Some(&(125_000, 1))));
    }
}
