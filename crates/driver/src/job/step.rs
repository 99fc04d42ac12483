//! What ranks tell each other after every step: whether to go on, what went wrong, and the numbers that some of them have.
//!
//! All of them come to the same conclusion from the same verdicts, so that they stop after the same step.

use phalanx_net::Network;

use super::JobError;

/// The most bytes of a failure that are sent.
const LONGEST: usize = 4096;

/// What one rank has to say about a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Somebody asked this rank to stop.
    pub stop: bool,
    /// What went wrong here.
    pub failed: Option<String>,
    /// The loss, if it is computed here.
    pub loss: Option<f32>,
    /// The gradient norm, if it is computed here.
    pub gradient_norm: Option<f32>,
}

/// What all ranks know about a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agreed {
    /// Somebody asked some rank to stop.
    pub stop: bool,
    /// The first rank on which something went wrong, and what.
    pub failed: Option<(u32, String)>,
    /// The loss, of the first rank that has one.
    pub loss: Option<f32>,
    /// The gradient norm, of the first rank that has one.
    pub gradient_norm: Option<f32>,
    /// The first rank whose loss is no longer a finite number, and that loss.
    pub diverged: Option<(u32, f32)>,
}

impl Verdict {
    /// Tells all ranks and hears what they say.
    pub fn exchange(&self, network: &dyn Network) -> Result<Agreed, JobError> {
        let mut agreed = Agreed::default();
        for (rank, bytes) in (0..).zip(network.all_gather(&self.encode())?) {
            let verdict = Verdict::decode(&bytes).ok_or(JobError::Garbled { rank, what: "verdict" })?;
            agreed.add(rank, verdict);
        }
        Ok(agreed)
    }

    /// A byte that tells what is there, two numbers, and the text of a failure.
    fn encode(&self) -> Vec<u8> {
        let flags = [self.stop, self.failed.is_some(), self.loss.is_some(), self.gradient_norm.is_some()];
        let flags = (0..).zip(flags).map(|(bit, flag)| u8::from(flag) << bit).sum();
        let mut bytes = vec![flags];
        for number in [self.loss, self.gradient_norm] {
            bytes.extend(number.unwrap_or_default().to_le_bytes());
        }
        bytes.extend(self.failed.iter().flat_map(|text| text.bytes()).take(LONGEST));
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Verdict> {
        let (&flags, rest) = bytes.split_first()?;
        let (loss, rest) = rest.split_first_chunk()?;
        let (norm, text) = rest.split_first_chunk()?;
        let has = |bit: u8| flags >> bit & 1 == 1;
        Some(Verdict {
            stop: has(0),
            failed: has(1).then(|| String::from_utf8_lossy(text).into_owned()),
            loss: has(2).then(|| f32::from_le_bytes(*loss)),
            gradient_norm: has(3).then(|| f32::from_le_bytes(*norm)),
        })
    }
}

impl Agreed {
    /// Takes the verdict of the next rank.
    fn add(&mut self, rank: u32, verdict: Verdict) {
        self.stop |= verdict.stop;
        self.failed = self.failed.take().or(verdict.failed.map(|text| (rank, text)));
        self.diverged =
            self.diverged.or(verdict.loss.filter(|loss| !loss.is_finite()).map(|loss| (rank, loss)));
        self.loss = self.loss.or(verdict.loss);
        self.gradient_norm = self.gradient_norm.or(verdict.gradient_norm);
    }
}
