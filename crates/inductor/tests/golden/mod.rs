//! Results of the reference: how they are read and compared.
#![allow(dead_code, clippy::unwrap_used)]

use std::io::{BufRead, BufReader};

use flate2::read::GzDecoder;
use phalanx_inductor::cases::{Keys, answer};
use phalanx_inductor::mode::PassMode;
use serde_json::Value;

/// The cases of a compressed file, one a line.
pub fn cases(file: &'static [u8]) -> impl Iterator<Item = Value> {
    let lines = BufReader::new(GzDecoder::new(file)).lines();
    lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap())
}

/// The answer to a case, all keys.
pub fn answered(case: &Value, mode: PassMode) -> Value {
    answer(&serde_json::to_vec(case).unwrap(), &Keys::default(), mode)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Checks every value of `expected` that `found` has a key for: times to one part in 10^9, all else exactly. Tells how
/// many numbers were compared.
pub fn compare(found: &Value, expected: &Value, path: &str) -> usize {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => {
            let common = expected.iter().filter_map(|(key, value)| Some((key, found.get(key)?, value)));
            common.map(|(key, found, value)| compare(found, value, &format!("{path}.{key}"))).sum()
        }
        (Value::Array(found), Value::Array(expected)) => {
            assert_eq!(found.len(), expected.len(), "{path}");
            let pairs = found.iter().zip(expected).enumerate();
            pairs.map(|(at, (found, value))| compare(found, value, &format!("{path}[{at}]"))).sum()
        }
        (Value::Number(found), Value::Number(expected)) if !(found.is_i64() && expected.is_i64()) => {
            let (found, expected) = (found.as_f64().unwrap(), expected.as_f64().unwrap());
            assert!(
                (found - expected).abs() <= 1e-9 * expected.abs().max(1e-3),
                "{path}: {found} {expected}"
            );
            1
        }
        _ => {
            assert_eq!(found, expected, "{path}");
            1
        }
    }
}
