//! How long it takes to check a flow and freeze it, which is done once for each graph.

use std::time::Instant;

use phalanx_kernels::random;
use phalanx_runtime::flow::{Builder, OpId};
use serde::Serialize;

use super::ours::{TasksError, nonblocking};
use super::timing::Spread;

/// How often a flow is frozen.
const ROUNDS: usize = 5;
/// Processors of all flows.
const PROCESSORS: usize = 4;
/// Operations in a row of the stencil.
const WIDTH: usize = 100;

/// Which operations follow which in a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowKind {
    /// Each operation follows the one before, all on one processor.
    Chain,
    /// Rows of 100 operations; each follows its own column and both neighbors in the row before.
    Stencil,
    /// Each operation follows three of those before it, picked at random.
    Random,
}

/// What a flow took.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FlowResult {
    /// Which operations follow which.
    pub flow: FlowKind,
    /// How many operations.
    pub operations: usize,
    /// Segments that they were laid out as.
    pub segments: usize,
    /// Milliseconds in all.
    pub ms: Spread,
    /// Nanoseconds per operation, by the median.
    pub ns_per_operation: f64,
}

impl FlowKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Chain, Self::Stencil, Self::Random];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chain => "chain",
            Self::Stencil => "stencil",
            Self::Random => "random",
        }
    }

    fn processor(self, op: usize) -> u32 {
        (match self {
            Self::Chain => 0,
            Self::Stencil => op % WIDTH * PROCESSORS / WIDTH,
            Self::Random => op % PROCESSORS,
        }) as u32
    }

    /// The operations that operation number `op` follows.
    fn follows(self, op: usize) -> Vec<usize> {
        match self {
            Self::Chain => op.checked_sub(1).into_iter().collect(),
            Self::Stencil => match (op.checked_sub(WIDTH), op % WIDTH) {
                (None, _) => Vec::new(),
                (Some(above), 0) => vec![above, above + 1],
                (Some(above), column) if column == WIDTH - 1 => vec![above - 1, above],
                (Some(above), _) => vec![above - 1, above, above + 1],
            },
            Self::Random if op == 0 => Vec::new(),
            Self::Random => {
                (0..3).map(|pick| (random::derive(0, op as u64, pick) % op as u64) as usize).collect()
            }
        }
    }

    fn builder(self, operations: usize) -> Builder {
        let mut builder = Builder::new(self.name(), PROCESSORS as u32);
        let mut ops: Vec<OpId> = Vec::with_capacity(operations);
        for op in 0..operations {
            let added = builder.task(nonblocking(self.processor(op)));
            self.follows(op).into_iter().for_each(|before| builder.edge(ops[before], added));
            ops.push(added);
        }
        builder
    }
}

/// Freezes a flow of the given size, several times.
pub fn freeze(flow: FlowKind, operations: usize) -> Result<FlowResult, TasksError> {
    let builder = flow.builder(operations);
    let (mut seconds, mut segments) = (Vec::new(), 0);
    for _ in 0..ROUNDS {
        let builder = builder.clone();
        let start = Instant::now();
        let frozen = builder.finish()?;
        seconds.push(start.elapsed().as_secs_f64());
        segments = frozen.segments().len();
    }
    let ms = Spread::of(&seconds, 1e3);
    Ok(FlowResult { flow, operations, segments, ms, ns_per_operation: ms.median * 1e6 / operations as f64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_follow_those_before() {
        assert_eq!([0, 1, 7].map(|op| FlowKind::Chain.follows(op)), [vec![], vec![0], vec![6]]);
        let stencil = [99, 100, 150, 199].map(|op| FlowKind::Stencil.follows(op));
        assert_eq!(stencil, [vec![], vec![0, 1], vec![49, 50, 51], vec![98, 99]]);
        for op in 1..1000 {
            let follows = FlowKind::Random.follows(op);
            assert!(follows.len() == 3 && follows.iter().all(|&before| before < op), "{op}: {follows:?}");
        }
    }

    #[test]
    fn flows_of_all_kinds_freeze() {
        let frozen = FlowKind::ALL.map(|flow| freeze(flow, 1000).unwrap());
        assert_eq!(frozen.map(|result| result.operations), [1000; 3]);
        // A chain becomes few segments; a stencil has no chains.
        assert!(frozen[0].segments < 100, "{:?}", frozen[0]);
        assert_eq!(frozen[1].segments, 1000);
    }
}
