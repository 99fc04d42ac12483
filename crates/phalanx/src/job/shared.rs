//! What rank 0 decides for all ranks: plan, seed, measured times of kernels, and the program.
//!
//! They go over the network as text, so that other ranks need none of the files. If rank 0 cannot decide, all ranks
//! get the reason and none is left waiting.

use std::path::Path;
use std::sync::Arc;

use phalanx_net::Network;
use phalanx_plan::Plan;
use phalanx_program::Program;

use super::JobError;
use crate::Error;
use crate::costs::CostTable;

/// The plan that `make` gives on rank 0, where alone it is called.
pub fn plan(network: &dyn Network, make: impl FnOnce() -> Result<Plan, Error>) -> Result<Plan, JobError> {
    let text = of_first(network, "plan", || Ok(make()?.to_text()))?;
    // Rank 0 reads its own text, too: all have the same, whatever the text keeps.
    Plan::parse(&text).map_err(|error| JobError::First { problem: error.to_string() })
}

/// The times that `make` gives on rank 0, where alone it is called.
pub fn costs(
    network: &dyn Network,
    make: impl FnOnce() -> Result<Option<Arc<CostTable>>, Error>,
) -> Result<Option<Arc<CostTable>>, JobError> {
    let text =
        of_first(network, "costs", || Ok(make()?.map_or(String::new(), |cost_table| cost_table.to_text())))?;
    if text.is_empty() {
        return Ok(None);
    }
    match CostTable::parse(&text, Path::new("costs of rank 0")) {
        Ok(cost_table) => Ok(Some(Arc::new(cost_table))),
        Err(error) => Err(JobError::First { problem: error.to_string() }),
    }
}

/// The seed of rank 0.
pub fn seed(network: &dyn Network, seed: u64) -> Result<u64, JobError> {
    let text = of_first(network, "seed", || Ok(seed.to_string()))?;
    text.parse().map_err(|_| JobError::Garbled { rank: 0, what: "seed" })
}

/// The program that `make` gives on rank 0, where alone it is called. The others read its text, and reading verifies it.
pub fn program(
    network: &dyn Network,
    make: impl FnOnce() -> Result<Program, Error>,
) -> Result<Program, Error> {
    let made = (network.rank() == 0).then(make);
    let text = match &made {
        Some(Ok(program)) => Ok(program.to_string()),
        Some(Err(error)) => Err(error.to_string()),
        None => Ok(String::new()),
    };
    let text = spread(network, "program", text);
    match made {
        // Its own error says more than what the others get.
        Some(Err(error)) => Err(error),
        Some(Ok(program)) => Ok(text.map(|_| program)?),
        None => Ok(text?.parse().map_err(|_| JobError::Garbled { rank: 0, what: "program" })?),
    }
}

/// A text that rank 0 makes, or why it cannot.
pub(crate) fn of_first(
    network: &dyn Network,
    what: &'static str,
    make: impl FnOnce() -> Result<String, Error>,
) -> Result<String, JobError> {
    let made = match network.rank() {
        0 => make().map_err(|error| error.to_string()),
        _ => Ok(String::new()),
    };
    spread(network, what, made)
}

/// Bytes that rank 0 makes, or why it cannot.
pub(crate) fn bytes_of_first(
    network: &dyn Network,
    what: &'static str,
    make: impl FnOnce() -> Result<Vec<u8>, Error>,
) -> Result<Vec<u8>, JobError> {
    let made = match network.rank() {
        0 => make().map_err(|error| error.to_string()),
        _ => Ok(Vec::new()),
    };
    spread_bytes(network, what, made)
}

/// What rank 0 has made, or why it could not, on all ranks.
fn spread(
    network: &dyn Network,
    what: &'static str,
    made: Result<String, String>,
) -> Result<String, JobError> {
    let bytes = spread_bytes(network, what, made.map(String::into_bytes))?;
    String::from_utf8(bytes).map_err(|_| JobError::Garbled { rank: 0, what })
}

fn spread_bytes(
    network: &dyn Network,
    what: &'static str,
    made: Result<Vec<u8>, String>,
) -> Result<Vec<u8>, JobError> {
    let (mark, mut bytes) = match made {
        Ok(bytes) => (MADE, bytes),
        Err(problem) => (FAILED, problem.into_bytes()),
    };
    bytes.push(mark);
    network.broadcast(0, &mut bytes)?;
    match bytes.pop() {
        Some(MADE) => Ok(bytes),
        Some(FAILED) => {
            let problem = String::from_utf8(bytes).map_err(|_| JobError::Garbled { rank: 0, what })?;
            Err(JobError::First { problem })
        }
        _ => Err(JobError::Garbled { rank: 0, what }),
    }
}

/// Ends what rank 0 has made.
const MADE: u8 = b'+';
/// Ends the reason why it could not.
const FAILED: u8 = b'!';
