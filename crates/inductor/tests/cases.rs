//! Lines that are no cases: every message names the field.
#![allow(clippy::unwrap_used)]

use phalanx_inductor::cases::{Keys, answer};
use phalanx_inductor::mode::PassMode;
use serde_json::{Value, json};

fn list() -> Value {
    json!({
        "id": 7, "type": "schedule", "graph_outputs": ["c"],
        "graph_inputs": [{ "name": "x", "size": 4, "freeable": true }],
        "nodes": [
            { "name": "op0", "kind": "compute", "runtime_ns": 1, "reads": ["x"], "outputs": [{ "buf": "a", "size": 4 }] },
            { "name": "g", "kind": "group", "runtime_ns": 2, "members": [
                { "name": "op1", "kind": "collective", "runtime_ns": 1.5, "reads": ["a"], "outputs": [{ "buf": "b", "size": 4 }] },
                { "name": "op2", "kind": "wait", "runtime_ns": 0, "reads": ["b"],
                  "outputs": [{ "buf": "c", "size": 0, "mutates": "b" }] } ] } ],
    })
}

fn error(case: &Value) -> String {
    answer(&serde_json::to_vec(case).unwrap(), &Keys::default(), PassMode::Fixed).unwrap_err().to_string()
}

/// The message for the list with one value replaced.
fn with(pointer: &str, value: Value) -> String {
    let mut case = list();
    *case.pointer_mut(pointer).unwrap() = value;
    error(&case)
}

#[test]
fn a_wrong_field_is_named_by_its_path() {
    for (pointer, value, parts) in [
        ("/nodes/0/runtime_ns", json!("fast"), ["nodes[0].runtime_ns: ", "fast"]),
        ("/nodes/0/runtime_ns", json!(-1), ["nodes[0].runtime_ns: ", "-1"]),
        ("/nodes/0/runtime_ns", json!(1.7e308), ["nodes: ", "1e300"]),
        ("/nodes/0/kind", json!("magic"), ["nodes[0].kind: ", "magic"]),
        ("/nodes/0/reads/0", json!("b"), ["nodes[0].reads[0]: ", "`b`"]),
        ("/nodes/1/members", json!([]), ["nodes[1].members: ", "no members"]),
        ("/nodes/1/members/0/kind", json!("group"), ["nodes[1].members: ", "a group as member"]),
        ("/nodes/1/members/1/reads", json!("b"), ["nodes[1].members[1].reads: ", "expected a sequence"]),
        (
            "/nodes/1/members/1/outputs/0/mutates",
            json!("z"),
            ["nodes[1].members[1].outputs[0].mutates: ", "`z`"],
        ),
        ("/nodes/1/members/0/outputs/0/buf", json!("a"), ["nodes[1].members[0].outputs[0].buf: ", "twice"]),
        ("/graph_inputs/0/size", json!(-4), ["graph_inputs[0].size: ", "-4"]),
        ("/graph_inputs/0/size", json!(u64::MAX), ["nodes: ", "sizes"]),
        ("/graph_outputs/0", json!("z"), ["graph_outputs[0]: ", "`z`"]),
        ("/nodes/0", json!({ "name": "op0" }), ["nodes[0]: ", "missing field `kind`"]),
        ("/type", json!("magic"), ["type: `magic` is unknown", "schedule, align, fsdp_ordering"]),
        ("/type", json!(null), ["type: it is missing", "`collective`"]),
    ] {
        let message = with(pointer, value);
        assert!(message.starts_with(parts[0]) && message.contains(parts[1]), "{pointer}: {message}");
    }
    let answer = answer(&serde_json::to_vec(&list()).unwrap(), &Keys::default(), PassMode::Fixed).unwrap();
    assert_eq!((&answer["id"], &answer["sink_waits"]["order"]), (&json!(7), &json!([0, 1])));
}

#[test]
fn other_kinds_name_their_fields_too() {
    let align = |rank: usize, rows: Value| {
        error(&json!({ "type": "align", "rank": rank, "rank_runtimes_ns": rows, "mm_like": [true] }))
    };
    assert!(align(1, json!([[1.0]])).starts_with("rank: rank 1 is not among the 1"));
    assert!(
        align(0, json!([[1.0], []])).starts_with("rank_runtimes_ns[1]: rank 1 gives 0 estimates where 1")
    );
    assert!(align(0, json!([[-3.0]])).starts_with("rank_runtimes_ns[0][0]: rank 0 estimates -3 ns"));
    let cost = |key: &str, value: Value| {
        let mut case = json!({ "collective": "all_reduce", "bytes": 8, "group_size": 8 });
        case[key] = value;
        error(&case)
    };
    for (key, value, part) in [
        ("collective", json!("broadcast"), "collective: `broadcast`"),
        ("group_size", json!(0), "group_size: 0 is out of range"),
        ("intra_node_bw", json!(0), "intra_node_bw: 0 is out of range"),
        ("gpu", json!("abacus"), "gpu: unknown variant `abacus`"),
        ("version", json!("9.9"), "version: unknown variant `9.9`"),
        ("bytes", json!("many"), "bytes: invalid type"),
    ] {
        assert!(cost(key, value).starts_with(part), "{key}: {part}");
    }
    for (line, part) in
        [(&b"{"[..], "the case: EOF"), (b"{} {}", "the case: trailing"), (b"\"\xff\"", "the case: ")]
    {
        let message = answer(line, &Keys::default(), PassMode::Fixed).unwrap_err().to_string();
        assert!(message.starts_with(part) && message.contains("(column "), "{message}");
    }
}

#[test]
fn only_named_keys_are_answered() {
    let keys = |names: &[&str]| Keys::named(&names.iter().map(|&name| name.into()).collect::<Vec<_>>());
    let found = |names: &[&str]| {
        let answer =
            answer(&serde_json::to_vec(&list()).unwrap(), &keys(names).unwrap(), PassMode::Fixed).unwrap();
        answer.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(
        found(&["sink_waits", "reorder_for_peak_memory"]),
        ["id", "reorder_for_peak_memory", "sink_waits"]
    );
    assert_eq!(found(&["ms"]), ["id"]);
    assert_eq!(found(&["all"]), found(&[]));
    assert!(!found(&[]).contains(&"reorder_for_peak_memory".to_string()), "no case expects it");
    let error = keys(&["sink_waits", "magic"]).unwrap_err().to_string();
    assert!(error.starts_with("`magic` is unknown; there are all, memory, initial, "), "{error}");
}
