//! Lists of nodes with the orders that the reference's passes make of them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};

use flate2::read::GzDecoder;
use phalanx_inductor::cases::ListCase;
use phalanx_inductor::model::{LaunchGraph, NodeId};
use phalanx_ir::Id;
use serde_json::Value;

/// How much a time may differ because sums are rounded.
pub const ROUNDING: f64 = 1.0 + 1e-9;

/// One list.
pub struct Case {
    pub id: String,
    pub graph: LaunchGraph,
    /// The initial order and those of the reference.
    pub references: Vec<Reference>,
    /// The order of the passes that the reference recommends.
    pub recommended: Reference,
}

/// An order of the reference.
pub struct Reference {
    pub order: Vec<NodeId>,
    pub makespan: f64,
    pub exposed: f64,
    pub peak: i64,
}

impl Case {
    fn new(case: &Value) -> Case {
        let list: ListCase = serde_json::from_value(case.clone()).unwrap();
        let graph = list.graph().unwrap();
        let expected = &case["expected"];
        let passes = [
            "sink_waits",
            "raise_comms",
            "reorder_compute_for_overlap",
            "reorder_communication_preserving_peak_memory",
            "sink_waits_iterative",
        ];
        let passes = passes.into_iter().map(|name| &expected[name]);
        let pipelines = expected["pipelines"].as_object().unwrap().values();
        let newer = [&case["expected_newer"]["simple_overlap"]];
        let found = passes.chain(pipelines).chain(newer).filter(|found| !found.is_null());
        let order = |found: &Value| -> Vec<NodeId> {
            let nodes = found["order"].as_array().unwrap().iter();
            nodes.map(|node| NodeId::from_index(node.as_u64().unwrap() as usize)).collect()
        };
        let reference = |order: Vec<NodeId>| {
            let (times, peak) = (graph.simulate(&order), graph.memory(&order).peak);
            let (makespan, exposed) = (times.makespan, times.exposed);
            Reference { order, makespan, exposed, peak }
        };
        let references = [graph.order()].into_iter().chain(found.map(order)).map(reference).collect();
        let recommended = reference(order(&expected["pipelines"]["recommended"]));
        Case { id: case["id"].as_str().unwrap().into(), graph, references, recommended }
    }

    /// The shortest makespan of the reference.
    pub fn best(&self) -> f64 {
        self.references.iter().map(|reference| reference.makespan).fold(f64::INFINITY, f64::min)
    }

    /// The least peak of those of its orders that take no longer.
    pub fn limit(&self) -> i64 {
        let best = self.best() * ROUNDING;
        self.references
            .iter()
            .filter(|reference| reference.makespan <= best)
            .map(|found| found.peak)
            .min()
            .unwrap()
    }

    /// The peaks of its orders, each with the shortest makespan of those that `counts`.
    pub fn goals(&self, counts: impl Fn(&Reference) -> bool) -> BTreeMap<i64, f64> {
        let mut goals = BTreeMap::new();
        for reference in self.references.iter().filter(|reference| counts(reference)) {
            let goal = goals.entry(reference.peak).or_insert(f64::INFINITY);
            *goal = reference.makespan.min(*goal);
        }
        goals
    }

    /// The least exposed time of the reference.
    pub fn exposed(&self) -> f64 {
        self.references.iter().map(|reference| reference.exposed).fold(f64::INFINITY, f64::min)
    }

    /// The orders of the reference.
    pub fn seeds(&self) -> Vec<Vec<NodeId>> {
        self.references.iter().map(|reference| reference.order.clone()).collect()
    }
}

/// All lists.
pub fn lists() -> impl Iterator<Item = Case> {
    let lines = BufReader::new(GzDecoder::new(&include_bytes!("../data/lists.jsonl.gz")[..])).lines();
    let cases = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    cases.filter(|case| case["type"] == "schedule").map(|case| Case::new(&case))
}
