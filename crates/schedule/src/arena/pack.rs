//! Packing of rectangles (time × bytes) without overlap, as low as possible.
//!
//! That is hard in general; placing the largest first at the lowest free offset comes close to the lower bound. Several
//! orders are tried and the smallest arena wins, ties to the first. This takes a time that grows with the square of the
//! number of spans, so methods that are nearly linear come first: only if they miss the lower bound, and within a budget,
//! the search is made.

use std::cmp::Reverse;

use super::{Layout, Span, most_live, skyline, sweep};

/// Comparisons of two spans that all searches together may make: some seconds of one core.
const BUDGET: u64 = 4_000_000_000;

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
    let quick = quick(spans);
    let steps = (spans.len() as u64).pow(2) * KEYS.len() as u64;
    if quick.peak == most_live(spans) || steps > BUDGET / problems.max(1) as u64 {
        return quick;
    }
    let searched = search(spans, problems.max(1) as u64);
    if searched.peak < quick.peak { searched } else { quick }
}

/// Tries all orders, each with and without moving what lives all the time to the bottom, until nothing is left to gain.
fn search(spans: &[Span], problems: u64) -> Layout {
    let live = most_live(spans);
    let whole = whole_life(spans);
    let is_whole = |&index: &usize| (spans[index].first, spans[index].last) == whole;
    let mut found: Vec<(Layout, Vec<usize>)> = Vec::new();
    for apart in [false, true] {
        for key in KEYS {
            let mut sequence = sorted(spans, key);
            if apart {
                sequence.sort_by_key(|index| !is_whole(index));
            }
            let layout = lowest_fit(spans, &sequence);
            if layout.peak == live {
                return layout;
            }
            found.push((layout, sequence));
        }
    }
    found.sort_by_key(|(layout, _)| layout.peak);
    let mut repairs = REPAIRS.min(REPAIR_BUDGET / problems / (spans.len() as u64).pow(2).max(1));
    let mut best = Layout { peak: u64::MAX, ..Layout::default() };
    for (layout, sequence) in found {
        // The better a sequence begins, the longer it is repaired.
        repairs /= 2;
        let layout = repair(spans, layout, sequence, (live, repairs));
        best = if layout.peak < best.peak { layout } else { best };
        if is_close(best.peak, live) {
            break;
        }
    }
    best
}

/// A layout this close to the lower bound is not repaired, in thousandths.
const CLOSE: u64 = 1015;

/// How often a layout is repaired, and how many comparisons of two spans that may take for all problems: a fraction of a
/// second.
const REPAIRS: u64 = 500;
const REPAIR_BUDGET: u64 = 300_000_000;

fn is_close(peak: u64, live: u64) -> bool {
    peak <= live.saturating_mul(CLOSE) / 1000
}

/// Places what reaches to the top earlier, again and again, and keeps the best.
fn repair(spans: &[Span], mut best: Layout, mut sequence: Vec<usize>, (live, repairs): (u64, u64)) -> Layout {
    let mut layout = best.clone();
    for round in 0..repairs {
        if is_close(best.peak, live) {
            break;
        }
        let is_top = |&index: &usize| layout.offsets[index] + spans[index].bytes == layout.peak;
        // Half way to the front, so that the largest still come first; now and then a smaller step, lest it goes round in
        // circles.
        for at in (0..sequence.len()).filter(|&at| is_top(&sequence[at])).collect::<Vec<_>>() {
            let to = if round % 3 == 2 { at - at / 4 } else { at / 2 };
            sequence[to..=at].rotate_right(1);
        }
        layout = lowest_fit(spans, &sequence);
        if layout.peak < best.peak {
            best = layout.clone();
        }
    }
    best
}

/// The nearly linear methods, above what lives all the time.
fn quick(spans: &[Span]) -> Layout {
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
    let live = most_live(&above);
    let mut best = sweep::pack(&above);
    for key in &KEYS[1..] {
        if best.peak > live {
            let layout = skyline::pack(&above, &sorted(&above, *key));
            best = if layout.peak < best.peak { layout } else { best };
        }
    }
    for (index, offset) in rest.into_iter().zip(best.offsets) {
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

fn sorted(spans: &[Span], key: Key) -> Vec<usize> {
    let mut sequence: Vec<usize> = (0..spans.len()).collect();
    sequence.sort_by_cached_key(|&index| (Reverse(key(&spans[index])), index));
    sequence
}

/// A span with its place.
#[derive(Clone, Copy)]
struct Placed {
    offset: u64,
    span: Span,
}

/// Places spans in the given sequence, each at the lowest offset where it fits.
fn lowest_fit(spans: &[Span], sequence: &[usize]) -> Layout {
    let mut offsets = vec![0; spans.len()];
    let mut placed: Vec<Placed> = Vec::with_capacity(spans.len());
    for &index in sequence {
        let span = spans[index];
        let mut offset = 0;
        for other in placed.iter().filter(|other| other.span.meets(&span)) {
            if other.offset >= offset + span.bytes {
                break;
            }
            offset = offset.max(other.offset + other.span.bytes);
        }
        offsets[index] = offset;
        let at = placed.partition_point(|other| other.offset <= offset);
        placed.insert(at, Placed { offset, span });
    }
    Layout::new(spans, offsets)
}

#[cfg(test)]
mod tests;
