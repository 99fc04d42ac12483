use super::*;

const BENCH: TasksBench = TasksBench { processors: 2, repeat: 49 };
const SHAPE: PatternShape = PatternShape { pattern: Pattern::Stencil1d, width: 8, steps: 1000 };

fn spread_of(median: f64) -> Spread {
    Spread { median, best: median / 2.0 }
}

fn graph() -> GraphResult {
    GraphResult {
        replay: ModeCost { empty_ns: spread_of(40.0), metg50_us: Some(0.017), metg75_us: Some(0.05) },
        immediate: ModeCost { empty_ns: spread_of(300.0), metg50_us: Some(1.5), metg75_us: None },
    }
}

#[test]
fn graphs_have_a_row_under_their_head() {
    let expected = "\
1000 steps, 2.50 ns an iteration; medians of up to 49 runs (best in brackets), METG in us
                                                                      replayed                          spawned one by one
pattern          width  processors   ns per empty task  METG(50 %)  METG(75 %)   ns per empty task  METG(50 %)  METG(75 %)
stencil_1d           8           2         40.0 (20.0)       0.017       0.050       300.0 (150.0)       1.500           -";
    let row = graph_row(&BENCH, SHAPE, &graph());
    assert_eq!(format!("{}\n{row}", head(1000, 49, 2.5e-9)), expected);
}

#[test]
fn programs_get_a_graph_with_both_modes() {
    let expected = json!({
        "pattern": "stencil_1d", "width": 8, "steps": 1000, "processors": 2,
        "replay": { "empty_ns": { "median": 40.0, "best": 20.0 }, "metg50_us": 0.017, "metg75_us": 0.05 },
        "immediate": { "empty_ns": { "median": 300.0, "best": 150.0 }, "metg50_us": 1.5, "metg75_us": null },
    });
    assert_eq!(graph_json(&BENCH, SHAPE, &graph()), expected);
}

#[test]
fn parts_have_a_row_each_with_their_unit() {
    let parts = TaskParts {
        chain_ns: spread_of(18.0),
        fused_chain_ns: spread_of(3.0),
        empty_graph_us: spread_of(0.4),
        one_task_graph_us: spread_of(0.6),
        spawn_ns: spread_of(250.0),
        event_ns: spread_of(30.0),
    };
    let expected = "
on 2 processors:
a task of a chain of 1024 replayed in a row             18.0 (9.0) ns
the same, chains fused                                   3.0 (1.5) ns
launch of an empty graph until its end                   0.4 (0.2) us
launch of a graph of one task until its end              0.6 (0.3) us
a spawned task that waits for nothing                250.0 (125.0) ns
an event: create, trigger, look                        30.0 (15.0) ns";
    assert_eq!(parts_text(&BENCH, &parts), expected);
}

#[test]
fn flows_have_a_row_under_their_head() {
    let (operations, segments) = (1000, 17);
    let result = FlowResult {
        flow: FlowKind::Stencil,
        operations,
        segments,
        ms: spread_of(0.5),
        ns_per_operation: 500.0,
    };
    let expected = "\
flow        operations    segments             ms (best)   ns an operation
stencil           1000          17         0.500 (0.250)             500.0";
    assert_eq!(format!("{}\n{}", flow_head(), flow_row(&result)), expected);
    let expected = json!({
        "flow": "stencil", "operations": 1000, "segments": 17, "ms": { "median": 0.5, "best": 0.25 },
        "ns_per_operation": 500.0,
    });
    assert_eq!(json!(result), expected);
}
