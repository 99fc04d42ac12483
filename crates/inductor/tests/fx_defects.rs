//! The smallest graphs on which the reference's overlap scheduler goes wrong, and cases that cannot be scheduled.

use phalanx_inductor::fx::{self, FxCase, FxCaseError, FxOutcome, FxPlan, FxValue, RunError};
use phalanx_inductor::mode::PassMode;
use serde_json::{Value as Json, json};

fn case(nodes: Vec<Json>, outputs: Json) -> FxCase {
    serde_json::from_value(json!({
        "params": {
            "max_in_flight_bytes": 5u64 << 30, "max_compute_pre_fetch": 200, "compute_overlap_multipler": 1.0,
            "max_coll_distance": 200, "max_memory_increase_bytes": 1 << 30, "max_off_bucket_bytes": 1 << 29,
            "prioritize_bucketing_during_scheduling": true
        },
        "graph_inputs": [
            {"name": "a", "size": 100, "releasable": true},
            {"name": "b", "size": 100, "releasable": true}
        ],
        "graph_outputs": outputs,
        "nodes": nodes
    }))
    .expect("the format of a case")
}

fn gemm(runtime_ns: f64, reads: Json) -> Json {
    json!({"kind": "compute", "runtime_ns": runtime_ns, "reads": reads, "size": 60, "gemm_like": true})
}

fn collective(op: &str, runtime_ns: f64, latency_ns: f64, reads: Json) -> Json {
    json!({"kind": "collective", "runtime_ns": runtime_ns, "reads": reads, "size": 100, "op": op, "pg": 0,
           "latency_ns": latency_ns})
}

fn wait(start: usize) -> Json {
    json!({"kind": "wait", "runtime_ns": 0.0, "reads": [start], "size": 100})
}

fn plan(case: &FxCase, mode: PassMode) -> FxPlan {
    match fx::run(case, mode).outcome {
        FxOutcome::Planned(plan) => *plan,
        FxOutcome::Failed { error } => panic!("{error}"),
    }
}

/// Defect E1: 8 hides 0 and has time left for 7, which needs the wait of 1, which forces the wait of 0 before 8.
#[test]
fn a_window_keeps_the_collectives_that_count_on_it() {
    let case = case(
        vec![
            collective("all_gather", 14851.0, 0.0, json!(["b"])),
            collective("all_gather", 3081.0, 3081.0, json!(["a"])),
            gemm(6655.0, json!(["a"])),
            wait(0),
            wait(1),
            collective("reduce_scatter", 899.0, 899.0, json!([3])),
            wait(5),
            collective("reduce_scatter", 10752.0, 0.0, json!([4])),
            gemm(8685.0, json!(["b"])),
            wait(7),
        ],
        json!([]),
    );
    let answer = fx::run(&case, PassMode::Reference);
    assert_eq!(answer.scheduled, [0, 2, 1, 3, 4, 7, 8, 5, 9, 6]);
    assert_eq!(answer.outcome, FxOutcome::Failed { error: RunError::CyclicExtraDeps });
    let json = serde_json::to_value(&answer).unwrap();
    assert_eq!(json, json!({"scheduled": answer.scheduled, "error": "cyclic_extra_deps"}));

    let plan = plan(&case, PassMode::Fixed);
    let at = |node| plan.order.iter().position(|&other| other == node).unwrap();
    assert_eq!((plan.collectives[0].node, plan.collectives[0].exposed_ns), (0, 0.0));
    assert_eq!(plan.collectives[0].hiding, [2, 8]);
    assert!(at(0) < at(2) && at(8) < at(3), "{:?}", plan.order);
}

/// Defect E5: a reduce-scatter in flight takes nothing off the latency of an all-reduce.
#[test]
fn only_collectives_of_one_kind_share_a_latency() {
    let nodes = |second: &str| {
        let starts = [("reduce_scatter", "a"), (second, "b")];
        let starts = starts.map(|(op, input)| collective(op, 100.0, 40.0, json!([input])));
        case(starts.into_iter().chain([wait(0), wait(1)]).collect(), json!([2, 3]))
    };
    let exposed = |second, mode| plan(&nodes(second), mode).collectives[1].exposed_ns.round();
    assert_eq!(exposed("all_reduce", PassMode::Reference), 60.0);
    assert_eq!(exposed("all_reduce", PassMode::Fixed), 100.0);
    assert_eq!(exposed("reduce_scatter", PassMode::Fixed), 60.0);
}

/// Defect E6: 200 bytes of inputs, and 60 more before one of them is released.
#[test]
fn both_peaks_are_levels_before_releases() {
    let case = case(vec![gemm(1.0, json!(["a"]))], json!([0]));
    let peaks = |mode| {
        let peaks = plan(&case, mode).peaks.unwrap();
        (peaks.original_peak, peaks.allowed_peak - (1 << 30), peaks.rescheduled_peak)
    };
    assert_eq!(peaks(PassMode::Reference), (200, 200, 260));
    assert_eq!(peaks(PassMode::Fixed), (260, 260, 260));
}

/// Defect E7: three of four collectives fit into a batch; the heap's array without the first is 1, 3, 2.
#[test]
fn a_batch_takes_collectives_in_the_original_order() {
    let starts = (0..4).map(|_| collective("all_reduce", 100.0, 0.0, json!(["b"])));
    let mut case = case(starts.chain((0..4).map(wait)).collect(), json!([4, 5, 6, 7]));
    case.params.max_off_bucket_bytes = Some(300);
    assert_eq!(fx::run(&case, PassMode::Reference).scheduled[..4], [0, 1, 3, 2]);
    assert_eq!(fx::run(&case, PassMode::Fixed).scheduled[..4], [0, 1, 2, 3]);
}

#[test]
fn without_waits_the_order_stays() {
    let case =
        case(vec![gemm(3.0, json!(["b"])), gemm(1.0, json!(["a"])), gemm(2.0, json!([0]))], json!([1]));
    let plan = plan(&case, PassMode::Reference);
    assert_eq!((plan.order, plan.makespan_ns, plan.wasted_compute_ns), (vec![0, 1, 2], 6.0, 0.0));
}

/// A case that is fine until `spoil` changes its collective, the wait of it, or the rest.
fn spoiled(spoil: impl FnOnce(&mut FxCase)) -> FxCaseError {
    let nodes = vec![collective("all_gather", 5.0, 1.0, json!(["a"])), wait(0), gemm(9.0, json!([1, "b"]))];
    let mut case = case(nodes, json!([2]));
    assert_eq!(case.check(), Ok(()));
    spoil(&mut case);
    let error = case.check().expect_err("the case is spoiled");
    let answer = serde_json::to_value(fx::run(&case, PassMode::Fixed)).expect("answers are JSON");
    assert_eq!(answer, json!({"scheduled": [], "error": error.to_string()}));
    error
}

#[test]
fn malformed_graphs_are_errors_that_name_node_and_field() {
    let message = spoiled(|case| case.nodes[2].reads[0] = FxValue::Node(2)).to_string();
    assert_eq!(message, "node 2: `reads` has value 2, but only the values 0 to 2 (excluded) exist before it");
    let name = || "c".to_string();
    assert_eq!(
        spoiled(|case| case.nodes[2].reads[1] = FxValue::Input(name())),
        FxCaseError::UnknownInput { node: 2, name: name() }
    );
    assert_eq!(
        spoiled(|case| case.graph_inputs[1].name = "a".to_string()),
        FxCaseError::DuplicateInput { name: "a".to_string() }
    );
    assert_eq!(
        spoiled(|case| case.graph_outputs.push(FxValue::Node(3))),
        FxCaseError::UnknownOutput { value: FxValue::Node(3), n_nodes: 3 }
    );
    let reads = || vec![FxValue::Input("a".to_string())];
    assert_eq!(
        spoiled(|case| case.nodes[1].reads = reads()),
        FxCaseError::NotACollective { node: 1, reads: reads() }
    );
}

#[test]
fn impossible_numbers_are_errors_that_name_node_and_field() {
    assert_eq!(
        spoiled(|case| case.nodes[2].runtime_ns = -1.0),
        FxCaseError::BadTime { node: 2, field: "runtime_ns", value: -1.0 }
    );
    let message = spoiled(|case| case.nodes[0].latency_ns = Some(f64::NAN)).to_string();
    assert_eq!(message, "node 0: `latency_ns` is NaN, but a time is finite and not negative");
    assert_eq!(spoiled(|case| case.nodes[0].pg = None), FxCaseError::MissingField { node: 0, field: "pg" });
    assert_eq!(
        spoiled(|case| case.params.overlap_multiplier = f64::INFINITY),
        FxCaseError::BadParam { field: "compute_overlap_multipler", value: f64::INFINITY }
    );
    assert_eq!(
        spoiled(|case| case.nodes[1].size = u64::MAX),
        FxCaseError::TooLarge { node: 1, bytes: u64::MAX }
    );
    let long = |runtime_ns: f64| gemm(runtime_ns, json!(["a"]));
    assert_eq!(case(vec![long(1e300), long(1e290)], json!([])).check(), Err(FxCaseError::TooLong));
}
