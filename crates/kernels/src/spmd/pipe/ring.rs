//! The memory of one ring: slots of floats, a header per slot, and the cursors of both ends.
//!
//! All unsafe code of the pipes is here. It rests on two rules that the ends keep: a ring has one producer and one
//! consumer, and slot `k % depth` belongs to the producer from `freed = k - depth + 1` until it publishes `pushed =
//! k + 1`, and to the consumer from then until it publishes `freed = k + 1`.

use std::marker::PhantomData;

use super::cursor::{Count, Cursor, Line};
use super::error::OpenError;
use crate::spmd::extent::Extent;
use crate::spmd::layout::{HEADER, LINE, Part, RingLayout, Way};

/// What travels with a tile.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Header {
    sequence: u64,
    rows: usize,
    columns: usize,
    bytes: usize,
}

const _: () = assert!(size_of::<Header>() == HEADER as usize && align_of::<Line>() == LINE as usize);

/// The cursors of a ring, which everybody may look at.
#[derive(Clone, Copy)]
pub(super) struct Gauge<'a> {
    pub pipe: u16,
    pub way: Way,
    pub depth: u64,
    producer: &'a Line,
    consumer: &'a Line,
}

impl<'a> Gauge<'a> {
    /// The producer's: tiles pushed.
    pub fn head(&self) -> &'a Cursor {
        &self.producer.cursor
    }

    /// The consumer's: tiles freed.
    pub fn tail(&self) -> &'a Cursor {
        &self.consumer.cursor
    }

    /// The consumer's: tiles popped.
    pub fn popped(&self) -> &'a Count {
        &self.consumer.taken
    }
}

/// One end's view of a ring; the two ends are the only ones that have it.
pub(super) struct Ring<'a> {
    pub gauge: Gauge<'a>,
    slots: *mut f32,
    slot_stride: usize,
    slot_len: usize,
    headers: *mut Header,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: the pointers lead into memory borrowed for 'a, which the two ends share by the rules above.
unsafe impl Send for Ring<'_> {}

impl<'a> Ring<'a> {
    /// Both ends' views of an empty ring over `slots` and `control`, which are laid out as `layout` says.
    pub fn open(
        layout: &RingLayout,
        slots: &'a mut [u8],
        control: &'a mut [u8],
    ) -> Result<[Self; 2], OpenError> {
        let element = align_of::<f32>();
        let slot_stride = layout.slot_stride as usize;
        if !slots.as_ptr().addr().is_multiple_of(element) || !slot_stride.is_multiple_of(element) {
            return Err(OpenError::SlotsMisaligned(Part::Ring(layout.pipe, layout.way)));
        }
        if layout.slot_bytes > layout.slot_stride {
            return Err(OpenError::SlotTooLong {
                part: Part::Ring(layout.pipe, layout.way),
                bytes: layout.slot_bytes,
                stride: layout.slot_stride,
            });
        }
        let range = layout.range();
        assert_eq!(slots.len() as u64, range.end - range.start, "the slice is cut as its layout says");
        let range = layout.control_range();
        assert_eq!(control.len() as u64, range.end - range.start, "the slice is cut as its layout says");
        assert!(control.as_ptr().addr().is_multiple_of(LINE as usize), "the slice is aligned");
        control.fill(0);
        let control = control.as_mut_ptr();
        // SAFETY: aligned, in bounds, borrowed for 'a, and all zero, which is a cursor at its start.
        let producer = unsafe { &*control.cast::<Line>() };
        // SAFETY: one line further, still in bounds: an area has two lines and the headers.
        let second = unsafe { control.add(LINE as usize) };
        // SAFETY: as for the first line.
        let consumer = unsafe { &*second.cast::<Line>() };
        // SAFETY: two lines further, where the headers are, one for each slot.
        let headers = unsafe { control.add(2 * LINE as usize) }.cast::<Header>();
        let RingLayout { pipe, way, .. } = *layout;
        let gauge = Gauge { pipe, way, depth: layout.depth.into(), producer, consumer };
        let slot_len = layout.slot_bytes as usize / size_of::<f32>();
        let slots = slots.as_mut_ptr().cast::<f32>();
        let slot_stride = slot_stride / element;
        Ok([(); 2].map(|()| Ring { gauge, slots, slot_stride, slot_len, headers, memory: PhantomData }))
    }

    /// How many floats a slot holds.
    pub fn slot_len(&self) -> usize {
        self.slot_len
    }

    /// The slot of tile `sequence`, to write.
    ///
    /// # Safety
    /// The caller is the producer, the slot is its own by the rules of this file, and it has no other reference to it.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slot_mut(&self, sequence: u64) -> &mut [f32] {
        // SAFETY: the slot's index is below `depth`, so it lies in the ring.
        let start = unsafe { self.slots.add(self.index(sequence) * self.slot_stride) };
        // SAFETY: in bounds and aligned (checked in `open`), any bits are a float, unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(start, self.slot_len) }
    }

    /// Writes the header of tile `sequence`, whose valid elements the slot can hold.
    ///
    /// # Safety
    /// As for `slot_mut`.
    pub unsafe fn write_header(&self, sequence: u64, extent: Extent, elements: usize) {
        let Extent { rows, columns } = extent;
        let header = Header { sequence, rows, columns, bytes: elements * size_of::<f32>() };
        // SAFETY: the index is below `depth`, so the header lies in the control area.
        let place = unsafe { self.headers.add(self.index(sequence)) };
        // SAFETY: in bounds, aligned, and the producer's own by the caller's promise.
        unsafe { place.write(header) };
    }

    /// The valid elements of tile `sequence` and their extent.
    ///
    /// # Safety
    /// The caller is the consumer and the slot is its own, for as long as it holds the result.
    pub unsafe fn tile(&self, sequence: u64) -> (&[f32], Extent) {
        // SAFETY: the index is below `depth`, so the header lies in the control area.
        let place = unsafe { self.headers.add(self.index(sequence)) };
        // SAFETY: the producer has written it before it published the tile.
        let header = unsafe { place.read() };
        debug_assert_eq!(header.sequence, sequence, "a slot holds the tile its cursor says");
        // SAFETY: the slot's index is below `depth`, so it lies in the ring.
        let start = unsafe { self.slots.add(self.index(sequence) * self.slot_stride) };
        // SAFETY: the header's bytes fit the slot (checked on push), which is not written while it is the consumer's.
        let values = unsafe { std::slice::from_raw_parts(start, header.bytes / size_of::<f32>()) };
        (values, Extent::new(header.rows, header.columns))
    }

    fn index(&self, sequence: u64) -> usize {
        (sequence % self.gauge.depth) as usize
    }
}
