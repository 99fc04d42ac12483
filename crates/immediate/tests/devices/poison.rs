//! What goes wrong on a lane, and how far it spreads.

use std::sync::Arc;

use phalanx_immediate::Software;
use phalanx_runtime::{Cause, Device, Lane, Token};

use crate::{Log, fault, finish, outcome, stepped};

fn enqueue_panic(device: &Software, lane: Lane) {
    device.enqueue(lane, Box::new(|| panic!("out of paper")));
}

#[test]
fn a_panic_poisons_what_comes_after_it_on_its_lane_only() {
    let (device, log) = (stepped(1, 0), Log::default());
    let (lane, neighbor) = (device.lease(), device.lease());
    device.enqueue(neighbor, Box::new(|| ()));
    let before = device.record(lane);
    enqueue_panic(&device, lane);
    let [after, beside] = [lane, neighbor].map(|lane| device.record(lane));
    log.write(&device, lane, "skipped");
    let last = device.record(lane);
    log.write(&device, neighbor, "beside");
    let all = device.record_all();
    finish(&device);
    assert_eq!([before, beside].map(|token| outcome(&device, token)), [Ok(()), Ok(())]);
    assert_eq!(fault(&device, after).to_string(), "work 1 on lane 0: failed: out of paper");
    assert_eq!(fault(&device, last), fault(&device, after));
    assert_eq!(fault(&device, all), fault(&device, after));
    assert_eq!(log.read(), ["beside"]);
}

#[test]
fn a_skipped_work_is_dropped() {
    let device = stepped(0, 0);
    let (lane, held) = (device.lease(), Arc::new(()));
    enqueue_panic(&device, lane);
    let captured = Arc::clone(&held);
    device.enqueue(lane, Box::new(move || drop(captured)));
    assert_eq!(finish(&device), 2);
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn poison_travels_along_waits_from_there_on() {
    for seed in 0..20 {
        let (device, log) = (stepped(0, seed), Log::default());
        let [first, second, third] = [device.lease(), device.lease(), device.lease()];
        enqueue_panic(&device, first);
        let origin = device.record(first);
        log.write(&device, second, "done");
        let clean = device.record(second);
        device.wait(second, origin);
        log.write(&device, second, "skipped");
        let poisoned = device.record(second);
        device.wait(third, clean);
        let still_clean = device.record(third);
        device.wait(third, poisoned);
        let end = device.record(third);
        finish(&device);
        assert_eq!([clean, still_clean].map(|token| outcome(&device, token)), [Ok(()), Ok(())]);
        assert_eq!(fault(&device, poisoned), fault(&device, origin));
        assert_eq!(fault(&device, end).operation(), "work 0 on lane 0");
        assert_eq!(log.read(), ["done"]);
    }
}

#[test]
fn a_lane_leased_anew_is_clean() {
    let (device, log) = (stepped(0, 0), Log::default());
    let lane = device.lease();
    enqueue_panic(&device, lane);
    finish(&device);
    device.give_back(lane);
    assert_eq!(outcome(&device, device.record_all()), Ok(()), "the lane is not used any more");
    assert_eq!(device.lease(), lane);
    log.write(&device, lane, "clean");
    let token = device.record(lane);
    finish(&device);
    assert_eq!(outcome(&device, token), Ok(()));
    assert_eq!(log.read(), ["clean"]);
}

#[test]
fn waiting_for_a_token_that_is_not_recorded_poisons_the_lane() {
    let device = stepped(0, 0);
    let (early, lane) = (device.lease(), device.lease());
    let before = device.record(lane);
    device.wait(lane, Token(3));
    let after = device.record(lane);
    // It is too late to record it now.
    assert_eq!([device.record(early), device.record(early)], [Token(2), Token(3)]);
    finish(&device);
    assert_eq!(outcome(&device, before), Ok(()));
    let why = "wait of lane 1: token 3: the device has recorded 1 tokens so far; record it before it is used";
    assert_eq!(fault(&device, after).to_string(), why);
    assert!(matches!(fault(&device, after).cause(), Cause::Refused(_)));
}

#[test]
fn a_lane_without_a_lease_does_nothing_and_says_so() {
    let (device, log) = (stepped(0, 0), Log::default());
    let given_back = device.lease();
    device.give_back(given_back);
    for lane in [given_back, Lane(u32::MAX)] {
        log.write(&device, lane, "never");
        device.wait(lane, Token(0));
        let told = fault(&device, device.record(lane)).to_string();
        let operation = format!("record on lane {}", lane.0);
        assert!(told.starts_with(&operation) && told.contains("lease it first"), "{told}");
        device.give_back(lane);
    }
    assert_eq!(finish(&device), 0);
    assert!(log.read().is_empty());
}
