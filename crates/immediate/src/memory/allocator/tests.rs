use std::collections::BTreeSet;

use super::*;

/// Numbers that look random.
struct Seed(u64);

impl Seed {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

impl Allocator {
    /// The invariants of the file's head, from the placements alone.
    fn check(&self, capacity: u64) {
        let mut free = Holes::all(capacity);
        for placement in self.live.values() {
            assert!(free.contains(&placement.range), "live placements overlap: {self:?}");
            free.take(&placement.range);
        }
        assert_eq!(free, self.current);
        assert!(self.pending.is_sorted_by_key(|(_, placement)| placement.asked));
        for (place, (key, placement)) in self.pending.iter().enumerate() {
            assert!(placement.range.end <= capacity && placement.range.start.is_multiple_of(placement.align));
            let before = self.pending[..place].iter().map(|(_, other)| other);
            let in_the_way = self.live.values().chain(before).filter(|other| other.overlaps(placement));
            let mut count = 0;
            for other in in_the_way {
                count += 1;
                assert!(other.goes_before(placement.asked), "{key} waits for what may wait for it: {self:?}");
            }
            assert_ne!(count, 0, "{key} waits for nothing: {self:?}");
        }
    }
}

/// Random requests, releases in random order, cancellations: no accepted request fails unless a release was cancelled,
/// and all of them have placements when all releases have happened.
#[test]
fn accepted_requests_come_about_whatever_the_order_of_releases() {
    let mut verdicts = BTreeMap::<&str, u32>::new();
    for round in 0..600 {
        let mut seed = Seed(round * 2 + 1);
        let capacity = 8 + seed.below(24);
        let mut allocator = Allocator::new(capacity);
        let (mut live, mut waiting) = (BTreeSet::<Key>::new(), BTreeSet::<Key>::new());
        let mut releasing = BTreeSet::<Key>::new();
        let apply = |changes: Changes, live: &mut BTreeSet<Key>, waiting: &mut BTreeSet<Key>| {
            for (key, _) in changes.granted {
                assert!(waiting.remove(&key) && live.insert(key));
            }
            changes.failed
        };
        for key in 0..120 {
            let (bytes, align) = (1 + seed.below(capacity / 3), 1 << seed.below(3));
            let (verdict, changes) = allocator.ask(key, bytes, align);
            assert_eq!(apply(changes, &mut live, &mut waiting), []);
            allocator.check(capacity);
            match verdict {
                Verdict::Now(start) => {
                    assert!(start.is_multiple_of(align) && start + bytes <= capacity);
                    live.insert(key);
                }
                Verdict::Later => drop(waiting.insert(key)),
                Verdict::Never(free) => assert_eq!(free, allocator.current.bytes()),
            }
            let name = match verdict {
                Verdict::Now(_) if waiting.is_empty() => "now",
                Verdict::Now(_) => "now, before others",
                Verdict::Later => "later",
                Verdict::Never(_) => "never",
            };
            *verdicts.entry(name).or_default() += 1;
            let all: Vec<Key> =
                live.union(&waiting).copied().filter(|key| !releasing.contains(key)).collect();
            if !all.is_empty() && seed.below(3) > 0 {
                let key = all[seed.below(all.len() as u64) as usize];
                assert!(allocator.accept_release(key) && !allocator.accept_release(key));
                releasing.insert(key);
            }
            let ready: Vec<Key> = releasing.intersection(&live).copied().collect();
            if ready.is_empty() || seed.below(3) == 0 {
                continue;
            }
            let key = ready[seed.below(ready.len() as u64) as usize];
            releasing.remove(&key);
            if seed.below(6) == 0 {
                let changes = allocator.cancel_release(key);
                for failed in apply(changes, &mut live, &mut waiting) {
                    assert!(waiting.remove(&failed));
                    releasing.remove(&failed);
                    *verdicts.entry("failed").or_default() += 1;
                }
            } else {
                live.remove(&key);
                assert_eq!(apply(allocator.release(key), &mut live, &mut waiting), []);
            }
            allocator.check(capacity);
        }
        while let Some(key) = releasing.intersection(&live).next().copied() {
            releasing.remove(&key);
            live.remove(&key);
            assert_eq!(apply(allocator.release(key), &mut live, &mut waiting), []);
            allocator.check(capacity);
        }
        assert_eq!(waiting, BTreeSet::new(), "round {round}");
    }
    let counts: Vec<_> = verdicts.iter().map(|(name, count)| (*name, *count > 100)).collect();
    let all = ["failed", "later", "never", "now", "now, before others"];
    assert_eq!(counts, all.map(|name| (name, true)), "every case comes up: {verdicts:?}");
}

#[test]
fn a_release_out_of_order_lets_a_waiting_one_in_if_others_still_find_room() {
    let mut allocator = Allocator::new(3);
    for key in 0..3 {
        assert_eq!(allocator.ask(key, 1, 1).0, Verdict::Now(u64::from(key)));
    }
    assert!(allocator.accept_release(0) && allocator.accept_release(2));
    assert_eq!(allocator.ask(10, 1, 1).0, Verdict::Later, "planned where 0 is");
    assert_eq!(allocator.ask(11, 1, 1).0, Verdict::Later, "planned where 2 is");
    assert_eq!(allocator.release(2).granted, [(11, 2)], "its own place comes first");
    assert_eq!(allocator.release(0).granted, [(10, 0)]);
}

#[test]
fn a_waiting_one_takes_other_free_bytes_if_nobody_is_to_have_them() {
    let mut allocator = Allocator::new(2);
    for key in 0..2 {
        assert_eq!(allocator.ask(key, 1, 1).0, Verdict::Now(u64::from(key)));
    }
    assert!(allocator.accept_release(0) && allocator.accept_release(1));
    assert_eq!(allocator.ask(10, 1, 1).0, Verdict::Later, "planned where 0 is");
    assert_eq!(allocator.release(1).granted, [(10, 1)], "where 1 was");
    assert_eq!(allocator.ask(11, 1, 1).0, Verdict::Later);
    assert_eq!(allocator.release(0).granted, [(11, 0)]);
}

#[test]
fn nobody_passes_at_the_cost_of_one_who_waits() {
    let mut allocator = Allocator::new(3);
    assert_eq!(allocator.ask(0, 1, 1).0, Verdict::Now(0));
    assert_eq!(allocator.ask(1, 1, 1).0, Verdict::Now(1));
    assert!(allocator.accept_release(1));
    assert_eq!(allocator.ask(10, 2, 1).0, Verdict::Later, "needs byte 1 and the free byte 2");
    assert_eq!(allocator.ask(11, 1, 1).0, Verdict::Never(1), "byte 2 is free and promised");
    assert!(allocator.accept_release(0));
    assert_eq!(
        allocator.ask(12, 1, 1).0,
        Verdict::Later,
        "0 goes, but after 10 was asked for: 10 cannot rely on it"
    );
    assert_eq!(allocator.release(0).granted, [(12, 0)]);
    assert_eq!(allocator.release(1).granted, [(10, 1)]);
}
