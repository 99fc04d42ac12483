//! `phalanx verify`: checks the certificate of a job.

use std::path::PathBuf;
use std::process::ExitCode;

use phalanx::internals::files;
use phalanx::internals::program::SEND;
use phalanx::{Certificate, Program};
use serde_json::json;

use crate::failure::Failure;
use crate::output;

/// The most bytes of a certificate.
const MOST_BYTES: u64 = 4 << 30;

/// Check a certificate: that a job's ranks can neither deadlock nor mix up messages.
///
/// A certificate (--certificate of train and step) holds the program of every rank and an order in which all of their
/// operations can run even if no message is ever buffered. Everything is checked again, without the model: memory that
/// two operations of a rank share, that every message has two ends of one size, that tags are unique, the order itself.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  phalanx launch -n 2 -- train --plan fsdp --steps 1 --certificate job.txt
  phalanx verify job.txt")]
pub struct Args {
    /// The certificate
    file: PathBuf,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Reads and checks the file.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let file = args.file.display();
    let text = files::read_up_to(&args.file, MOST_BYTES)
        .and_then(|bytes| std::io::read_to_string(bytes.as_slice()))
        .map_err(|error| Failure::Input(format!("cannot read {file}: {error}")))?;
    let certificate: Certificate =
        text.parse().map_err(|error| Failure::Input(format!("{file}: not a valid certificate: {error}")))?;
    let parts = certificate.parts();
    let (ranks, operations) = (parts.len(), parts.iter().map(|part| part.operations().len()).sum::<usize>());
    let (messages, bytes) = messages(parts);
    let most = certificate.posted();
    let hash = format!("{:032x}", certificate.whole());
    if args.json {
        output::json(&json!({
            "valid": true, "ranks": ranks, "operations": operations, "messages": messages,
            "message_bytes": bytes, "most_bytes_in_flight": most, "program_hash": hash,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(format!("{file} is valid: {ranks} ranks cannot deadlock, even if no message is buffered"))?;
    output::line(format!("operations    {}", output::grouped(operations as u64)))?;
    let bytes = output::bytes(bytes);
    output::line(format!("messages      {} of {bytes} in a step", output::grouped(messages)))?;
    let most: Vec<_> = most.iter().map(|&bytes| output::bytes(bytes)).collect();
    output::line(format!("in flight     at most {} on ranks 0, 1, ...", most.join(", ")))?;
    output::line(format!("program hash  {hash}"))?;
    Ok(ExitCode::SUCCESS)
}

/// How many messages a step has, and their bytes.
fn messages(parts: &[Program]) -> (u64, u64) {
    let sends = |part: &Program| {
        let ends = part.operations().iter().filter(|operation| part.kernel(operation) == SEND);
        ends.flat_map(|operation| part.messages(operation)).map(|end| end.bytes()).collect::<Vec<_>>()
    };
    let bytes: Vec<u64> = parts.iter().flat_map(sends).collect();
    (bytes.len() as u64, bytes.into_iter().fold(0, u64::saturating_add))
}
