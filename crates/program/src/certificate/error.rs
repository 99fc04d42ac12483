//! Why parts of a program do not fit together.

/// What is wrong with the parts. Operations are printed with their rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum CertificateError {
    /// Not the part of this rank.
    #[error("number {rank} of {ranks} parts is {found}: there must be one part for each rank, in rank order")]
    Part { rank: u32, ranks: u32, found: String },
    /// Parts of different programs.
    #[error("the part of rank {rank} is of program {found:032x}, that of rank 0 is of {expected:032x}")]
    Whole { rank: u32, found: u128, expected: u128 },
    /// A device that two ranks have.
    #[error("device dev{device} is on rank {one} and on rank {other}: it must be on one")]
    Device { device: u32, one: u32, other: u32 },
    /// A message with one end.
    #[error("{what}: message {tag} {way} rank {peer} has no end there")]
    Unmatched { what: String, tag: u32, way: &'static str, peer: u32 },
    /// A message with ends that do not fit.
    #[error("message {tag}: {send} has {sent} for dev{to}, but {arrival} has {taken} from dev{from}")]
    Mismatch { tag: u32, send: String, sent: String, to: u32, arrival: String, taken: String, from: u32 },
    /// Operations that never run.
    #[error(
        "without buffers these wait for each other in a circle: {}; the last waits for the first",
        operations.join(" -> ")
    )]
    Circle { operations: Vec<String> },
    /// Turns that cannot be taken.
    #[error("turn {turn} posts {what}, which waits for {before}: that is not complete then")]
    TooEarly { turn: usize, what: String, before: String },
    /// A turn of a lane that has no such operations.
    #[error("turn {turn} posts {count} operations of lane {lane} of rank {rank}, which has {left} left")]
    NoTurn { turn: usize, count: u32, lane: u32, rank: u32, left: u32 },
    /// Turns that end too soon.
    #[error("{what} is never posted: the turns must post every operation")]
    Missing { what: String },
}
