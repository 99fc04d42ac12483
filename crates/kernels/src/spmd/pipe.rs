//! Pipes between the two halves of a block: bounded queues of tiles over the block's slice of the workspace.
//!
//! A ring has one [`Producer`] and one [`Consumer`]. Tiles arrive whole, once and in order; a producer waits while the
//! ring is full, a consumer while it is empty. An end that is dropped closes its side: a consumer then sees the end of
//! the stream after the last tile. An end dropped by a panic, or whose half returns an error, *fails* its side: the
//! peer's next wait ends with [`PipeError::PeerFailed`].
//!
//! Waiting is a future that never wakes anybody: `push(..).await` and `pop().await` are the places where a half can be
//! left and resumed, nothing more. [`super::halves`] polls the halves, on two threads or in turn on one.
//!
//! What a producer can still push does not depend on when its consumer ends: the tiles that fit the ring are accepted,
//! and found missing at the end of the block. So a wrong count gives the same error however the halves run.

mod cursor;
mod error;
mod ledger;
mod ring;

use std::fmt;
use std::future::poll_fn;
use std::ops::{Deref, Range};
use std::task::Poll;

use arrayvec::ArrayVec;

use super::extent::Extent;
use super::layout::{BlockLayout, MAX_PARTS, Part, RingLayout, Way};
pub use error::{OpenError, PipeError};
pub use ledger::{Ledger, RingState};
use ring::Ring;

/// One of the two programs of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The one that produces forward.
    Matrix,
    /// The one that produces backward.
    Vector,
}

impl Half {
    /// Whether this half has the producing end of a ring of this way.
    pub fn produces(self, way: Way) -> bool {
        (self == Half::Matrix) == (way == Way::Forward)
    }
}

impl fmt::Display for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Half::Matrix => "matrix half",
            Half::Vector => "vector half",
        })
    }
}

/// The end of a ring that fills slots.
pub struct Producer<'a> {
    ring: Ring<'a>,
    pushed: u64,
    /// Tiles known to be freed; looked up again when the ring seems full.
    freed: u64,
}

impl Producer<'_> {
    /// Waits for a free slot, lets `fill` write it, and hands it over.
    ///
    /// `fill` gets the whole slot with whatever it held before, and returns how much of it is valid.
    pub async fn push(&mut self, fill: impl FnOnce(&mut [f32]) -> Extent) -> Result<(), PipeError> {
        poll_fn(|_| self.room()).await?;
        // SAFETY: this is the only producer, and `room` has seen that the consumer has freed the slot's last tile.
        let slot = unsafe { self.ring.slot_mut(self.pushed) };
        let extent = fill(slot);
        let slot_len = self.ring.slot_len();
        let Some(elements) = extent.elements().filter(|&elements| elements <= slot_len) else {
            let (pipe, slot_bytes) = (self.ring.gauge.pipe, slot_len * size_of::<f32>());
            let Extent { rows, columns } = extent;
            return Err(PipeError::TileTooLarge { pipe, rows, columns, slot_bytes });
        };
        // SAFETY: as above; the tile is not yet published.
        unsafe { self.ring.write_header(self.pushed, extent, elements) };
        self.pushed += 1;
        self.ring.gauge.head().advance();
        Ok(())
    }

    /// Whether a slot is free.
    fn room(&mut self) -> Poll<Result<(), PipeError>> {
        let gauge = &self.ring.gauge;
        if self.pushed - self.freed < gauge.depth {
            return Poll::Ready(Ok(()));
        }
        let tail = gauge.tail().read();
        self.freed = tail.count();
        if tail.failed() {
            Poll::Ready(Err(PipeError::PeerFailed { pipe: gauge.pipe, way: gauge.way }))
        } else if self.pushed - self.freed < gauge.depth {
            Poll::Ready(Ok(()))
        } else if tail.closed() {
            Poll::Ready(Err(PipeError::PeerEnded { pipe: gauge.pipe, way: gauge.way, depth: gauge.depth }))
        } else {
            Poll::Pending
        }
    }
}

impl Drop for Producer<'_> {
    fn drop(&mut self) {
        let head = self.ring.gauge.head();
        if std::thread::panicking() { head.fail() } else { head.close() }
    }
}

/// The end of a ring that takes tiles out.
pub struct Consumer<'a> {
    ring: Ring<'a>,
    popped: u64,
    /// Tiles known to be pushed; looked up again when the ring seems empty.
    pushed: u64,
}

impl<'a> Consumer<'a> {
    /// Waits for the next tile; `None` after the last one. The tile is freed when it is dropped.
    pub async fn pop(&mut self) -> Result<Option<Tile<'_, 'a>>, PipeError> {
        if !poll_fn(|_| self.ready()).await? {
            return Ok(None);
        }
        let sequence = self.popped;
        self.popped += 1;
        self.ring.gauge.popped().set(self.popped);
        // SAFETY: this is the only consumer, `ready` has seen the tile published, and the `Tile` frees it when it ends.
        let (values, extent) = unsafe { self.ring.tile(sequence) };
        Ok(Some(Tile { values, extent, ring: &self.ring }))
    }

    /// Whether a tile is there, or else none will come.
    fn ready(&mut self) -> Poll<Result<bool, PipeError>> {
        if self.popped < self.pushed {
            return Poll::Ready(Ok(true));
        }
        let gauge = &self.ring.gauge;
        let head = gauge.head().read();
        self.pushed = head.count();
        if head.failed() {
            Poll::Ready(Err(PipeError::PeerFailed { pipe: gauge.pipe, way: gauge.way }))
        } else if self.popped < self.pushed {
            Poll::Ready(Ok(true))
        } else if head.closed() {
            Poll::Ready(Ok(false))
        } else {
            Poll::Pending
        }
    }
}

impl Drop for Consumer<'_> {
    fn drop(&mut self) {
        let tail = self.ring.gauge.tail();
        if std::thread::panicking() { tail.fail() } else { tail.close() }
    }
}

/// A tile taken out of a ring: its valid elements, row after row.
///
/// It borrows the consumer mutably, so a half holds one tile at a time and frees them in order.
pub struct Tile<'c, 'a> {
    values: &'c [f32],
    /// How much of the tile is valid: all that can be seen of it.
    pub extent: Extent,
    ring: &'c Ring<'a>,
}

impl Deref for Tile<'_, '_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        self.values
    }
}

impl Drop for Tile<'_, '_> {
    fn drop(&mut self) {
        self.ring.gauge.tail().advance();
    }
}

/// The ends of a block's pipes that one half has.
pub struct Ends<'a> {
    half: Half,
    producers: ArrayVec<Producer<'a>, MAX_PARTS>,
    consumers: ArrayVec<Consumer<'a>, MAX_PARTS>,
}

impl<'a> Ends<'a> {
    fn new(half: Half) -> Self {
        Ends { half, producers: ArrayVec::new(), consumers: ArrayVec::new() }
    }

    fn add(&mut self, ring: Ring<'a>) {
        if self.half.produces(ring.gauge.way) {
            self.producers.push(Producer { ring, pushed: 0, freed: 0 });
        } else {
            self.consumers.push(Consumer { ring, popped: 0, pushed: 0 });
        }
    }

    /// Takes the end through which this half pushes tiles into `pipe`.
    pub fn producer(&mut self, pipe: u16) -> Result<Producer<'a>, PipeError> {
        let place = self.producers.iter().position(|end| end.ring.gauge.pipe == pipe);
        let none = PipeError::NoEnd { half: self.half, pipe, end: "producer" };
        place.map(|place| self.producers.remove(place)).ok_or(none)
    }

    /// Takes the end through which this half pops tiles out of `pipe`.
    pub fn consumer(&mut self, pipe: u16) -> Result<Consumer<'a>, PipeError> {
        let place = self.consumers.iter().position(|end| end.ring.gauge.pipe == pipe);
        let none = PipeError::NoEnd { half: self.half, pipe, end: "consumer" };
        place.map(|place| self.consumers.remove(place)).ok_or(none)
    }
}

/// A block's slice, divided up.
pub struct Opened<'a> {
    /// The matrix half's ends.
    pub matrix: Ends<'a>,
    /// The vector half's ends.
    pub vector: Ends<'a>,
    /// The scratch areas as declared.
    pub scratch: ArrayVec<&'a mut [u8], MAX_PARTS>,
    /// The books of all rings.
    pub ledger: Ledger<'a>,
}

/// Divides a block's slice up; all rings are empty, whatever it held before.
pub fn open<'a>(layout: &BlockLayout, slice: &'a mut [u8]) -> Result<Opened<'a>, OpenError> {
    if (slice.len() as u64) < layout.size {
        return Err(OpenError::TooShort { have: slice.len(), need: layout.size });
    }
    if !(slice.as_ptr().addr() as u64).is_multiple_of(layout.align) {
        return Err(OpenError::Misaligned { align: layout.align });
    }
    let mut rest = Rest { bytes: slice, start: 0 };
    let part = |ring: &RingLayout| Part::Ring(ring.pipe, ring.way);
    let slots: ArrayVec<_, MAX_PARTS> =
        layout.rings.iter().map(|ring| rest.cut(part(ring), ring.range())).collect::<Result<_, _>>()?;
    let areas = layout.scratch.iter().cloned().enumerate();
    let scratch =
        areas.map(|(index, area)| rest.cut(Part::Scratch(index), area)).collect::<Result<_, _>>()?;
    let (matrix, vector) = (Ends::new(Half::Matrix), Ends::new(Half::Vector));
    let mut opened = Opened { matrix, vector, scratch, ledger: Ledger::default() };
    for (ring, slots) in layout.rings.iter().zip(slots) {
        let control = rest.cut(Part::Control(ring.pipe, ring.way), ring.control_range())?;
        let [first, second] = Ring::open(ring, slots, control)?;
        opened.ledger.gauges.push(first.gauge);
        opened.matrix.add(first);
        opened.vector.add(second);
    }
    Ok(opened)
}

/// What is left of a slice whose parts are cut off in order.
struct Rest<'a> {
    bytes: &'a mut [u8],
    start: u64,
}

impl<'a> Rest<'a> {
    fn cut(&mut self, part: Part, range: Range<u64>) -> Result<&'a mut [u8], OpenError> {
        let skip = range.start.checked_sub(self.start).ok_or(OpenError::Overlap(part))?;
        let bytes = std::mem::take(&mut self.bytes);
        let (_, bytes) = bytes.split_at_mut_checked(skip as usize).ok_or(OpenError::Overlap(part))?;
        let len = (range.end - range.start) as usize;
        let (cut, rest) = bytes.split_at_mut_checked(len).ok_or(OpenError::Overlap(part))?;
        *self = Rest { bytes: rest, start: range.end };
        Ok(cut)
    }
}
