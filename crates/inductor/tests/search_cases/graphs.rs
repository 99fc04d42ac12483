//! Graphs of values with the order that the reference's graph-level scheduler makes of them.

use std::io::{BufRead, BufReader};

use flate2::read::GzDecoder;
use phalanx_inductor::fx;
use serde_json::Value;

/// One graph.
pub struct GraphCase {
    pub id: String,
    pub graph: fx::FxCase,
    /// The order of the reference.
    pub reference: Vec<usize>,
    /// What it takes.
    pub makespan: f64,
    pub exposed: f64,
    /// What the original order takes.
    pub initial_makespan: f64,
    /// The most bytes that the reference counts in its order, where memory is limited.
    pub peak: Option<u64>,
}

impl GraphCase {
    fn new(case: &Value) -> GraphCase {
        let expected = &case["expected"];
        let time = |key: &str| expected[key].as_f64().unwrap();
        let order = expected["order"].as_array().unwrap().iter();
        GraphCase {
            id: case["id"].as_str().unwrap().into(),
            graph: serde_json::from_value(case.clone()).unwrap(),
            reference: order.map(|node| node.as_u64().unwrap() as usize).collect(),
            makespan: time("makespan_ns"),
            exposed: time("exposed_sim_ns"),
            initial_makespan: time("initial_makespan_ns"),
            peak: expected["rescheduled_peak"].as_u64(),
        }
    }

    /// The shortest makespan of the reference's order and the original one.
    pub fn best(&self) -> f64 {
        self.makespan.min(self.initial_makespan)
    }

    /// Its exposed time.
    pub fn best_exposed(&self) -> f64 {
        self.exposed - (self.makespan - self.best())
    }
}

/// All graphs.
pub fn graphs() -> impl Iterator<Item = GraphCase> {
    let lines = BufReader::new(GzDecoder::new(&include_bytes!("../data/fx_overlap.jsonl.gz")[..])).lines();
    lines.map(|line| GraphCase::new(&serde_json::from_str::<Value>(&line.unwrap()).unwrap()))
}
