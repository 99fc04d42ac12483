//! What a network promises: a latency and a bandwidth.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// One device's connection to all others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// From the end of sending to the arrival.
    pub latency: Duration,
    /// In each direction.
    pub bytes_per_second: f64,
}

impl Link {
    /// How long `bytes` occupy the link, the latency apart.
    pub fn occupancy(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.bytes_per_second)
    }
}

/// Why a text is no link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a link: {problem}; write latency,bandwidth like 1ms,1Gbit or 50us,12.5GB")]
pub struct LinkError {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub problem: String,
}

/// In nanoseconds.
const TIMES: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
/// In bytes per second; the unit of a second may be left out or written `/s`.
const RATES: [(&str, f64); 8] = [
    ("kbit", 125.0),
    ("Mbit", 125e3),
    ("Gbit", 125e6),
    ("Tbit", 125e9),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
];

impl FromStr for Link {
    type Err = LinkError;

    /// Reads `latency,bandwidth`.
    fn from_str(text: &str) -> Result<Self, LinkError> {
        let fail = |problem: String| LinkError { text: text.into(), problem };
        let Some((latency, rate)) = text.split_once(',') else {
            return Err(fail("it has no comma".into()));
        };
        let latency = quantity(latency, &TIMES).map_err(&fail)?;
        let rate = quantity(rate.strip_suffix("/s").unwrap_or(rate), &RATES).map_err(&fail)?;
        let latency = Duration::try_from_secs_f64(latency / 1e9)
            .ok()
            .filter(|latency| latency.as_secs() < 3600)
            .ok_or_else(|| fail("the latency is an hour or more".into()))?;
        // Slower, the bytes of a large step would take more nanoseconds than 64 bits count.
        if !(rate >= 1e3 && rate.is_finite()) {
            return Err(fail("the bandwidth is less than 1kB per second".into()));
        }
        Ok(Link { latency, bytes_per_second: rate })
    }
}

/// A time like `50us`.
pub fn time(text: &str) -> Result<Duration, LinkError> {
    let fail = |problem: String| LinkError { text: text.into(), problem };
    let nanoseconds = quantity(text, &TIMES).map_err(fail)?;
    let short = Duration::try_from_secs_f64(nanoseconds / 1e9).ok().filter(|time| time.as_secs() < 3600);
    short.ok_or_else(|| fail("it is an hour or more".into()))
}

/// Bytes a second like `12.5GB` or `100Gbit`.
pub fn rate(text: &str) -> Result<f64, LinkError> {
    let fail = |problem: String| LinkError { text: text.into(), problem };
    let rate = quantity(text.strip_suffix("/s").unwrap_or(text), &RATES).map_err(fail)?;
    // Slower, the bytes of a large step would take more nanoseconds than 64 bits count.
    if rate >= 1e3 && rate.is_finite() {
        Ok(rate)
    } else {
        Err(fail("it is less than 1kB per second".into()))
    }
}

/// A number and a unit, in the base of the units.
fn quantity(text: &str, units: &[(&str, f64)]) -> Result<f64, String> {
    let text = text.trim();
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let names: Vec<_> = units.iter().map(|(name, _)| *name).collect();
    let Some((_, base)) = units.iter().find(|(name, _)| *name == unit) else {
        return Err(format!("`{text}` needs a unit of {}", names.join(", ")));
    };
    match number.trim().parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number * base),
        _ => Err(format!("`{number}` is not a number of at least 0")),
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whole numbers, so that the quotient is the one that was written.
        let latency = self.latency.as_nanos() as f64;
        let (name, base) = largest(latency, &TIMES);
        write!(f, "{}{name},", latency / base)?;
        let (name, base) = largest(self.bytes_per_second, &RATES[..4]);
        write!(f, "{}{name}", self.bytes_per_second / base)
    }
}

/// The largest unit of which there is at least one; the smallest for less.
fn largest<'a>(value: f64, units: &'a [(&'a str, f64)]) -> (&'a str, f64) {
    *units.iter().rev().find(|(_, base)| value >= *base * (1.0 - 1e-12)).unwrap_or(&units[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_and_printed() {
        for (text, latency, rate) in [
            ("1ms,1Gbit", 1e-3, 125e6),
            ("50us,12.5GB", 50e-6, 12.5e9),
            ("0s,100Mbit/s", 0.0, 12.5e6),
            ("250ns, 1.5kB", 250e-9, 1500.0),
        ] {
            let link: Link = text.parse().unwrap();
            assert_eq!(link.latency, Duration::from_secs_f64(latency), "{text}");
            assert_eq!(link.bytes_per_second, rate, "{text}");
            assert_eq!(link.to_string().parse::<Link>().unwrap(), link, "{link}");
        }
        for text in ["1ms,1Gbit", "100us,1Gbit", "1.5us,10kbit", "0ns,8Gbit", "999ns,2.4Tbit", "7us,56Gbit"] {
            assert_eq!(text.parse::<Link>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_wrong_with_a_link_is_told() {
        for (text, problem) in [
            ("1ms", "it has no comma"),
            ("1,1Gbit", "`1` needs a unit of ns, us, ms, s"),
            ("1ms,1", "`1` needs a unit of kbit, Mbit, Gbit, Tbit, kB, MB, GB, TB"),
            ("-1ms,1Gbit", "`-1` is not a number of at least 0"),
            ("1ms,0Gbit", "the bandwidth is less than 1kB per second"),
            ("4000s,1Gbit", "the latency is an hour or more"),
            ("xms,1Gbit", "`xms` needs a unit of ns, us, ms, s"),
        ] {
            assert_eq!(text.parse::<Link>().unwrap_err().problem, problem, "{text}");
        }
    }
}
