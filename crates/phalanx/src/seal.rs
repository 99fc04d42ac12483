//! Manifests that notice any change: JSON whose second line is a checksum of all other bytes.

use serde::Deserialize;
use xxhash_rust::xxh3::Xxh3;

/// How a sealed text begins: the checksum follows.
const SEAL: &str = "{\n  \"xxh3\": \"";

/// What stands behind the checksum.
const SEAL_END: &str = "\",\n";

/// Digits of a checksum.
pub(crate) const DIGITS: usize = 32;

/// Why a text is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum SealError {
    /// It lacks its checksum.
    #[error("its second line is not the checksum of the others: it is damaged or was edited")]
    Missing,
    /// It has other bytes.
    #[error("it has the checksum {found}, its second line says {expected}: it is damaged or was edited")]
    Other { found: String, expected: String },
}

/// An object as pretty JSON, sealed.
pub(crate) fn sealed(json: &str) -> String {
    let body = json.strip_prefix("{\n").unwrap_or_default();
    let checksum = checksum(&[b"{\n", body.as_bytes(), b"\n"]);
    format!("{SEAL}{checksum}{SEAL_END}{body}\n")
}

/// Whether the text has a checksum, which must be that of all other bytes.
pub(crate) fn check(text: &[u8]) -> Result<bool, SealError> {
    let Some((expected, rest)) =
        text.strip_prefix(SEAL.as_bytes()).and_then(|rest| rest.split_at_checked(DIGITS))
    else {
        return Ok(false);
    };
    let body = rest.strip_prefix(SEAL_END.as_bytes()).ok_or(SealError::Missing)?;
    let found = checksum(&[b"{\n", body]);
    match found.as_bytes() == expected {
        true => Ok(true),
        false => Err(SealError::Other { found, expected: String::from_utf8_lossy(expected).into_owned() }),
    }
}

/// The 128-bit XXH3 of bytes in several pieces, in hexadecimal.
pub(crate) fn checksum(pieces: &[&[u8]]) -> String {
    let mut hasher = Xxh3::new();
    pieces.iter().for_each(|piece| hasher.update(piece));
    format!("{:032x}", hasher.digest128())
}

/// Why JSON is not of the form that is expected; the message names the field.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// A field is wrong.
    #[error("{}", located(.0))]
    Field(#[from] serde_path_to_error::Error<serde_json::Error>),
    /// It is not JSON, or something follows it.
    #[error("{0}")]
    Text(#[from] serde_json::Error),
}

/// Reads JSON.
pub(crate) fn read<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, JsonError> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut json)?;
    json.end()?;
    Ok(value)
}

/// An error after the field that it is about; no field is as deep as garbage can be.
fn located(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    const DEEPEST: usize = 8;
    match error.path().iter().count() {
        1..=DEEPEST => format!("`{}`: {}", error.path(), error.inner()),
        _ => error.inner().to_string(),
    }
}
