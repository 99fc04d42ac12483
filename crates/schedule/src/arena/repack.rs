//! Packing by trial: spans are placed in a sequence, each as low as it fits; a span that then sticks out comes
//! earlier in the next trial.
//!
//! A trial ends with the first span that would make the arena no smaller than the best one so far. So most trials are
//! short, and the span to move is known. How far it moves is drawn from a fixed seed: the same spans give the same layout.

use super::{Layout, Span};

/// Where the random numbers begin.
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// How many times as many trials are made as long as the layout is not even fair.
const PATIENCE: u64 = 12;

/// When to be content.
#[derive(Clone, Copy)]
pub(super) struct Goal {
    /// With so high an arena nothing more is tried.
    pub close: u64,
    /// With so high an arena only `trials` are made.
    pub fair: u64,
    pub trials: u64,
}

/// Makes `best`, the layout of the sequence, smaller until the goal is reached.
pub(super) fn repack(spans: &[Span], mut best: Layout, mut sequence: Vec<usize>, goal: Goal) -> Layout {
    let mut random = SEED;
    for trial in 0..goal.trials * PATIENCE {
        if best.peak <= if trial < goal.trials { goal.close } else { goal.fair } {
            break;
        }
        match fit(spans, &sequence, best.peak - 1) {
            Ok(layout) => best = layout,
            Err(at) => {
                // Short ways are more likely than long ones.
                let ways = [below(&mut random, at + 1), below(&mut random, at + 1)];
                let to = at - ways[0].min(ways[1]);
                sequence[to..=at].rotate_right(1);
            }
        }
    }
    best
}

/// A number below `bound`.
fn below(random: &mut u64, bound: usize) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    ((*random >> 33) as usize) % bound
}

/// A span with its place.
#[derive(Clone, Copy)]
struct Placed {
    offset: u64,
    span: Span,
}

/// Places spans in the given sequence, each at the lowest offset where it fits.
pub(super) fn lowest_fit(spans: &[Span], sequence: &[usize]) -> Layout {
    fit(spans, sequence, u64::MAX).expect("there is no limit")
}

/// The same below `limit`; otherwise the place in the sequence of the first that exceeds it.
fn fit(spans: &[Span], sequence: &[usize], limit: u64) -> Result<Layout, usize> {
    let mut offsets = vec![0; spans.len()];
    let mut placed: Vec<Placed> = Vec::with_capacity(spans.len());
    for (turn, &index) in sequence.iter().enumerate() {
        let span = spans[index];
        let mut offset = 0;
        for other in placed.iter().filter(|other| other.span.meets(&span)) {
            if other.offset >= offset + span.bytes {
                break;
            }
            offset = offset.max(other.offset + other.span.bytes);
        }
        if offset + span.bytes > limit {
            return Err(turn);
        }
        offsets[index] = offset;
        let at = placed.partition_point(|other| other.offset <= offset);
        placed.insert(at, Placed { offset, span });
    }
    Ok(Layout::new(spans, offsets))
}
