//! The fuzz targets: any bytes as one of the formats that users hand us. `cargo xtask fuzz` builds and runs them.
//!
//! A target is a row of a table, chosen by the environment variable `PHALANX_FORMAT`, so that one program is built and linked with
//! all its instruments. A file that makes a reader panic, hang or allocate without bounds is a bug, and becomes a case of the
//! gallery of malformed files, to which the table belongs.
#![no_main]

#[path = "../../crates/phalanx/tests/malformed/formats.rs"]
mod formats;
/// The reader belongs to the command, which is no library: its file is compiled here once more.
#[path = "../../crates/cli/src/launch/hosts.rs"]
#[allow(dead_code, reason = "launch needs more of it than fuzzing does")]
mod hosts;

use std::sync::LazyLock;

use formats::{FORMATS, Reader};

/// What `hosts` expects around it.
mod failure {
    /// Why a file is refused.
    pub enum Failure {
        /// The message.
        Input(String),
    }
}

static READ: LazyLock<Reader> = LazyLock::new(|| {
    // libFuzzer's hook would end the process at panics of libraries that a reader catches; what escapes one ends it anyway.
    drop(std::panic::take_hook());
    let name = std::env::var("PHALANX_FORMAT").unwrap_or_default();
    let format = FORMATS.iter().chain(&[("hosts", hosts as Reader)]).find(|(known, _)| *known == name);
    format.unwrap_or_else(|| panic!("PHALANX_FORMAT is `{name}`, which is no format")).1
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // A message is as good an answer as any: what is looked for never returns.
    let _ = READ(bytes);
});

/// The hosts of a job (`phalanx launch --hosts FILE`).
fn hosts(bytes: &[u8]) -> Result<(), String> {
    const RANKS: usize = 1000;
    let shares = match hosts::read(&formats::place("hosts", "hosts.txt", bytes), RANKS, &[]) {
        Ok(shares) => shares,
        Err(failure::Failure::Input(message)) => return Err(message),
    };
    assert_eq!(shares.iter().map(|share| share.ranks).sum::<usize>(), RANKS, "every rank has a host");
    Ok(())
}
