//! Why parts of a program do not fit together.

/// What is wrong with the parts. Operations are printed with their rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// Not the part of this rank.
    #[error("number {rank} of {ranks} parts is {found}: there must be one part for each rank, in rank order")]
    Part {
        /// Where it stands.
        rank: u32,
        /// How many there are.
        ranks: u32,
        /// What it is.
        found: String,
    },
    /// Parts of different programs.
    #[error("the part of rank {rank} is of program {found:032x}, that of rank 0 is of {expected:032x}")]
    Whole {
        /// The rank.
        rank: u32,
        /// What it is a part of.
        found: u128,
        /// What the first one is a part of.
        expected: u128,
    },
    /// A device that two ranks have.
    #[error("device dev{device} is on rank {one} and on rank {other}: it must be on one")]
    Device {
        /// The device.
        device: u32,
        /// One rank.
        one: u32,
        /// The other one.
        other: u32,
    },
    /// A message with one end.
    #[error("{what}: message {tag} {way} rank {peer} has no end there")]
    Unmatched {
        /// The operation of the end that is there.
        what: String,
        /// The message's tag.
        tag: u32,
        /// `to` or `from`.
        way: &'static str,
        /// The rank without an end.
        peer: u32,
    },
    /// A message with ends that do not fit.
    #[error("message {tag}: {send} has {sent} for dev{to}, but {arrival} has {taken} from dev{from}")]
    Mismatch {
        /// The message's tag.
        tag: u32,
        /// The sending operation.
        send: String,
        /// What it sends, from where.
        sent: String,
        /// For which device.
        to: u32,
        /// The operation where it arrives.
        arrival: String,
        /// What it takes in, where.
        taken: String,
        /// From which device.
        from: u32,
    },
    /// Operations that never run.
    #[error(
        "without buffers these wait for each other in a circle: {}; the last waits for the first",
        operations.join(" -> ")
    )]
    Circle {
        /// The operations, each waiting for the next one.
        operations: Vec<String>,
    },
    /// Turns that cannot be taken.
    #[error("turn {turn} posts {what}, which waits for {before}: that is not complete then")]
    TooEarly {
        /// Which turn.
        turn: usize,
        /// The operation.
        what: String,
        /// What it waits for.
        before: String,
    },
    /// A turn of a lane that has no such operations.
    #[error("turn {turn} posts {count} operations of lane {lane} of rank {rank}, which has {left} left")]
    NoTurn {
        /// Which turn.
        turn: usize,
        /// How many operations it posts.
        count: u32,
        /// The lane.
        lane: u32,
        /// Its rank.
        rank: u32,
        /// How many operations were not posted yet.
        left: u32,
    },
    /// Turns that end too soon.
    #[error("{what} is never posted: the turns must post every operation")]
    Missing {
        /// The operation.
        what: String,
    },
}
