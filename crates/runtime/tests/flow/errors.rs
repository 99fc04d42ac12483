//! Every refusal, with its full message.

use phalanx_ir::Id;
use phalanx_runtime::flow::{Builder, Direct, InputId, Mode, OpId, Patch, Task, TaskKind};

use crate::declared::op;

fn named(names: &[&str]) -> (Builder, Vec<OpId>) {
    let mut builder = Builder::new("f", 2);
    let ops =
        names.iter().map(|name| builder.task(Task { name, args: &[0; 12], ..Task::default() })).collect();
    (builder, ops)
}

fn messages(builder: Builder) -> Vec<String> {
    let errors = builder.finish().expect_err("this flow is refused");
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn a_cycle_is_named_whole_and_short() {
    // Stuck: the long way round b c d e, the short one d e, and f behind both.
    let (mut builder, t) = named(&["a", "b", "c", "d", "e", "f"]);
    for (from, to) in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 1), (4, 3), (4, 5)] {
        builder.edge(t[from], t[to]);
    }
    assert_eq!(
        messages(builder),
        ["operations wait for each other in a circle: op4 `e` -> op3 `d` -> op4 `e`; \
          remove one of these edges or make it a carried one"]
    );
}

#[test]
fn an_operation_after_itself_is_a_cycle() {
    let (mut builder, t) = named(&["a"]);
    builder.edge(t[0], t[0]);
    assert_eq!(
        messages(builder),
        ["operations wait for each other in a circle: op0 `a` -> op0 `a`; \
          remove one of these edges or make it a carried one"]
    );
}

#[test]
fn ids_of_another_builder_are_refused_everywhere() {
    let (mut builder, t) = named(&["a"]);
    let input = builder.input("go");
    builder.mode(Mode::Pipelined { depth: 1 });
    builder.edge(t[0], op(7));
    builder.carried(op(8), t[0]);
    builder.gate(input, op(9));
    builder.gate(InputId::from_index(3), t[0]);
    builder.post("done", &[t[0], op(10)]);
    builder.interpolate(op(11), 0, 0..0, Patch::Overwrite);
    let own = |kind: &str, count: usize, id: &str| {
        format!("flow `f` has {count} {kind} and no {id}; use ids that its own builder gave")
    };
    assert_eq!(
        messages(builder),
        [
            format!("edge op0 `a` -> op7: {}", own("operations", 1, "op7")),
            format!("carried edge op8 -> op0 `a`: {}", own("operations", 1, "op8")),
            format!("gate of in0 at op9: {}", own("operations", 1, "op9")),
            format!("gate of in3 at op0 `a`: {}", own("inputs", 1, "in3")),
            format!("post0 `done`: {}", own("operations", 1, "op10")),
            format!("interpolation into op11: {}", own("operations", 1, "op11")),
        ]
    );
}

#[test]
fn a_processor_must_be_there() {
    let (mut builder, _) = named(&["a"]);
    builder.task(Task { processor: 2, name: "b", ..Task::default() });
    builder.direct(Direct { name: "nowhere", ..Direct::default() });
    builder.task(Task { processor: u32::MAX, name: "c", ..Task::default() });
    let message = |op: &str, processor: u32| {
        format!(
            "{op} is on processor {processor}, but flow `f` has 2, counted from 0; \
             place it on one of them or start the flow with more"
        )
    };
    assert_eq!(messages(builder), [message("op1 `b`", 2), message("op3 `c`", u32::MAX)]);
}

#[test]
fn a_remote_operation_has_no_processor() {
    let (mut builder, _) = named(&["a"]);
    builder.task(Task { processor: 1, kind: TaskKind::Remote, name: "b", ..Task::default() });
    builder.remote(Direct { name: "nowhere", ..Direct::default() });
    let message = "op1 `b` is Remote and on processor 1, where no thread waits for it; add it with `remote`";
    assert_eq!(messages(builder), [message]);
}

#[test]
fn interpolations_stay_within_both_arguments() {
    let (mut builder, t) = named(&["a"]);
    builder.run_args(16);
    builder.interpolate(t[0], 0, 8..17, Patch::Overwrite);
    #[expect(clippy::reversed_empty_ranges, reason = "a caller can compute one")]
    builder.interpolate(t[0], 0, 8..4, Patch::Overwrite);
    builder.interpolate(t[0], 5, 0..8, Patch::AddI64);
    builder.interpolate(t[0], u32::MAX, 0..1, Patch::Overwrite);
    builder.interpolate(t[0], 12, 16..16, Patch::Overwrite);
    builder.interpolate(t[0], 4, 8..16, Patch::AddF64);
    let run = "of the run's arguments, which have 16; shift it or declare more with `run_args`";
    let own = "of its arguments, which have 12; shift it or give the operation longer arguments";
    assert_eq!(
        messages(builder),
        [
            format!("interpolation into op0 `a` reads bytes 8..17 {run}"),
            format!("interpolation into op0 `a` reads bytes 8..4 {run}"),
            format!("interpolation into op0 `a` writes bytes 5..13 {own}"),
            format!("interpolation into op0 `a` writes bytes 4294967295..4294967296 {own}"),
        ]
    );
}

#[test]
fn what_is_added_is_one_number() {
    let (mut builder, t) = named(&["a"]);
    builder.run_args(16);
    builder.interpolate(t[0], 0, 0..4, Patch::AddI64);
    builder.interpolate(t[0], 0, 0..0, Patch::AddF64);
    builder.interpolate(t[0], 0, 0..4, Patch::Overwrite);
    let message = |patch: &str, bytes: u32| {
        format!(
            "interpolation into op0 `a` does {patch} with {bytes} bytes; name exactly the 8 of one number"
        )
    };
    assert_eq!(messages(builder), [message("AddI64", 4), message("AddF64", 0)]);
}

#[test]
fn carried_edges_need_a_pipelined_flow() {
    for mode in [Mode::OneShot, Mode::Ordered, Mode::Serializable, Mode::Concurrent] {
        let (mut builder, t) = named(&["a", "b"]);
        builder.mode(mode);
        builder.carried(t[1], t[0]);
        let expected = format!(
            "carried edge op1 `b` -> op0 `a` in a flow of mode {mode:?}; \
             only Pipelined ones have them: set the mode or drop it"
        );
        assert_eq!(messages(builder), [expected]);
    }
}

#[test]
fn a_pipeline_has_a_depth() {
    let (mut builder, _) = named(&["a"]);
    builder.mode(Mode::Pipelined { depth: 0 });
    assert_eq!(
        messages(builder),
        ["flow `f` is Pipelined with depth 0 and could never run; give it a depth of at least 1"]
    );
}

#[test]
fn a_post_has_an_operation() {
    let (mut builder, _) = named(&["a"]);
    builder.post("done", &[]);
    assert_eq!(
        messages(builder),
        ["post0 `done` has 0 operations and nothing would trigger it; name at least 1"]
    );
}

#[test]
fn functions_can_be_counted() {
    let (mut builder, _) = named(&["a"]);
    builder.task(Task { function: u32::MAX, ..Task::default() });
    assert_eq!(
        messages(builder),
        [
            "flow `f` has 4294967296 functions, at most 4294967295 can be numbered; split it into several flows"
        ]
    );
}

#[test]
fn all_errors_come_together() {
    let (mut builder, t) = named(&["a", "b"]);
    builder.edge(t[0], op(5));
    builder.mode(Mode::Pipelined { depth: 0 });
    builder.edge(t[0], t[1]);
    builder.edge(t[1], t[0]);
    let messages = messages(builder);
    assert_eq!(messages.len(), 3);
    assert!(messages[0].starts_with("edge op0 `a` -> op5"));
    assert!(messages[1].contains("depth 0"));
    assert!(messages[2].contains("op0 `a` -> op1 `b` -> op0 `a`"));
}
