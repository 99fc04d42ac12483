//! Devices with a thread of their own: calls that return at once, delays, and the end.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use phalanx_immediate::{DrainMode, QueueOrder, Software, SoftwareConfig};
use phalanx_runtime::Device;

use crate::{Log, fault, finish, stepped, told};

#[test]
fn the_host_enqueues_everything_while_the_first_work_runs() {
    let order = QueueOrder::Seeded(3);
    let device = Software::new(SoftwareConfig { order, ..SoftwareConfig::default() });
    let lanes = [device.lease(), device.lease(), device.lease()];
    let (go, gate) = channel::<()>();
    device.enqueue(lanes[0], Box::new(move || gate.recv().unwrap()));
    let done = Arc::new(Mutex::new(Vec::new()));
    for work in 0..300 {
        let (from, to) = (lanes[work % 3], lanes[(work + 1) % 3]);
        let done = Arc::clone(&done);
        device.wait(to, device.record(from));
        device.enqueue(to, Box::new(move || done.lock().unwrap().push(work)));
    }
    let last = told(&device, device.record(lanes[0]));
    assert_eq!(device.unfired(), 301);
    assert!(done.lock().unwrap().is_empty());
    go.send(()).unwrap();
    assert_eq!(last.recv(), Ok(Ok(())));
    assert_eq!(*done.lock().unwrap(), (0..300).collect::<Vec<_>>());
    assert_eq!(device.unfired(), 0);
}

#[test]
fn a_thread_without_work_wakes_for_the_next_one() {
    let device = Software::new(SoftwareConfig::default());
    let lane = device.lease();
    // After a round the thread soon finds nothing to do; in some of the rounds it sleeps before the next begins.
    for _ in 0..1000 {
        assert_eq!(told(&device, device.record(lane)).recv(), Ok(Ok(())));
    }
}

#[test]
fn a_panic_does_not_end_the_thread() {
    let device = Software::new(SoftwareConfig::default());
    let (broken, whole) = (device.lease(), device.lease());
    device.enqueue(broken, Box::new(|| panic!("out of paper")));
    let token = device.record(broken);
    assert!(told(&device, token).recv().unwrap().is_err());
    assert_eq!(fault(&device, token).to_string(), "work 0 on lane 0: failed: out of paper");
    assert_eq!(told(&device, device.record(whole)).recv(), Ok(Ok(())));
}

#[test]
fn the_delay_is_asked_once_for_every_work() {
    let (send, asked) = channel();
    let delay = move |number| {
        send.send(number).unwrap();
        Duration::ZERO
    };
    let device =
        Software::new(SoftwareConfig { drain: DrainMode::Delayed(Box::new(delay)), ..Default::default() });
    let lane = device.lease();
    for _ in 0..3 {
        device.enqueue(lane, Box::new(|| ()));
        device.record(lane);
    }
    drop(device);
    assert_eq!(asked.iter().collect::<Vec<u64>>(), [0, 1, 2]);
}

#[test]
fn dropping_a_device_finishes_what_is_enqueued() {
    let (device, log) = (Software::new(SoftwareConfig::default()), Log::default());
    let (lane, other) = (device.lease(), device.lease());
    log.write(&device, lane, "first");
    device.wait(other, device.record(lane));
    log.write(&device, other, "second");
    let end = told(&device, device.record(other));
    drop(device);
    assert_eq!(log.read(), ["first", "second"]);
    assert_eq!(end.try_recv(), Ok(Ok(())));
}

#[test]
fn the_last_owner_of_a_device_may_be_its_own_work() {
    let device = Software::new(SoftwareConfig::default());
    let (lane, log) = (device.lease(), Log::default());
    let (go, gate) = channel::<()>();
    let owner = Arc::clone(&device);
    let last_owner = move || {
        gate.recv().unwrap();
        drop(owner);
    };
    device.enqueue(lane, Box::new(last_owner));
    log.write(&device, lane, "after");
    let end = told(&device, device.record(lane));
    drop(device);
    go.send(()).unwrap();
    assert_eq!(end.recv(), Ok(Ok(())));
    assert_eq!(log.read(), ["after"]);
}

#[test]
fn dropping_a_stepped_device_drops_what_is_enqueued() {
    let (device, held) = (stepped(0, 0), Arc::new(()));
    let lane = device.lease();
    let [work, then] = [Arc::clone(&held), Arc::clone(&held)];
    device.enqueue(lane, Box::new(move || panic!("{work:?} is not done")));
    device.when_fired(device.record(lane), Box::new(move |_| panic!("{then:?} is not called")));
    drop(device);
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn anybody_may_help_a_thread() {
    let (device, log) = (Software::new(SoftwareConfig::default()), Log::default());
    let lane = device.lease();
    ["a", "b", "c", "d"].into_iter().for_each(|name| log.write(&device, lane, name));
    let end = told(&device, device.record(lane));
    finish(&device);
    assert_eq!(end.recv(), Ok(Ok(())));
    assert_eq!(log.read(), ["a", "b", "c", "d"]);
}

/// The second lane's work is there before the first lane's ends.
#[test]
fn a_token_fires_before_the_work_of_another_lane_begins() {
    for order in [QueueOrder::RoundRobin].into_iter().chain((0..20).map(QueueOrder::Seeded)) {
        let device = Software::new(SoftwareConfig { order, ..SoftwareConfig::default() });
        let (first, second) = (device.lease(), device.lease());
        let ((begin, begun), (go, gate)) = (channel(), channel::<()>());
        let work = move || {
            begin.send(()).unwrap();
            gate.recv().unwrap();
        };
        device.enqueue(first, Box::new(work));
        let fired = told(&device, device.record(first));
        begun.recv().unwrap();
        let (send, seen) = channel();
        device.enqueue(second, Box::new(move || send.send(fired.try_recv()).unwrap()));
        go.send(()).unwrap();
        assert_eq!(seen.recv(), Ok(Ok(Ok(()))), "{order:?}");
    }
}

/// The thread is inside a work that ends only when the token of an idle lane has fired.
#[test]
fn a_token_of_an_idle_lane_fires_while_another_lane_works() {
    let device = Software::new(SoftwareConfig::default());
    let (busy, idle, broken) = (device.lease(), device.lease(), device.lease());
    device.enqueue(broken, Box::new(|| panic!("out of paper")));
    assert!(told(&device, device.record(broken)).recv().unwrap().is_err());
    let (go, gate) = channel::<()>();
    device.enqueue(busy, Box::new(move || gate.recv().unwrap()));
    let end = told(&device, device.record(busy));
    assert_eq!(told(&device, device.record(idle)).recv(), Ok(Ok(())));
    assert!(told(&device, device.record(broken)).recv().unwrap().is_err(), "poison stays");
    assert!(end.try_recv().is_err(), "the busy lane is not through");
    go.send(()).unwrap();
    assert_eq!(end.recv(), Ok(Ok(())));
}
