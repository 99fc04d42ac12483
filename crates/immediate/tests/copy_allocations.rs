//! Replaying a graph of copies moves what it is to move and allocates nothing.
//!
//! A binary of its own, and one test: the allocator counts for the whole process.
#![allow(clippy::unwrap_used)]

use phalanx_immediate::{CopyKind, Element, Instance, Layout, Memories, Rect, SharedPlan};
use phalanx_runtime::flow::{Builder, Task, TaskKind};
use phalanx_runtime::{Config, Event, Function, Graph, Launch, Runtime};
use phalanx_testkit::allocations::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LINKS: usize = 16;

/// A chain of buffers, each copied from the one before, on two processors in turns.
struct Chain {
    runtime: Runtime,
    graph: Graph,
    first: Instance,
    last: Instance,
    /// What the first buffer holds.
    expected: Vec<u8>,
}

impl Chain {
    fn new(bytes: usize) -> Chain {
        let runtime = Runtime::new(Config::new(2, 0));
        let memories = Memories::of(&runtime);
        let memory = memories.memory("host", ((LINKS + 1) * bytes) as u64);
        let rect = Rect::sized(&[0], &[bytes as u64]).unwrap();
        let layout = Layout::row_major(Element::Bytes(1), rect).unwrap();
        let buffers: Vec<Instance> =
            (0..=LINKS).map(|_| memory.create(layout.clone(), Event::NONE).0).collect();
        let body = |pair: &[Instance]| -> Function {
            SharedPlan::new(memories.plan(CopyKind::Copy(pair[0].clone()), rect, &pair[1]).unwrap())
                .function()
        };
        let functions: Vec<Function> = buffers.windows(2).map(body).collect();
        let mut builder = Builder::new("copies", 2);
        let copy = |link: u32| Task {
            processor: link % 2,
            function: link,
            kind: TaskKind::NonBlocking,
            name: "copy",
            ..Task::default()
        };
        let ops: Vec<_> = (0..LINKS as u32).map(|link| builder.task(copy(link))).collect();
        ops.windows(2).for_each(|pair| builder.edge(pair[0], pair[1]));
        let processors: Vec<_> = runtime.processors().collect();
        let graph = runtime.graph(builder.finish().unwrap(), functions, &processors).unwrap();
        let [first, last] = [&buffers[0], &buffers[LINKS]].map(Instance::clone);
        let expected = vec![0; bytes];
        Chain { runtime, graph, first, last, expected }
    }

    /// Sends something new through the chain.
    fn replay(&mut self, round: usize) {
        let noise = |at: usize| (at ^ round).wrapping_mul(0x9e37_79b9) as u8;
        let start = round % 61;
        self.expected.iter_mut().enumerate().skip(start).step_by(61).for_each(|(at, byte)| *byte = noise(at));
        self.first.write(|bytes| bytes.copy_from_slice(&self.expected)).unwrap();
        let run = self.graph.launch(Launch::default()).unwrap();
        assert_eq!(self.runtime.wait(run.finish), Ok(()));
        let same = self.last.read(|bytes| *bytes == self.expected).unwrap();
        assert!(same, "round {round} with {} bytes", self.expected.len());
    }
}

#[test]
fn chains_of_copies_arrive_and_allocate_nothing() {
    for bytes in [256, 16 << 10, 1 << 20] {
        let mut chain = Chain::new(bytes);
        (0..100).for_each(|round| chain.replay(round));
        let before = allocations::count();
        (100..1100).for_each(|round| chain.replay(round));
        assert_eq!(allocations::count() - before, 0, "allocations of 1000 replays with {bytes} bytes");
        assert!(before > 0, "the allocator counts");
    }
}
