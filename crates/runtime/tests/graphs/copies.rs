//! Graphs that only copy: a chain of buffers, each filled from the one before.

use std::sync::{Arc, Mutex};

use phalanx_ir::Id;
use phalanx_runtime::flow::Builder;
use phalanx_testkit::Rng;

use crate::{bind, function, nonblocking, replay, runtime};

const LINKS: usize = 16;

fn check_chain(bytes: usize, replays: u64) {
    let runtime = runtime(2);
    let buffers: Arc<[Mutex<Vec<u8>>]> = (0..=LINKS).map(|_| Mutex::new(vec![0; bytes])).collect();
    let mut builder = Builder::new("copies", 2);
    let ops: Vec<_> = (0..LINKS).map(|link| nonblocking(&mut builder, link as u32 % 2, 0)).collect();
    ops.windows(2).for_each(|pair| builder.edge(pair[0], pair[1]));
    let shared = Arc::clone(&buffers);
    // No thread ever waits for a lock that the graph orders.
    let copy = function(move |context| {
        let link = context.op().expect("it runs in a graph").index();
        let from = shared[link].try_lock().expect("the copy before is complete");
        shared[link + 1].try_lock().expect("the copy behind has not begun").copy_from_slice(&from);
    });
    let graph = bind(&runtime, builder.finish().expect("a chain"), vec![copy]);
    let mut random = Rng::new(bytes as u64);
    for round in 0..replays {
        let mut first = buffers[0].lock().expect("no thread panics with it");
        first.iter_mut().step_by(61).for_each(|byte| *byte = random.bits() as u8);
        let expected = first.clone();
        drop(first);
        assert_eq!(replay(&runtime, &graph), Ok(()));
        let last = buffers[LINKS].lock().expect("no thread panics with it");
        assert!(*last == expected, "round {round} with {bytes} bytes");
    }
}

#[test]
fn small_copies_arrive() {
    check_chain(256, 1000);
}

#[test]
fn middle_copies_arrive() {
    check_chain(16 << 10, 1000);
}

#[test]
fn large_copies_arrive() {
    check_chain(1 << 20, 50);
}
