//! Printing to standard output, and numbers for people.

use std::io::{self, Write};

use phalanx::ir::Precision;
use serde::Serialize;

use crate::failure::Failure;

/// Prints one line and flushes it, so that a reader of a pipe sees it at once.
pub fn line(text: impl AsRef<str>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref().as_bytes())?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Prints text without ending the line.
pub fn part(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Prints a value as one line of JSON.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text =
        serde_json::to_string(value).map_err(|error| Failure::Run(format!("cannot print JSON: {error}")))?;
    line(text)
}

/// Bytes with a unit.
pub fn bytes(count: u64) -> String {
    phalanx::ir::bytes_text(count, 1)
}

/// A whole number with its digits in groups of three.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A hash of what a run computes, with its precision if that is not f32: hashes are compared within one.
pub fn hash(hash: &str, precision: Precision) -> String {
    match precision.rounds() {
        false => hash.to_string(),
        true => format!("{hash} (precision {precision})"),
    }
}

/// A number of things: `1 core`, `2 cores`.
pub fn count(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// The most memory this process has held, where the system reports it.
pub fn peak_resident_bytes() -> Option<u64> {
    status_bytes("VmHWM:")
}

/// The memory this process holds now, where the system reports it.
pub fn resident_bytes() -> Option<u64> {
    status_bytes("VmRSS:")
}

fn status_bytes(key: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1 000", "1 234 567"]);
        assert_eq!(
            [0, 1023, 1024, 3 << 29, 5 << 39].map(bytes),
            ["0 B", "1023 B", "1.0 KiB", "1.5 GiB", "2.5 TiB"]
        );
    }
}
