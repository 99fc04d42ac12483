//! Which step and which segment an operation becomes.

use crate::flow::builder::Builder;
use crate::flow::compile::NONE;
use crate::flow::compile::fuse::Chains;
use crate::flow::{DIRECT, Lists, OpId, Segment, Step};

/// Steps and segments, whose arrivals are not counted yet, and where each operation is.
pub(super) struct Places {
    pub steps: Vec<Step>,
    pub segments: Vec<Segment>,
    /// By processor, and one more for the direct ones: its segments.
    pub owned: Vec<(u32, u32)>,
    /// By operation: its step.
    pub step_of: Vec<u32>,
    /// By operation: its segment.
    pub segment_of: Vec<u32>,
}

impl Places {
    pub fn new(builder: &Builder, chains: &Chains) -> Places {
        let n_ops = builder.ops.len();
        let owner = |head: u32| builder.ops[head as usize].processor.unwrap_or(builder.processors);
        let heads: Vec<_> = chains.heads.iter().map(|&head| (owner(head), head)).collect();
        let by_owner = Lists::group(builder.processors as usize + 1, &heads);
        let mut places = Places {
            steps: Vec::with_capacity(n_ops),
            segments: Vec::with_capacity(heads.len()),
            owned: Vec::with_capacity(builder.processors as usize + 1),
            step_of: vec![NONE; n_ops],
            segment_of: vec![NONE; n_ops],
        };
        for owner in 0..=builder.processors {
            let first = places.segments.len() as u32;
            by_owner.of(owner).iter().for_each(|&head| places.push(builder, chains, head));
            places.owned.push((first, places.segments.len() as u32));
        }
        places
    }

    /// Adds the segment of the chain that starts with `head`.
    fn push(&mut self, builder: &Builder, chains: &Chains, head: u32) {
        let first = self.steps.len() as u32;
        let mut byte = self.steps.last().map_or(0, |step| step.args.1);
        let mut at = head;
        while at != NONE {
            let op = &builder.ops[at as usize];
            let args = (byte, byte + (op.args.1 - op.args.0) as u32);
            self.step_of[at as usize] = self.steps.len() as u32;
            self.segment_of[at as usize] = self.segments.len() as u32;
            self.steps.push(Step { op: OpId(at), function: op.function, kind: op.kind, args });
            byte = args.1;
            at = chains.next[at as usize];
        }
        let processor = builder.ops[head as usize].processor.unwrap_or(DIRECT);
        let end = self.steps.len() as u32;
        let private = processor != DIRECT;
        self.segments.push(Segment { first, end, processor, fan_in: 0, carried_in: 0, private });
    }

    /// The operation that a segment starts with.
    pub fn head(&self, segment: u32) -> u32 {
        self.steps[self.segments[segment as usize].first as usize].op.0
    }

    /// The step that a segment ends with.
    pub fn last_step(&self, segment: u32) -> u32 {
        self.segments[segment as usize].end - 1
    }
}
