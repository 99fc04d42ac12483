//! What can be wrong with a program.

use crate::{ARRIVE, FEED, FETCH, MAX_RANK, MAX_SLICES, RECEIVE, SEND, Slice};

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum ProgramError {
    /// A slice is outside the arena or unaligned.
    #[error("{what}: {bytes} bytes at {offset} are unaligned or outside the arena of {arena} of lane {lane}")]
    Slice { what: String, lane: u32, offset: u64, bytes: u64, arena: u64 },
    /// An operation would touch another lane's memory.
    #[error(
        "{what}: slice {slice} is in another arena; only `{RECEIVE}` reads other arenas, and none writes there"
    )]
    Foreign { what: String, slice: Slice },
    /// An operation would write what it reads.
    #[error("{what}: a written slice overlaps another operand")]
    Overlap { what: String },
    /// Too many operands.
    #[error("{what}: {found} operands of a kind; at most {MAX_SLICES} are possible")]
    TooMany { what: String, found: usize },
    /// A wait for nothing.
    #[error("{what}: waits for operation {position} of lane {lane}, which is its own lane or has none there")]
    Wait { what: String, lane: u32, position: u32 },
    /// Lanes that wait for each other.
    #[error("{what}: never runs, because the lanes wait for each other in a circle")]
    Circle { what: String },
    /// A lane of transfers that is none.
    #[error(
        "lane {lane} works beside lane {home}: that must be an earlier lane of the same device with an arena of its own, \
         and lane {lane} may run nothing but `{RECEIVE}`, `{SEND}` and `{ARRIVE}`"
    )]
    Beside { lane: u32, home: u32 },
    /// Operations of different lanes that touch the same bytes, one of them writing, and are not ordered.
    #[error(
        "{before} and {after} both touch {bytes}, one of them writes, and nothing orders the two: one must wait for the \
         other"
    )]
    Race { before: String, after: String, bytes: Slice },
    /// An operation that can start before one of the run before is complete, though both touch the same bytes.
    #[error(
        "{second} may overtake {first} of the run before, both touch {bytes}, and one of them writes: it needs a carried \
         wait"
    )]
    Overtake { first: String, second: String, bytes: Slice },
    /// A lane does not get its inputs.
    #[error(
        "lane {lane} has {tiles} tiles of inputs: it must start with a `{FEED}` of exactly these, the only one"
    )]
    Feed { lane: u32, tiles: usize },
    /// A lane does not give its results.
    #[error(
        "lane {lane} has {tiles} tiles of results: it must end with a `{FETCH}` of exactly these, the only one"
    )]
    Fetch { lane: u32, tiles: usize },
    /// A port has the wrong size or a name twice.
    #[error("port `{name}` is named twice, has more than {MAX_RANK} dimensions or not the bytes of its type")]
    Port { name: String },
    /// Tiles outside the tensor, or parts of it in no tile.
    #[error("port `{name}` is {ty}, and its {tiles} tiles do not cover exactly that")]
    Cover { name: String, ty: String, tiles: usize },
    /// Tiles of a result that overlap in part, so that some bytes would be fetched twice.
    #[error("output `{name}` is fetched, and its tiles overlap in part: they must be equal or apart")]
    Result { name: String },
    /// A message that cannot be.
    #[error("{what}: {problem}")]
    Message { what: String, problem: String },
    /// A device that is on no rank.
    #[error("device dev{device} is on none of the {ranks} ranks: the placement must name one of them for it")]
    Unplaced { device: u32, ranks: u32 },
    /// A rank that is none, or none left.
    #[error(
        "there is no part {rank} of {ranks} of `{program}`: only a whole program has parts, one for each rank"
    )]
    NoPart { program: String, rank: u32, ranks: u32 },
    /// A piece that is not where its operation may read and write.
    #[error(
        "{what}: piece {piece} leaves the {reads} read and {writes} written slices, overlaps itself or sums parts of \
         floats"
    )]
    Piece { what: String, piece: usize, reads: usize, writes: usize },
    /// Nowhere to put what arrives for a sum.
    #[error(
        "{what}: {need} bytes of other ranks land in its working memory, which has {have}; reserve `landing_bytes` of it"
    )]
    Landing { what: String, need: u64, have: u64 },
}
