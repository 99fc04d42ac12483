//! METG, the minimum effective task granularity: the shortest task with which a wanted share of the time, usually
//! half, is spent in bodies.
//!
//! The ideal it compares with is the calibrated length of a body, the same for every system, not the best that the
//! measured system reaches itself.

use std::time::Duration;

/// The longest body that is tried, in seconds.
const LONGEST: f64 = 250e-6;

/// Each step of the bracketing changes the body's length by this factor.
const STRIDE: u64 = 4;

/// What one run of a graph has to do.
#[derive(Clone, Copy, Debug)]
pub struct TaskWork {
    /// Tasks in the graph.
    pub tasks: usize,
    /// Workers that could run them at once.
    pub workers: usize,
    /// Seconds that one iteration of a body takes alone on a core.
    pub iteration_seconds: f64,
}

impl TaskWork {
    /// Seconds of a run in which all workers do nothing but bodies of `grain` iterations.
    pub fn ideal_seconds(&self, grain: u64) -> f64 {
        self.tasks as f64 * grain as f64 * self.iteration_seconds / self.workers as f64
    }
}

/// A body's iterations and the efficiency measured with it.
type Point = (u64, f64);

/// The shortest body, in seconds, with which `run` of a graph reaches `share` of the ideal; none if even a quarter of
/// a millisecond does not.
///
/// `run` executes the graph with bodies of the given iterations; its first error ends the search. About a dozen lengths
/// are tried.
pub fn metg<E>(
    work: TaskWork,
    share: f64,
    mut run: impl FnMut(u64) -> Result<Duration, E>,
) -> Result<Option<f64>, E> {
    let mut measure = |grain: u64| Ok((grain, work.ideal_seconds(grain) / run(grain)?.as_secs_f64()));
    let Some((mut below, mut above)) = bracket(work.iteration_seconds, share, &mut measure)? else {
        return Ok(None);
    };
    // A tenth is close enough to interpolate.
    while above.0 > below.0 + 1 && above.0 as f64 > 1.1 * below.0 as f64 {
        let middle = (below.0 as f64 * above.0 as f64).sqrt().round() as u64;
        let point = measure(middle.clamp(below.0 + 1, above.0 - 1))?;
        *(if point.1 < share { &mut below } else { &mut above }) = point;
    }
    Ok(Some(interpolate(below, above, share) * work.iteration_seconds))
}

/// Two points with the wanted share between them, found from a microsecond up or down.
fn bracket<E>(
    iteration_seconds: f64,
    share: f64,
    mut measure: impl FnMut(u64) -> Result<Point, E>,
) -> Result<Option<(Point, Point)>, E> {
    let iterations = |seconds: f64| (seconds / iteration_seconds).ceil() as u64;
    let longest = iterations(LONGEST);
    let mut above = measure(iterations(1e-6))?;
    let mut below = above;
    while above.1 < share {
        if above.0 == longest {
            return Ok(None);
        }
        below = above;
        above = measure((above.0 * STRIDE).min(longest))?;
    }
    while below.1 >= share {
        above = below;
        // An empty body is no use at all and needs no measurement.
        below = if above.0 < STRIDE { (0, 0.0) } else { measure(above.0 / STRIDE)? };
    }
    Ok(Some((below, above)))
}

/// The iterations at which the line through both points has the wanted share.
fn interpolate(below: Point, above: Point, share: f64) -> f64 {
    let way = (share - below.1) / (above.1 - below.1);
    below.0 as f64 + way * (above.0 - below.0) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: TaskWork = TaskWork { tasks: 2000, workers: 2, iteration_seconds: 2.7e-9 };

    /// A system that adds `overhead` seconds to every task and keeps `workers` of them busy.
    fn system(overhead: f64, workers: usize) -> impl FnMut(u64) -> Result<Duration, &'static str> {
        move |grain| {
            let task = overhead + grain as f64 * WORK.iteration_seconds;
            Ok(Duration::from_secs_f64(task * WORK.tasks as f64 / workers as f64))
        }
    }

    #[test]
    fn is_the_overhead_of_a_task() {
        for overhead in [3e-9, 20e-9, 150e-9, 1e-6, 7.3e-6, 60e-6, 240e-6] {
            let found = metg(WORK, 0.5, system(overhead, 2)).unwrap().unwrap();
            assert!((found / overhead - 1.0).abs() < 0.05, "{overhead} s a task gave {found}");
        }
    }

    #[test]
    fn is_three_times_the_overhead_at_three_quarters() {
        for overhead in [3e-9, 150e-9, 7.3e-6, 80e-6] {
            let found = metg(WORK, 0.75, system(overhead, 2)).unwrap().unwrap();
            assert!((found / overhead / 3.0 - 1.0).abs() < 0.05, "{overhead} s a task gave {found}");
        }
    }

    #[test]
    fn is_none_where_the_share_is_out_of_reach() {
        assert_eq!(metg(WORK, 0.5, system(260e-6, 2)), Ok(None));
        // One worker of three does everything: a third at best.
        assert_eq!(metg(TaskWork { workers: 3, ..WORK }, 0.5, system(0.0, 1)), Ok(None));
        // One worker of two, without any overhead: half, and no more.
        assert_eq!(metg(WORK, 0.75, system(0.0, 1)), Ok(None));
    }

    #[test]
    fn tries_few_lengths_and_stops_at_an_error() {
        for overhead in [20e-9, 1e-6, 60e-6] {
            let (mut runs, mut run) = (0, system(overhead, 2));
            let found = metg(WORK, 0.5, |grain| {
                runs += 1;
                run(grain)
            });
            assert!(found.is_ok() && runs <= 12, "{runs} runs for {overhead} s a task");
            let fails_at = runs;
            runs = 0;
            let found = metg(WORK, 0.5, |grain| {
                runs += 1;
                if runs == fails_at { Err("lost") } else { run(grain) }
            });
            assert_eq!((found, runs), (Err("lost"), fails_at));
        }
    }
}
