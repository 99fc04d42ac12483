//! What the operations that talk to other ranks move, as words.
//!
//! The words of a [`SEND`](crate::SEND) and of an [`ARRIVE`](crate::ARRIVE) are a list of *message ends*. A message has
//! one end on each of two ranks: the same tag, the same number of bytes, but each end its own place in memory, whose
//! bytes go one after the other.
//!
//! ```text
//! end = peer, tag, device, slice, start, run, dims, (count, stride)[dims]
//! ```

use crate::{ARRIVE, MAX_RANK, Operation, Program, SEND};

/// One end of a message between two ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageEnd {
    /// The other rank.
    pub peer: u32,
    /// Tells the message from all others that go the same way between the same ranks.
    pub tag: u32,
    /// The device of the other end.
    pub device: u32,
    /// Which slice: of those that a send reads, or that an arrival writes.
    pub slice: u32,
    /// The first byte in the slice.
    pub start: u64,
    /// Bytes of a contiguous run.
    pub run: u64,
    /// How many runs along each dimension and how many bytes from one to the next, outermost first.
    pub grid: Vec<(u64, u64)>,
}

/// Words of an end without its grid.
const HEAD: usize = 7;

impl MessageEnd {
    /// All its bytes.
    pub fn bytes(&self) -> u64 {
        self.grid.iter().fold(self.run, |bytes, &(count, _)| bytes.saturating_mul(count))
    }

    /// The byte of the slice after the last one it touches; nothing if its runs are empty or overlap each other.
    pub(crate) fn reach(&self) -> Option<u64> {
        reach(self.start, self.run, self.grid.iter().copied())
    }

    /// Appends the end to an operation's words.
    pub fn encode(&self, words: &mut Vec<u64>) {
        let MessageEnd { peer, tag, device, slice, start, run, grid } = self;
        words.extend([peer, tag, device, slice].map(|&word| u64::from(word)));
        words.extend([*start, *run, grid.len() as u64]);
        words.extend(grid.iter().flat_map(|&(count, stride)| [count, stride]));
    }

    /// The ends in an operation's words; nothing if they are no list of ends.
    pub fn decode(words: &[u64]) -> Option<Vec<MessageEnd>> {
        let (mut ends, mut rest) = (Vec::new(), words);
        while !rest.is_empty() {
            let (&[peer, tag, device, slice, start, run, dims], after) = rest.split_first_chunk::<HEAD>()?;
            let dims = usize::try_from(dims).ok().filter(|&dims| dims <= MAX_RANK)?;
            let (grid, after) = after.split_at_checked(2 * dims)?;
            let [peer, tag, device, slice] = [peer, tag, device, slice].map(|word| u32::try_from(word).ok());
            let grid = grid.as_chunks().0.iter().map(|&[count, stride]| (count, stride)).collect();
            ends.push(MessageEnd {
                peer: peer?,
                tag: tag?,
                device: device?,
                slice: slice?,
                start,
                run,
                grid,
            });
            rest = after;
        }
        Some(ends)
    }
}

/// The byte after the last one of a grid of runs; nothing if they are empty or overlap each other.
pub(crate) fn reach(start: u64, run: u64, grid: impl DoubleEndedIterator<Item = (u64, u64)>) -> Option<u64> {
    let mut width = run;
    for (count, stride) in grid.rev() {
        if stride < width || count == 0 {
            return None;
        }
        width = stride.checked_mul(count - 1)?.checked_add(width)?;
    }
    if width == 0 { None } else { start.checked_add(width) }
}

impl Program {
    /// The message ends of an operation; none unless it sends or takes in what arrives.
    pub fn messages(&self, operation: &Operation) -> Vec<MessageEnd> {
        match self.kernel(operation) {
            SEND | ARRIVE => {
                MessageEnd::decode(self.words(operation)).expect("the verifier has decoded the same words")
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(start: u64, run: u64, grid: &[(u64, u64)]) -> MessageEnd {
        MessageEnd { peer: 1, tag: 2, device: 3, slice: 4, start, run, grid: grid.to_vec() }
    }

    #[test]
    fn ends_are_decoded_as_they_were_encoded() {
        let ends = [end(0, 16, &[]), end(64, 4, &[(3, 100), (2, 8)]), end(5, 1, &[(7, 1)])];
        let mut words = Vec::new();
        ends.iter().for_each(|end| end.encode(&mut words));
        assert_eq!(MessageEnd::decode(&words).as_deref(), Some(&ends[..]));
        assert_eq!(ends.map(|end| end.bytes()), [16, 24, 7]);
        for cut in [1, 7, 8, words.len() - 1] {
            assert_eq!(MessageEnd::decode(&words[..cut]).map(|ends| ends.len()), (cut == 7).then_some(1));
        }
        for (at, word) in [(0, 1 << 32), (6, 1 + MAX_RANK as u64), (6, u64::MAX)] {
            let mut wrong = words.clone();
            wrong[at] = word;
            assert_eq!(MessageEnd::decode(&wrong), None, "{word} at {at}");
        }
    }

    #[test]
    fn an_end_reaches_to_its_last_run() {
        assert_eq!(end(64, 16, &[]).reach(), Some(80));
        assert_eq!(end(64, 4, &[(3, 100), (2, 8)]).reach(), Some(64 + 200 + 8 + 4));
        assert_eq!(end(0, 4, &[(2, 3)]).reach(), None, "runs overlap");
        assert_eq!(end(0, 4, &[(2, 8), (3, 4)]).reach(), None, "rows overlap");
        assert_eq!(end(0, 0, &[]).reach(), None, "no bytes");
        assert_eq!(end(0, 4, &[(0, 4)]).reach(), None, "no runs");
        assert_eq!(end(u64::MAX, 4, &[]).reach(), None);
        assert_eq!(end(0, 4, &[(u64::MAX, u64::MAX)]).reach(), None);
    }
}
