//! That the parts of a program fit together and never wait for each other in a circle: checked, and written down.
//!
//! A certificate holds for the parts of all ranks:
//!
//! 1. there is one for each rank, all of the same program, and every device is on one rank;
//! 2. every message that one rank sends arrives at the other one: the same tag, as many bytes, and each end names the device
//!    of the other. With the verifier's check of each part, no two messages of a way have the same tag;
//! 3. a run ends even if no message is ever buffered, that is if a send is complete only once its arrival has been *posted*,
//!    and the other way round. The *turns* are a witness: an order in which operations can be posted, each when all that it
//!    waits for is complete. Whether a run ends depends on no choice, since posting one operation never holds up another;
//! 4. the bytes that a rank has under way at once are bounded, by the largest operation of each of its lanes.
//!
//! One run is enough: lanes and carried waits lead from a run to the next and never back, so a circle would lie within one
//! run; and since a lane posts an operation again only when it is complete, both ends of a message are of the same run.
//!
//! The text form holds the parts as well. Parsing checks everything again, and follows the turns instead of looking for
//! some.

mod error;
mod job;
mod text;
mod turns;

pub use error::CertificateError;

use crate::Program;
use job::Job;

/// Parts of a program, one for each rank, that were found to fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    parts: Vec<Program>,
    whole: u128,
    /// Every device and its rank, ascending.
    devices: Vec<(u32, u32)>,
    posted: Vec<u64>,
    turns: Vec<Turn>,
}

/// The next operations of a lane are posted, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The lane's rank.
    pub rank: u32,
    /// The lane's number in the part of that rank.
    pub lane: u32,
    /// How many operations.
    pub count: u32,
}

impl Certificate {
    /// Checks the parts of all ranks, in rank order. All faults of messages are reported; circles only if there is none.
    pub fn new(slices: &[Program]) -> Result<Certificate, Vec<CertificateError>> {
        let job = Job::new(slices)?;
        let turns = turns::find(&job).map_err(|error| vec![error])?;
        Ok(Certificate::of(&job, turns))
    }

    /// Checks the parts of all ranks and an order in which they can run.
    fn with_turns(slices: &[Program], turns: Vec<Turn>) -> Result<Certificate, Vec<CertificateError>> {
        let job = Job::new(slices)?;
        turns::follow(&job, &turns).map_err(|error| vec![error])?;
        Ok(Certificate::of(&job, turns))
    }

    fn of(job: &Job<'_>, turns: Vec<Turn>) -> Certificate {
        let (parts, devices) = (job.parts.to_vec(), job.devices.clone());
        let posted = parts.iter().map(most_posted).collect();
        Certificate { parts, whole: job.whole, devices, posted, turns }
    }

    /// The parts, by rank.
    pub fn parts(&self) -> &[Program] {
        &self.parts
    }

    /// The fingerprint of the program that they are parts of.
    pub fn whole(&self) -> u128 {
        self.whole
    }

    /// Every device and its rank, ascending.
    pub fn devices(&self) -> &[(u32, u32)] {
        &self.devices
    }

    /// By rank: the most bytes that its messages have under way at once, sent and received ones together.
    pub fn posted(&self) -> &[u64] {
        &self.posted
    }

    /// An order in which all operations can be posted.
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }
}

/// A lane has one operation under way at a time.
fn most_posted(part: &Program) -> u64 {
    let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0_u64, u64::saturating_add);
    let bytes = |operation| sum(&mut part.messages(operation).iter().map(|end| end.bytes()));
    sum(&mut part.lanes().iter().map(|lane| part.operations_of(lane).iter().map(bytes).max().unwrap_or(0)))
}
