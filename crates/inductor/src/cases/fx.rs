//! Graphs of values for the graph-level scheduler.

use serde_json::{Value, json};

use super::{Answer, CaseError, Keys, parse};
use crate::fx;
use crate::mode::PassMode;

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
        "search",
        "error",
    ]
}

pub(super) fn answer(line: &[u8], keys: &Keys, mode: PassMode) -> Result<Answer, CaseError> {
    let case: fx::FxCase = parse(line)?;
    case.check()?;
    let Value::Object(mut answer) = json!(fx::run(&case, mode)) else {
        unreachable!("an answer is an object with texts as keys");
    };
    answer.retain(|key, _| keys.has(key));
    if keys.has("search") {
        answer.insert("search".into(), json!(fx::search(&case)?));
    }
    Ok(answer)
}
