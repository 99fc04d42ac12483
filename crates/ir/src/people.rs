//! Numbers as people read them, for messages of all crates.

/// A number of bytes with the largest unit of which there is one; `decimals` digits follow the point, except of single bytes.
///
/// ```
/// assert_eq!(phalanx_ir::bytes_text(1536, 1), "1.5 KiB");
/// assert_eq!(phalanx_ir::bytes_text(1023, 2), "1023 B");
/// ```
pub fn bytes_text(bytes: u64, decimals: usize) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.decimals$} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}
