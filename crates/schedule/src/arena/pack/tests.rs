use super::*;
use phalanx_testkit::Rng;

fn random_spans(seed: u64) -> Vec<Span> {
    let mut rng = Rng::new(seed);
    let span = |rng: &mut Rng| {
        let first = rng.below(40) as u32;
        let last = if rng.once_in(5) { 50 } else { first + rng.below(10) as u32 };
        Span { bytes: 64 * rng.below(20) as u64, first, last }
    };
    let count = rng.below(60);
    (0..count).map(|_| span(&mut rng)).collect()
}

fn assert_sound(name: &str, spans: &[Span], layout: &Layout) {
    for (a, one) in spans.iter().enumerate() {
        for (b, other) in spans.iter().enumerate().skip(a + 1) {
            let [from, start] = [layout.offsets[a], layout.offsets[b]];
            let apart = from + one.bytes <= start || start + other.bytes <= from;
            assert!(!one.meets(other) || apart || one.bytes * other.bytes == 0, "{name}: {one:?} {other:?}");
        }
    }
    let end = spans.iter().zip(&layout.offsets).map(|(span, offset)| offset + span.bytes).max();
    assert_eq!(layout.peak, end.unwrap_or(0), "{name}");
}

#[test]
fn every_method_keeps_what_lives_together_apart() {
    for seed in 0..500 {
        let spans = random_spans(seed);
        assert_sound("sweep", &spans, &sweep::pack(&spans));
        assert_sound("quick", &spans, &quick(&spans));
        for key in KEYS {
            let sequence = sorted(&spans, key);
            assert_sound("skyline", &spans, &skyline::pack(&spans, &sequence));
            assert_sound("lowest fit", &spans, &lowest_fit(&spans, &sequence));
        }
        let live = most_live(&spans);
        let best = search(&spans, live, Goal { close: live, fair: live, trials: 8 });
        assert_sound("search", &spans, &best);
        assert_sound("pack", &spans, &pack(&spans, 1));
        assert!(KEYS.iter().all(|&key| best.peak <= lowest_fit(&spans, &sorted(&spans, key)).peak));
        assert!(best.peak >= live);
    }
}

#[test]
fn repacking_makes_many_layouts_smaller_and_none_larger() {
    let (mut loose, mut smaller, mut tight) = (0, 0, 0);
    for seed in 0..300 {
        let spans = random_spans(seed);
        let (sequence, live) = (sorted(&spans, KEYS[0]), most_live(&spans));
        let before = lowest_fit(&spans, &sequence);
        let goal = Goal { close: live, fair: live, trials: 50 };
        let after = repack(&spans, before.clone(), sequence, goal);
        assert_sound("repack", &spans, &after);
        assert!(live <= after.peak && after.peak <= before.peak, "{seed}");
        loose += usize::from(before.peak > live);
        smaller += usize::from(after.peak < before.peak);
        tight += usize::from(before.peak > live && after.peak == live);
    }
    assert!(smaller * 2 > loose && tight > 20, "{smaller} and {tight} of {loose}");
}

#[test]
fn what_is_fair_is_repacked_no_longer_than_its_trials() {
    let seed = (0..300).find(|&seed| {
        let spans = random_spans(seed);
        lowest_fit(&spans, &sorted(&spans, KEYS[0])).peak > most_live(&spans)
    });
    let spans = random_spans(seed.unwrap());
    let sequence = sorted(&spans, KEYS[0]);
    let before = lowest_fit(&spans, &sequence);
    let goal = Goal { close: 0, fair: before.peak, trials: 0 };
    assert_eq!(repack(&spans, before.clone(), sequence, goal).offsets, before.offsets);
}

/// Activations live from a forward moment to the mirrored backward moment; between them are short-lived things.
fn nested(depth: u32) -> Vec<Span> {
    let stack =
        (0..depth).map(|at| Span { bytes: 64 * u64::from(1 + at % 7), first: at, last: 2 * depth - at });
    let short = (0..=2 * depth).map(|at| Span { bytes: 640, first: at, last: at });
    stack.chain(short).collect()
}

#[test]
fn nested_lives_are_packed_without_loss_whatever_their_number() {
    for depth in [1, 10, 1000, 30_000] {
        let spans = nested(depth);
        assert_eq!(quick(&spans).peak, most_live(&spans), "{depth}");
        assert_eq!(pack(&spans, 1_000_000).peak, most_live(&spans), "{depth}");
    }
}

#[test]
fn holes_are_used_and_joined() {
    let span = |bytes, first, last| Span { bytes, first, last };
    // The two holes left at moment 1 are one hole for the last span; the third keeps the top.
    let spans = [span(64, 0, 0), span(64, 0, 0), span(64, 0, 2), span(128, 1, 2)];
    let layout = sweep::pack(&spans);
    assert_eq!(layout.peak, 192);
}
