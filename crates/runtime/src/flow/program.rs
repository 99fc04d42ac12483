//! A program as a flow: its lanes as processors, its waits as edges.

use phalanx_program::{ARRIVE, Id, Program, SEND, Wait};

use super::{Builder, Direct, Flow, Mode, OpId, Task, TaskKind};

/// The flow of a program's runs, at most `depth` of them at a time. Operation i is the i-th of
/// [`Program::operations`]: [`SEND`]s and [`ARRIVE`]s are remote and call function 1, all others are non-blocking and
/// call function 0.
///
/// A lane's operations are a chain, within a run and from each run to the next. With waits and carried waits these
/// are the orders that the program's verifier works with, so runs that overlap are as free of races as the program.
pub fn of_program(program: &Program, depth: u32) -> Flow {
    let mut flow = Builder::new(program.name(), program.lanes().len() as u32);
    flow.mode(Mode::Pipelined { depth });
    for (processor, lane) in program.lanes().iter().enumerate() {
        for operation in program.operations_of(lane) {
            let name = program.describe(operation);
            let processor = processor as u32;
            match program.kernel(operation) {
                SEND | ARRIVE => flow.remote(Direct { function: 1, name: &name, args: &[] }),
                _ => flow.task(Task {
                    processor,
                    function: 0,
                    kind: TaskKind::NonBlocking,
                    name: &name,
                    args: &[],
                }),
            };
        }
    }
    let op = |wait: Wait| OpId::from_index(program.index_of(wait));
    for (number, lane) in program.lanes().iter().enumerate() {
        let at = |position| op(Wait { lane: number as u32, position });
        for (position, operation) in (0..).zip(program.operations_of(lane)) {
            if position > 0 {
                flow.edge(at(position - 1), at(position));
            }
            program.waits(operation).iter().for_each(|&wait| flow.edge(op(wait), at(position)));
            program.carried(operation).iter().for_each(|&wait| flow.carried(op(wait), at(position)));
        }
        if let Some(last) = (lane.operations.end - lane.operations.start).checked_sub(1) {
            flow.carried(at(last), at(0));
        }
    }
    flow.finish().expect("a verified program has no circle")
}
