//! Instances from outside: bytes of the caller, views, which users may touch what at the same time.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use phalanx_immediate::{
    AccessError, CopyError, CopyKind, Element, External, Instance, Layout, Memories, Rect,
};
use phalanx_runtime::Event;

fn rect(lo: &[i64], hi: &[i64]) -> Rect {
    Rect::new(lo, hi).unwrap()
}

fn rows(element: Element, rect: Rect) -> Layout {
    Layout::row_major(element, rect).unwrap()
}

/// An instance of 16-bit numbers that count up from zero, row by row.
fn counting(memories: &Memories, points: Rect) -> Instance {
    let memory = memories.memory("counting", 1 << 16);
    let (instance, _) = memory.create(rows(Element::Bytes(2), points), Event::NONE);
    let fill = |bytes: &mut [u8]| {
        for (number, at) in bytes.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            *at = (number as u16).to_ne_bytes();
        }
    };
    instance.write(fill).unwrap();
    instance
}

fn number(instance: &Instance, point: &[i64]) -> u16 {
    let at = instance.layout().offset(point).unwrap() - instance.layout().base();
    instance.read(|bytes| u16::from_ne_bytes([bytes[at], bytes[at + 1]])).unwrap()
}

#[test]
fn copies_into_bytes_of_the_caller_land_there_and_stay() {
    let memories = Memories::new();
    let points = rect(&[0], &[9]);
    let external = External::writable(vec![0xee; 24].into());
    let target = memories.attach(&external, rows(Element::Bytes(2), points)).unwrap();
    let source = counting(&memories, points);
    let plan = memories.plan(CopyKind::Copy(source), points, &target).unwrap();
    assert_eq!(plan.execute(), Ok(()));
    let external = external.into_bytes().unwrap_err();
    memories.release(target.id(), Event::NONE).unwrap();
    let fault = plan.execute().unwrap_err();
    assert!(fault.to_string().contains("has been released"), "{fault}");
    drop((plan, target));
    let bytes = external.into_bytes().ok().expect("there are no other owners");
    let expected: Vec<u8> = (0..10_u16).flat_map(u16::to_ne_bytes).chain([0xee; 4]).collect();
    assert_eq!(*bytes, expected);
}

#[test]
fn read_only_bytes_are_read_and_refused_as_a_destination() {
    let memories = Memories::new();
    let (points, shared) = (rect(&[0], &[3]), Arc::<[u8]>::from([1, 2, 3, 4]));
    let external = External::read_only(Arc::clone(&shared));
    let source = memories.attach(&external, rows(Element::Bytes(1), points)).unwrap();
    assert_eq!(source.write(|_| ()), Err(AccessError::ReadOnly(source.id())));
    let refused = memories.plan(CopyKind::Fill([0].into()), points, &source).unwrap_err();
    assert_eq!(refused, CopyError::ReadOnly { destination: source.id() });
    assert_eq!(refused.to_string(), "i0.1 is read-only; write to another instance");
    let memory = memories.memory("system", 64);
    let (target, _) = memory.create(rows(Element::Bytes(1), points), Event::NONE);
    memories.plan(CopyKind::Copy(source), points, &target).unwrap().execute().unwrap();
    assert_eq!(target.read(|bytes| bytes.to_vec()), Ok(shared.to_vec()));
}

#[test]
fn bytes_of_the_wrong_size_are_refused() {
    let memories = Memories::new();
    let external = External::writable(vec![0; 39].into());
    let refused = memories.attach(&external, rows(Element::F32, rect(&[1, 1], &[2, 5]))).unwrap_err();
    assert_eq!(refused.to_string(), "[1..=2, 1..=5] of f32 ends at byte 40 of 39; use a smaller layout");
    assert_eq!(memories.ids_used(), 0);
}

#[test]
fn a_part_is_the_same_elements_under_its_own_and_under_zero_based_coordinates() {
    let memories = Memories::new();
    let whole = counting(&memories, rect(&[-3, 10], &[4, 19]));
    let part = whole.view(rect(&[-1, 12], &[2, 15])).unwrap();
    let zero = part.zero_based();
    let twice = zero.view(rect(&[1, 1], &[3, 3])).unwrap().zero_based();
    assert_eq!((zero.rect(), twice.rect()), (&rect(&[0, 0], &[3, 3]), &rect(&[0, 0], &[2, 2])));
    for row in -1..=2 {
        for column in 12..=15 {
            let expected = number(&whole, &[row, column]);
            assert_eq!(i64::from(expected), (row + 3) * 10 + column - 10);
            assert_eq!(number(&part, &[row, column]), expected);
            assert_eq!(number(&zero, &[row + 1, column - 12]), expected);
            if row > -1 && column > 12 {
                assert_eq!(number(&twice, &[row, column - 13]), expected);
            }
        }
    }
    assert!(whole.view(rect(&[-1, 12], &[2, 20])).is_err());
}

#[test]
fn a_field_of_records_is_an_alias() {
    let memories = Memories::new();
    let memory = memories.memory("system", 1 << 10);
    let points = rect(&[5], &[14]);
    // Records of a 4-byte, a 2-byte and another 4-byte field.
    let (records, _) = memory.create(rows(Element::Bytes(10), points), Event::NONE);
    records.write(|bytes| bytes.fill(0xee)).unwrap();
    let field = Layout::strided(Element::Bytes(2), points, 4, &[10]).unwrap();
    let field = records.alias(field).unwrap();
    let source = counting(&memories, points);
    memories.plan(CopyKind::Copy(source), points, &field).unwrap().execute().unwrap();
    let check = |bytes: &[u8]| {
        for (number, record) in bytes.chunks(10).enumerate() {
            assert_eq!(record[4..6], (number as u16).to_ne_bytes());
            assert!(
                record[..4].iter().chain(&record[6..]).all(|byte| *byte == 0xee),
                "the rest is untouched"
            );
        }
    };
    records.read(check).unwrap();
    let beyond = Layout::strided(Element::Bytes(4), points, 8, &[10]).unwrap();
    assert!(records.alias(beyond).unwrap_err().to_string().contains("ends at byte 102 of 100"));
}

#[test]
fn unordered_uses_of_the_same_bytes_are_refused_by_name() {
    let memories = Memories::new();
    let whole = counting(&memories, rect(&[0, 0], &[3, 3]));
    let (left, right) = (rect(&[0, 0], &[3, 1]), rect(&[0, 2], &[3, 3]));
    let plan = |part: Rect| memories.plan(CopyKind::Fill([1].into()), part, &whole).unwrap();
    let (write_left, write_right) = (plan(left), plan(right));
    let column = whole.view(left).unwrap();
    let fault = column.read(|_| write_left.execute().unwrap_err()).unwrap();
    let text =
        "fill c0 into i0.1: writes i0.1 while the host reads it; order one after the other by an event";
    assert_eq!(fault.to_string(), text);
    // The span of the left columns reaches into the right ones: the host sees all bytes of it.
    assert!(column.read(|_| write_right.execute()).unwrap().is_err());
    let last = whole.view(rect(&[3, 0], &[3, 3])).unwrap();
    let first = memories.plan(CopyKind::Fill([1].into()), rect(&[0, 0], &[1, 3]), &whole).unwrap();
    assert_eq!(last.write(|_| first.execute()), Ok(Ok(())), "other rows");
    assert_eq!(
        (write_left.execute(), write_right.execute()),
        (Ok(()), Ok(())),
        "in order there is no conflict"
    );
}

#[test]
fn two_instances_on_the_same_bytes_share_their_users() {
    let memories = Memories::new();
    let external = External::writable(vec![0; 16].into());
    let points = rect(&[0], &[15]);
    let both = [(); 2].map(|()| memories.attach(&external, rows(Element::Bytes(1), points)).unwrap());
    let refused = both[0].write(|_| both[1].read(|_| ())).unwrap().unwrap_err();
    let text = "reads i1.1 while the host writes it; order one after the other by an event";
    assert_eq!(refused.to_string(), text);
    let copy = memories.plan(CopyKind::Copy(both[0].clone()), points, &both[1]).unwrap_err();
    assert_eq!(copy, CopyError::Overlap { instance: both[1].id(), domain: points.into() });
    // Columns of one matrix and those of another on the same bytes are not apart because their coordinates are.
    let matrix = rows(Element::Bytes(1), rect(&[0, 0], &[3, 3]));
    let [a, b] = [(); 2].map(|()| memories.attach(&external, matrix.clone()).unwrap());
    let [left, right] =
        [(a, 0), (b, 2)].map(|(matrix, at)| matrix.view(rect(&[0, at], &[3, at + 1])).unwrap());
    let mixed = memories.plan(CopyKind::Copy(left.zero_based()), rect(&[0, 0], &[3, 1]), &right.zero_based());
    assert!(matches!(mixed, Err(CopyError::Overlap { .. })), "{mixed:?}");
}
