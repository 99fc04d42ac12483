//! What distinguishes data from other data: compared between ranks, and with the run that is resumed.
//!
//! Few tokens are hashed all, many in samples that are spread over them: a start must not read a large corpus as a whole.
//! Data that grew or shrank, other files and another tokenizer are always noticed; a few changed tokens only by luck.

use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::Dataset;
use super::corpus::Corpus;

/// As many tokens are hashed all.
const MOST_HASHED: usize = 1 << 20;

/// Samples of more, and the tokens of each.
const SAMPLES: usize = 1024;
const SAMPLE: usize = 256;

/// What distinguishes data from other data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataIdentity {
    /// How many tokens there are.
    pub tokens: u64,
    /// A hash of all of them, or of samples, in hexadecimal.
    pub xxh3: String,
}

impl fmt::Display for DataIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens with the hash {}", self.tokens, self.xxh3)
    }
}

impl Dataset {
    /// What distinguishes this data from other data.
    pub fn identity(&self) -> DataIdentity {
        let mut hasher = Xxh3::new();
        for corpus in self.all() {
            hasher.update(&(corpus.len() as u64).to_le_bytes());
            hash(corpus, &mut hasher);
        }
        DataIdentity { tokens: self.tokens() as u64, xxh3: format!("{:016x}", hasher.digest()) }
    }
}

fn hash(corpus: &Corpus, hasher: &mut Xxh3) {
    let mut read = |start: usize, count: usize| {
        corpus.read(start).take(count).for_each(|token| hasher.update(&token.to_le_bytes()));
    };
    match corpus.len() {
        tokens @ ..=MOST_HASHED => read(0, tokens),
        tokens => {
            // The first sample begins with the first token, and the last one ends with the last.
            let last = (tokens - SAMPLE) as u128;
            let start = |sample: usize| (last * sample as u128 / (SAMPLES - 1) as u128) as usize;
            (0..SAMPLES).for_each(|sample| read(start(sample), SAMPLE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::DataSource;
    use super::*;

    fn identity(name: &str, text: &[u8]) -> DataIdentity {
        let path = std::env::temp_dir().join(format!("phalanx-identity-{name}-{}.txt", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let data = Dataset::open(&DataSource::new(&path), 0, &mut |_, _| ()).unwrap();
        std::fs::remove_file(path).unwrap();
        data.identity()
    }

    #[test]
    fn data_differs_from_data_with_a_changed_token() {
        for (name, size) in [("few", 1000), ("many", 3 << 20)] {
            let text: Vec<u8> = (0..size).map(|at: usize| b'a' + (at * at / 7 % 26) as u8).collect();
            let found = identity(name, &text);
            assert_eq!((found.tokens, &found), (size as u64, &identity(name, &text)));
            for at in [0, size - 1] {
                let mut changed = text.clone();
                changed[at] = b'!';
                assert_ne!(identity(name, &changed), found, "byte {at} of {size}");
            }
            assert_ne!(identity(name, &text[..size - 1]), found);
        }
    }
}
