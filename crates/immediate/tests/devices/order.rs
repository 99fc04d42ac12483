//! The order of works: on one lane, on several, and across a wait.

use std::collections::{BTreeSet, HashSet};

use phalanx_immediate::{DrainMode, Software, SoftwareConfig};
use phalanx_runtime::Device;

use crate::{Log, finish, stepped};

#[test]
fn a_lane_keeps_its_order() {
    for (n_queues, seed) in [(0, 1), (1, 2), (2, 3), (3, 4)] {
        let (device, log) = (stepped(n_queues, seed), Log::default());
        let lanes = [device.lease(), device.lease()];
        for name in ["a", "b", "c", "d", "e"] {
            log.write(&device, lanes[1], name);
            device.enqueue(lanes[0], Box::new(|| ()));
        }
        assert!(log.read().is_empty());
        assert_eq!(finish(&device), 10);
        assert_eq!(log.read(), ["a", "b", "c", "d", "e"], "{n_queues} queues");
    }
}

/// The orders that two lanes of two works each take over many seeds.
fn orders_of_two_lanes(n_queues: u32) -> BTreeSet<Vec<&'static str>> {
    let order = |seed| {
        let (device, log) = (stepped(n_queues, seed), Log::default());
        let (left, right) = (device.lease(), device.lease());
        for (lane, name) in [(left, "l0"), (right, "r0"), (left, "l1"), (right, "r1")] {
            log.write(&device, lane, name);
        }
        finish(&device);
        log.read()
    };
    (0..200).map(order).collect()
}

#[test]
fn lanes_interleave_in_every_order_unless_they_share_a_queue() {
    let orders = orders_of_two_lanes(0);
    assert_eq!(orders.len(), 6, "{orders:?}");
    let place = |order: &Vec<&str>, name| order.iter().position(|&at| at == name);
    assert!(orders.iter().all(|order| place(order, "l0") < place(order, "l1")));
    assert!(orders.iter().all(|order| place(order, "r0") < place(order, "r1")));
    assert_eq!(orders_of_two_lanes(1), BTreeSet::from([vec!["l0", "r0", "l1", "r1"]]));
}

#[test]
fn a_seed_gives_the_same_order_again() {
    let order = |seed| {
        let (device, log) = (stepped(0, seed), Log::default());
        for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            log.write(&device, device.lease(), name);
        }
        finish(&device);
        log.read()
    };
    assert_eq!(order(5), order(5));
    assert_ne!(order(5), order(6));
}

#[test]
fn round_robin_gives_each_lane_its_turn() {
    let device = Software::new(SoftwareConfig { drain: DrainMode::Stepped, ..SoftwareConfig::default() });
    let log = Log::default();
    let lanes = [device.lease(), device.lease(), device.lease()];
    for (lane, names) in lanes.into_iter().zip([["a0", "a1"], ["b0", "b1"], ["c0", "c1"]]) {
        names.into_iter().for_each(|name| log.write(&device, lane, name));
    }
    finish(&device);
    // Which of the lanes begins is not specified.
    let mut rounds = log.read();
    rounds.chunks_mut(3).for_each(<[_]>::sort);
    assert_eq!(rounds, ["a0", "b0", "c0", "a1", "b1", "c1"]);
}

#[test]
fn a_lane_waits_for_the_token_of_another_and_for_nothing_after_it() {
    let mut later_first = HashSet::new();
    for seed in 0..100 {
        let (device, log) = (stepped(0, seed), Log::default());
        let (producer, consumer) = (device.lease(), device.lease());
        log.write(&device, consumer, "before");
        log.write(&device, producer, "produce");
        device.wait(consumer, device.record(producer));
        log.write(&device, producer, "later");
        log.write(&device, consumer, "consume");
        finish(&device);
        let log = log.read();
        let place = |name| log.iter().position(|&at| at == name).unwrap();
        assert!(place("produce") < place("consume"), "{log:?}");
        later_first.insert((place("later") < place("consume"), place("before") < place("produce")));
    }
    assert_eq!(later_first.len(), 4, "what no token orders happens in every order");
}
