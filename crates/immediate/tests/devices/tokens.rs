//! When tokens fire, and what callbacks are told.

use std::sync::Arc;

use phalanx_runtime::{Device, Token};

use crate::{Log, fault, finish, outcome, stepped, told};

#[test]
fn a_token_of_all_lanes_fires_after_everything_so_far() {
    for seed in 0..50 {
        let (device, log) = (stepped(0, seed), Log::default());
        let lanes = [device.lease(), device.lease(), device.lease()];
        lanes.iter().zip(["a", "b", "c"]).for_each(|(&lane, name)| log.write(&device, lane, name));
        device.give_back(lanes[2]);
        let all = device.record_all();
        log.write(&device, lanes[0], "later");
        let told = told(&device, all);
        let at_fire = loop {
            assert!(device.step(), "the token has not fired");
            if let Ok(outcome) = told.try_recv() {
                assert_eq!(outcome, Ok(()));
                break log.read();
            }
        };
        assert!(["a", "b", "c"].iter().all(|name| at_fire.contains(name)), "{at_fire:?}");
    }
}

#[test]
fn a_token_of_no_lane_has_fired() {
    let device = stepped(0, 0);
    assert_eq!(outcome(&device, device.record_all()), Ok(()));
    assert_eq!(device.unfired(), 0);
}

#[test]
fn callbacks_are_called_once_before_and_after_the_token_fires() {
    let device = stepped(0, 0);
    let lane = device.lease();
    device.enqueue(lane, Box::new(|| ()));
    let token = device.record(lane);
    let early = [told(&device, token), told(&device, token)];
    assert!(device.step());
    assert!(early[0].try_recv().is_err(), "the work is done, the token is not reached");
    assert!(device.step());
    let late = told(&device, token);
    assert_eq!(finish(&device), 0);
    for told in early.iter().chain([&late]) {
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [Ok(())]);
    }
}

#[test]
fn a_callback_that_panics_ends_alone() {
    let device = stepped(0, 0);
    let lane = device.lease();
    let token = device.record(lane);
    device.when_fired(token, Box::new(|_| panic!("this callback panics on purpose")));
    let told = told(&device, token);
    assert_eq!(finish(&device), 1);
    assert_eq!(told.try_recv(), Ok(Ok(())));
    assert_eq!(outcome(&device, token), Ok(()));
}

#[test]
fn callbacks_and_works_may_use_the_device() {
    let (device, log) = (stepped(1, 0), Log::default());
    let (lane, other) = (device.lease(), device.lease());
    let (inner, inner_log) = (Arc::downgrade(&device), log.clone());
    device.enqueue(
        lane,
        Box::new(move || {
            let device = inner.upgrade().unwrap();
            assert!(!device.step(), "the only queue is running this work");
            inner_log.write(&device, other, "from a work");
        }),
    );
    let (inner, inner_log) = (Arc::downgrade(&device), log.clone());
    let then = move |_| inner_log.write(&inner.upgrade().unwrap(), lane, "from a callback");
    device.when_fired(device.record(lane), Box::new(then));
    assert_eq!(finish(&device), 4);
    assert_eq!(log.read(), ["from a work", "from a callback"]);
    let end = device.record_all();
    finish(&device);
    assert_eq!(outcome(&device, end), Ok(()));
}

#[test]
fn a_callback_for_a_token_that_is_not_recorded_is_told_so() {
    let device = stepped(0, 0);
    assert_eq!(fault(&device, Token(7)).operation(), "token 7");
}

#[test]
fn unfired_counts_tokens_from_record_to_fire() {
    let device = stepped(1, 0);
    let (lane, other) = (device.lease(), device.lease());
    device.enqueue(lane, Box::new(|| ()));
    let counts: Vec<usize> = (0..3).map(|_| (device.record(lane), device.unfired()).1).collect();
    assert_eq!(counts, [1, 2, 3]);
    device.record_all();
    device.wait(other, Token(0));
    assert_eq!(device.unfired(), 4);
    let counts: Vec<usize> = (0..7).map(|_| (device.step(), device.unfired()).1).collect();
    // The work, three marks, two marks of the token of all lanes, the wait.
    assert_eq!(counts, [4, 3, 2, 1, 1, 0, 0]);
    assert!(!device.step());
}
