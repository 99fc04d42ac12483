use proptest::collection::vec;
use proptest::prelude::*;

use super::Direction::{Backward, Both, Forward};
use super::*;
use crate::spmd::Layout;

fn pipe(id: u16, direction: Direction, slot_bytes: u64, depth: u32) -> PipeSpec {
    PipeSpec { id, direction, slot_bytes, depth }
}

fn packed(pipes: &[PipeSpec]) -> Result<BlockLayout, LayoutError> {
    BlockLayout::plan(pipes, &[], Alignment::packed(4), 0)
}

/// Every part's bytes, control areas included.
fn parts(layout: &BlockLayout) -> Vec<Range<u64>> {
    let rings = layout.rings.iter().flat_map(|ring| [ring.range(), ring.control_range()]);
    rings.chain(layout.scratch.iter().cloned()).collect()
}

#[test]
fn a_block_has_room_for_every_slot_of_every_way() {
    let bytes = |pipes: &[PipeSpec]| packed(pipes).unwrap().bytes;
    assert_eq!(bytes(&[pipe(0, Forward, 512, 8)]), 4096);
    assert_eq!(bytes(&[pipe(0, Backward, 512, 16)]), 8192);
    assert_eq!(bytes(&[pipe(0, Both, 512, 4)]), 4096);
    assert_eq!(bytes(&[pipe(0, Forward, 1024, 8), pipe(1, Forward, 2048, 8)]), 24576);
    assert_eq!(bytes(&[PipeSpec::new(0, Forward, 4096)]), 8192, "two slots unless told otherwise");
}

#[test]
fn rings_lie_by_id_and_forward_first_in_whatever_order_they_are_declared() {
    let (two_way, one_way) = (pipe(0, Both, 1024, 8), pipe(1, Forward, 1024, 8));
    let layout = packed(&[two_way, one_way]).unwrap();
    let places: Vec<_> = layout.rings.iter().map(|ring| (ring.pipe, ring.way, ring.offset)).collect();
    assert_eq!(places, [(0, Way::Forward, 0), (0, Way::Backward, 8192), (1, Way::Forward, 16384)]);
    assert_eq!(layout.bytes, 24576);
    assert_eq!(packed(&[one_way, two_way, one_way]).unwrap(), layout, "a repeated declaration adds nothing");
}

#[test]
fn a_pipe_the_halves_declare_differently_is_refused() {
    let conflict = |a, b| packed(&[a, pipe(7, Forward, 8, 1), b]).unwrap_err();
    let small = PipeSpec::new(0, Forward, 512);
    let error = conflict(small, PipeSpec::new(0, Forward, 1024));
    assert_eq!(
        error,
        LayoutError::Conflict { pipe: 0, difference: Difference::SlotBytes(512, 1024) },
        "pipe, field and both values"
    );
    assert_eq!(
        error.to_string(),
        "pipe 0 is declared with slot size 512 and slot size 1024; both halves must declare the same"
    );
    let difference = Difference::Depth(4, 2);
    assert_eq!(conflict(pipe(0, Forward, 512, 4), small), LayoutError::Conflict { pipe: 0, difference });
    let difference = Difference::Direction(Forward, Both);
    assert_eq!(conflict(small, PipeSpec::new(0, Both, 512)), LayoutError::Conflict { pipe: 0, difference });
    assert!(packed(&[small, pipe(0, Forward, 512, 2)]).is_ok(), "the default depth is 2");
}

#[test]
fn no_two_cursors_and_no_two_slices_share_a_line() {
    let pipes = [pipe(0, Forward, 100, 2)];
    let layout = BlockLayout::plan(&pipes, &[], Alignment::CPU, 0).unwrap();
    assert_eq!(layout.rings[0].slot_stride, 128);
    assert_eq!(layout.align % LINE, 0);
    let place = Layout::new("k", layout.workspace(), 8).unwrap().at(64);
    let mut lines = Vec::new();
    for slice in (0..8).map(|index| place.slice(index)) {
        let start = 64 + slice.start as u64;
        assert_eq!(start % LINE, 0);
        let control = start + layout.rings[0].control;
        assert_eq!(control % LINE, 0);
        lines.extend([start / LINE, control / LINE, control / LINE + 1]);
        lines.push((64 + slice.end as u64 - 1) / LINE);
    }
    assert!(lines.is_sorted_by(|a, b| a < b), "{lines:?}");
}

#[test]
fn a_block_declares_its_size_and_its_largest_alignment() {
    let scratch = [Scratch { bytes: 10, align: 1 }, Scratch { bytes: 3, align: 4096 }];
    let layout = BlockLayout::plan(&[], &scratch, Alignment::packed(4), 0).unwrap();
    assert_eq!(layout.workspace(), Workspace { common: 0, block: 4096 + 3, align: 4096 });
}

#[test]
fn a_block_without_parts_needs_no_workspace() {
    let layout = BlockLayout::plan(&[], &[], Alignment::CPU, 0).unwrap();
    let place = Layout::new("k", layout.workspace(), 1_000_000).unwrap();
    assert_eq!((layout.bytes, place.total()), (0, 0));
}

#[test]
fn impossible_parts_are_errors_that_name_them() {
    assert_eq!(packed(&[pipe(3, Forward, 0, 2)]), Err(LayoutError::EmptySlot { pipe: 3 }));
    assert_eq!(packed(&[pipe(3, Forward, 4, 0)]), Err(LayoutError::NoSlots { pipe: 3 }));
    let many: Vec<_> = (0..9).map(|id| pipe(id, Both, 4, 1)).collect();
    assert_eq!(packed(&many), Err(LayoutError::TooMany { what: "rings", count: 18 }));
    let odd = BlockLayout::plan(&[], &[Scratch { bytes: 1, align: 24 }], Alignment::CPU, 0);
    assert_eq!(odd, Err(LayoutError::NotAPowerOfTwo { what: "scratch alignment", value: 24 }));
    let odd = BlockLayout::plan(&[], &[], Alignment::packed(0), 0);
    assert_eq!(odd, Err(LayoutError::NotAPowerOfTwo { what: "block alignment", value: 0 }));
}

#[test]
fn sizes_past_the_largest_address_are_errors() {
    let backward = LayoutError::PartTooLarge(Part::Ring(0, Way::Backward));
    assert_eq!(packed(&[pipe(0, Both, u64::MAX / 4, 4)]), Err(backward));
    let areas = [1, 1].map(|align| Scratch { bytes: u64::MAX, align });
    assert_eq!(BlockLayout::plan(&[], &areas[..1], Alignment::CPU, 0).unwrap().size, u64::MAX);
    let second = LayoutError::PartTooLarge(Part::Scratch(1));
    assert_eq!(BlockLayout::plan(&[], &areas, Alignment::CPU, 0), Err(second));
}

#[test]
fn a_foreign_byte_after_a_part_is_found() {
    let scratch = [Scratch { bytes: 8, align: 4 }];
    let layout = BlockLayout::plan(&[pipe(2, Forward, 12, 2)], &scratch, Alignment::packed(4), 16).unwrap();
    let mut slice = vec![0; layout.size as usize];
    layout.mark_guards(&mut slice);
    parts(&layout).into_iter().for_each(|part| slice[part.start as usize..part.end as usize].fill(1));
    assert_eq!(layout.check_guards(&slice), Ok(()), "every part may be written to its end");
    slice[layout.scratch[0].end as usize + 5] = 1;
    assert_eq!(layout.check_guards(&slice), Err(Overrun { part: Part::Scratch(0), past: 5 }));
    slice[24] = 1;
    let overrun = Overrun { part: Part::Ring(2, Way::Forward), past: 0 };
    assert_eq!(layout.check_guards(&slice), Err(overrun));
    assert_eq!(
        overrun.to_string(),
        "the forward ring of pipe 2 is overrun: the byte 0 past its end was written"
    );
}

fn any_pipes() -> impl Strategy<Value = Vec<PipeSpec>> {
    let direction = prop_oneof![Just(Forward), Just(Backward), Just(Both)];
    let shape = (direction, 1..5000_u64, 1..9_u32);
    vec(shape, 0..6).prop_map(|shapes| {
        let ids = (0..).map(|i: u16| i * 7 % 6);
        let pipe = |(id, (direction, slot_bytes, depth))| PipeSpec { id, direction, slot_bytes, depth };
        ids.zip(shapes).map(pipe).collect()
    })
}

fn any_scratch() -> impl Strategy<Value = Vec<Scratch>> {
    vec((0..5000_u64, 0..10_u32).prop_map(|(bytes, log)| Scratch { bytes, align: 1 << log }), 0..4)
}

fn any_alignment() -> impl Strategy<Value = Alignment> {
    let power = || (0..9_u32).prop_map(|log| 1_u64 << log);
    (power(), power(), power()).prop_map(|(slot, ring, block)| Alignment { slot, ring, block })
}

proptest! {
    #[test]
    fn parts_and_slices_are_disjoint_aligned_and_in_bounds(
        pipes in any_pipes(),
        scratch in any_scratch(),
        alignment in any_alignment(),
        guard in 0..70_u64,
    ) {
        let layout = BlockLayout::plan(&pipes, &scratch, alignment, guard).unwrap();
        for ring in &layout.rings {
            prop_assert_eq!(ring.offset % alignment.ring, 0);
            prop_assert_eq!((ring.offset | ring.slot_stride) % alignment.slot, 0);
            prop_assert!(ring.slot_bytes <= ring.slot_stride && ring.range().end <= layout.bytes);
            prop_assert_eq!(ring.control % LINE, 0);
        }
        for (area, declared) in layout.scratch.iter().zip(&scratch) {
            prop_assert_eq!((area.start % declared.align, area.end - area.start), (0, declared.bytes));
            prop_assert_eq!(layout.align % declared.align, 0);
        }
        let mut ordered = parts(&layout);
        ordered.sort_by_key(|part| (part.start, part.end));
        prop_assert!(ordered.windows(2).all(|pair| pair[0].end + guard <= pair[1].start));
        prop_assert!(ordered.iter().all(|part| part.end + guard <= layout.size));
    }

    #[test]
    fn sizes_near_the_largest_never_wrap(
        slot_bytes in u64::MAX / 64..=u64::MAX,
        depth in 1..=u32::MAX,
        bytes in any::<u64>(),
    ) {
        let scratch = [Scratch { bytes, align: 64 }];
        let exact = u128::from(slot_bytes) * u128::from(depth) + u128::from(bytes);
        match BlockLayout::plan(&[pipe(0, Forward, slot_bytes, depth)], &scratch, Alignment::CPU, 0) {
            Ok(layout) => prop_assert!(u128::from(layout.size) >= exact),
            // The padding and the header of every slot, the lines of the cursors, the rounding of the parts.
            Err(_) => prop_assert!(exact + u128::from(64 + HEADER) * u128::from(depth) + 8 * u128::from(LINE) > u64::MAX.into()),
        }
    }
}
