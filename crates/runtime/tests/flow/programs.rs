//! The flow of a program that is a part of a job.

use phalanx_program::{Placement, Program};
use phalanx_runtime::flow::{Id, TaskKind, of_program};

/// Two devices. The second one copies columns of a tile of the first, and sums a tile of its own with one of the first.
const COPY_AND_SUM: &str = "program @pair {
  lane dev0 arena 256
    run work [] -> 0+64 scratch 0+0 of \"a\"
    run work [] -> 64+64 scratch 0+0 of \"b\"
    run work [] -> 0+64 scratch 0+0 of \"c\" after 1/1
  lane dev1 arena 512
    run work [] -> 0+64 scratch 0+0 of \"d\"
    run receive [0 at 0/16 = 0 at 8/16 run 8 x 4, 1 at 0 = 1 at 0 + 2 at 0 run 64] 0/0+64, 0/64+64, 0+64 -> 64+64, 128+64 scratch 256+64 of \"e\" after 0/1
    run work [] 64+64, 128+64 -> 0+64 scratch 0+0 of \"f\"
}";

#[test]
fn messages_are_remote_operations_of_the_flow() {
    let whole: Program = COPY_AND_SUM.parse().unwrap();
    let part = whole.slice(&Placement { ranks: 2, of_device: vec![0, 1] }, 1).unwrap();
    let flow = of_program(&part, 2);
    let steps: Vec<_> = flow.steps().iter().map(|step| (step.op.index(), step.function, step.kind)).collect();
    let (nonblocking, remote) = (TaskKind::NonBlocking, TaskKind::Remote);
    assert_eq!(steps, [(0, 0, nonblocking), (1, 0, nonblocking), (2, 0, nonblocking), (3, 1, remote)]);
    assert_eq!((flow.processors(), flow.owned(1)), (2, 2..2), "the in-lane has nothing for a worker to do");
    let arrival = flow.owned(2).start;
    assert_eq!(flow.late().of(3), [1], "what is left of the receive starts when all has arrived");
    assert_eq!(
        flow.segments()[arrival as usize].carried_in,
        2,
        "after itself, and after what has used the bytes"
    );
}
