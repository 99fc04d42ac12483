//! Packing of rectangles (time × bytes) without overlap, as low as possible.
//!
//! That is hard in general; placing the largest first at the lowest free offset comes close to the lower bound. Several
//! orders are tried and the smallest arena wins, ties to the first. This takes a time that grows with the square of the
//! number of spans, so methods that are nearly linear come first: only if they miss the lower bound, and within a budget,
//! the search is made. What lives all the time lies at the bottom: wherever a layout has it, it can be moved there.

use std::cmp::Reverse;

use super::repack::{Goal, lowest_fit, repack};
use super::{Layout, Span, most_live, skyline, sweep};

/// Comparisons of two spans that all searches together may make: some seconds of one core.
const BUDGET: u64 = 4_000_000_000;

/// How often a layout is repacked, and how many comparisons of two spans that may take for all problems: a fraction of a
/// second.
const TRIALS: u64 = 2000;
const TRIAL_BUDGET: u64 = 300_000_000;

/// A layout this close to the lower bound is not repacked, and one that is fair not for long, in thousandths.
const CLOSE: u64 = 1015;
const FAIR: u64 = 1025;

/// What spans are sorted by, largest first.
type Key = fn(&Span) -> (u64, u64);

/// By size, by duration, by both.
const KEYS: [Key; 3] = [
    |span| (span.bytes, span.duration()),
    |span| (span.duration(), span.bytes),
    |span| (span.bytes.saturating_mul(span.duration()), span.bytes),
];

/// The best layout found for one of `problems` problems.
pub(super) fn pack(spans: &[Span], problems: usize) -> Layout {
    let whole = whole_life(spans);
    let (bottom, rest): (Vec<usize>, Vec<usize>) =
        (0..spans.len()).partition(|&index| (spans[index].first, spans[index].last) == whole);
    let mut offsets = vec![0; spans.len()];
    let mut base = 0;
    for index in bottom {
        offsets[index] = base;
        base += spans[index].bytes;
    }
    let above: Vec<Span> = rest.iter().map(|&index| spans[index]).collect();
    let layout = pack_above(&above, base, problems.max(1) as u64);
    for (index, offset) in rest.into_iter().zip(layout.offsets) {
        offsets[index] = base + offset;
    }
    Layout::new(spans, offsets)
}

/// The longest life a span could have.
fn whole_life(spans: &[Span]) -> (u32, u32) {
    let first = spans.iter().map(|span| span.first).min().unwrap_or(0);
    let last = spans.iter().map(|span| span.last).max().unwrap_or(0);
    (first, last)
}

/// A layout of what lies above `base` bytes that live all the time.
fn pack_above(spans: &[Span], base: u64, problems: u64) -> Layout {
    let quick = quick(spans);
    let pairs = (spans.len() as u64).pow(2);
    let live = most_live(spans);
    if quick.peak == live || pairs.saturating_mul(KEYS.len() as u64) > BUDGET / problems {
        return quick;
    }
    let within = |thousandths: u64| (base + live).saturating_mul(thousandths) / 1000 - base;
    let trials = TRIALS.min(TRIAL_BUDGET / problems / pairs.max(1));
    let searched = search(spans, live, Goal { close: within(CLOSE), fair: within(FAIR), trials });
    if searched.peak < quick.peak { searched } else { quick }
}

/// The nearly linear methods.
fn quick(spans: &[Span]) -> Layout {
    let live = most_live(spans);
    let mut best = sweep::pack(spans);
    for key in &KEYS[1..] {
        if best.peak > live {
            let layout = skyline::pack(spans, &sorted(spans, *key));
            best = if layout.peak < best.peak { layout } else { best };
        }
    }
    best
}

/// Tries all orders until nothing is left to gain, and repacks what they give.
fn search(spans: &[Span], live: u64, mut goal: Goal) -> Layout {
    let mut found: Vec<(Layout, Vec<usize>)> = Vec::new();
    for key in KEYS {
        let sequence = sorted(spans, key);
        let layout = lowest_fit(spans, &sequence);
        if layout.peak == live {
            return layout;
        }
        found.push((layout, sequence));
    }
    found.sort_by_key(|(layout, _)| layout.peak);
    let mut best = Layout { peak: u64::MAX, ..Layout::default() };
    for (layout, sequence) in found {
        // The better a sequence begins, the longer it is repacked.
        goal.trials /= 2;
        let layout = repack(spans, layout, sequence, goal);
        best = if layout.peak < best.peak { layout } else { best };
        if best.peak <= goal.close {
            break;
        }
    }
    best
}

fn sorted(spans: &[Span], key: Key) -> Vec<usize> {
    let mut sequence: Vec<usize> = (0..spans.len()).collect();
    sequence.sort_by_cached_key(|&index| (Reverse(key(&spans[index])), index));
    sequence
}

#[cfg(test)]
mod tests;
