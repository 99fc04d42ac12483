//! Several sources in given shares: which one a sample is from.
//!
//! The samples of a run are numbered through. Each source gets its share of the numbers, as evenly spread as whole numbers
//! allow; then the numbers of each block change places, in an order drawn from the seed, so that sources do not alternate.
//! Source and position in its own row follow from seed and number alone.

use std::path::{Path, PathBuf};

use super::{DataError, order};

/// Samples whose places are shuffled among themselves.
const BLOCK: u64 = 1024;

/// Shares are whole multiples of 2 to the minus this.
const SHARE_BITS: u32 = 32;

/// A path and its weight, if it has one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Weighted {
    pub(super) path: PathBuf,
    pub(super) weight: Option<f64>,
}

/// Reads `PATH=WEIGHT;PATH=WEIGHT`, in which all weights may be left out. What is a file or directory as it stands is one.
pub(super) fn parse(text: &Path) -> Result<Vec<Weighted>, DataError> {
    let whole = || vec![Weighted { path: text.into(), weight: None }];
    let Some(all) = text.to_str().filter(|_| !text.exists()) else { return Ok(whole()) };
    let wrong = |reason: String| DataError::Mixture { text: all.into(), reason };
    let sources = all.split(';').map(|one| match one.trim().rsplit_once('=') {
        Some((path, weight)) => match weight.trim().parse::<f64>() {
            Ok(weight) => Weighted { path: path.trim().into(), weight: Some(weight) },
            Err(_) => Weighted { path: one.trim().into(), weight: None },
        },
        None => Weighted { path: one.trim().into(), weight: None },
    });
    let sources: Vec<Weighted> = sources.collect();
    if sources.iter().any(|source| source.path.as_os_str().is_empty()) {
        return Err(wrong("a path is missing".into()));
    }
    let sound = |weight: f64| weight.is_finite() && weight > 0.0;
    if let Some(weight) = sources.iter().filter_map(|source| source.weight).find(|&weight| !sound(weight)) {
        return Err(wrong(format!("the weight {weight} is not above 0")));
    }
    let without = sources.iter().find(|source| source.weight.is_none());
    match without.filter(|_| sources.iter().any(|source| source.weight.is_some())) {
        Some(one) => Err(wrong(format!("`{}` has no weight, but others have", one.path.display()))),
        None => Ok(sources),
    }
}

/// The shares of sources.
#[derive(Debug)]
pub(super) struct Mixture {
    seed: u64,
    /// Of each source but the last: its share of what those before it leave.
    shares: Vec<u64>,
}

impl Mixture {
    /// Sources by weights, which need not add up to 1.
    pub(super) fn new(weights: &[f64], seed: u64) -> Mixture {
        let share = |first: usize| {
            let share = weights[first] / weights[first..].iter().sum::<f64>();
            (share * (1u64 << SHARE_BITS) as f64).round().max(1.0) as u64
        };
        let shares = (0..weights.len().saturating_sub(1)).map(share).collect();
        Mixture { seed: order::mix(seed ^ 0x6D69_7874_7572_6573), shares }
    }

    /// The source of a sample, and which one of that source it is.
    pub(super) fn place(&self, number: u64) -> (usize, u64) {
        if self.shares.is_empty() {
            return (0, number);
        }
        let block = number / BLOCK;
        let mut left = block * BLOCK + order::permuted(self.seed, block, number % BLOCK, BLOCK);
        for (source, &share) in self.shares.iter().enumerate() {
            let [before, after] =
                [left, left + 1].map(|count| ((u128::from(count) * u128::from(share)) >> SHARE_BITS) as u64);
            if after > before {
                return (source, before);
            }
            left -= before;
        }
        (self.shares.len(), left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_is_taken_in_its_share_and_none_of_its_samples_twice() {
        let weights = [5.0, 1.0, 0.25, 3.0];
        let mixture = Mixture::new(&weights, 7);
        let mut seen = vec![Vec::new(); 4];
        for number in 0..64 * BLOCK {
            let (source, sample) = mixture.place(number);
            seen[source].push(sample);
            if (number + 1) % BLOCK == 0 {
                let wanted = weights[source] / 9.25 * (number + 1) as f64;
                assert!((seen[source].len() as f64 - wanted).abs() < 3.0, "source {source} after {number}");
            }
        }
        for mut samples in seen {
            samples.sort_unstable();
            assert!(samples.iter().copied().eq(0..samples.len() as u64), "each sample once");
        }
    }

    #[test]
    fn sources_do_not_alternate() {
        let mixture = Mixture::new(&[1.0, 1.0], 0);
        let row: Vec<usize> = (0..BLOCK).map(|number| mixture.place(number).0).collect();
        let changes = row.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!((400..624).contains(&changes), "{changes}");
        let other = Mixture::new(&[1.0, 1.0], 1);
        assert!((0..BLOCK).any(|number| other.place(number) != mixture.place(number)), "another seed");
    }

    #[test]
    fn one_source_is_taken_in_order() {
        assert_eq!(Mixture::new(&[3.0], 9).place(41), (0, 41));
    }

    #[test]
    fn paths_have_weights_or_not() {
        let parsed = |text: &str| parse(Path::new(text)).map_err(|error| error.to_string());
        let one = |path: &str, weight| Weighted { path: path.into(), weight };
        assert_eq!(parsed("a*.txt"), Ok(vec![one("a*.txt", None)]));
        assert_eq!(parsed("a.txt; b=c.jsonl"), Ok(vec![one("a.txt", None), one("b=c.jsonl", None)]));
        let weighted = vec![one("a/*.txt", Some(0.7)), one("b=1", Some(3.0))];
        assert_eq!(parsed("a/*.txt=0.7; b=1 = 3"), Ok(weighted));
        assert!(parsed("a;;b").unwrap_err().contains("a path is missing"));
        assert!(parsed("a=1;b").unwrap_err().contains("`b` has no weight"));
        for weight in ["0", "-1", "inf", "nan"] {
            let error = parsed(&format!("a=1;b={weight}")).unwrap_err();
            assert!(error.contains("is not above 0"), "{error}");
        }
    }
}
