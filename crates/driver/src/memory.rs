//! Whether all arenas fit this machine: asking first gives an error where allocating would end the process.

use crate::Error;

/// Checks that `need` bytes can be had.
pub fn check(need: u64) -> Result<(), Error> {
    let have = available().unwrap_or(isize::MAX as u64);
    let fits = need <= have && Vec::<u8>::new().try_reserve_exact(need as usize).is_ok();
    if fits { Ok(()) } else { Err(Error::Memory { need, have }) }
}

/// Bytes that can be allocated without swapping, where the system tells.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_fits_and_the_address_space_does_not() {
        assert!(check(4096).is_ok());
        let error = check(u64::MAX).unwrap_err().to_string();
        assert!(error.contains("18446744073709551615"), "{error}");
    }
}
