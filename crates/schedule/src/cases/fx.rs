//! Graphs of values for the graph-level scheduler.

use serde_json::Value;

use super::{Answer, CaseError, Keys, parse};
use crate::fx;
use crate::mode::Mode;

pub(super) fn keys() -> Vec<&'static str> {
    vec![
        "scheduled",
        "order",
        "collectives",
        "wasted_compute_ns",
        "original_peak",
        "allowed_peak",
        "rescheduled_peak",
        "makespan_ns",
        "exposed_sim_ns",
        "initial_makespan_ns",
        "buckets",
        "error",
    ]
}

pub(super) fn answer(line: &[u8], keys: &Keys, mode: Mode) -> Result<Answer, CaseError> {
    let case: fx::Case = parse(line)?;
    case.check()?;
    match serde_json::to_value(fx::run(&case, mode)) {
        Ok(Value::Object(answer)) => Ok(answer.into_iter().filter(|(key, _)| keys.has(key)).collect()),
        _ => unreachable!("an answer is an object with texts as keys"),
    }
}
