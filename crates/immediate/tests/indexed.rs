//! Gathers and scatters against a naive evaluator that looks at one element at a time.
#![allow(clippy::unwrap_used)]

use phalanx_immediate::{CopyKind, Element, Instance, Layout, Memories, Memory, Rect};
use phalanx_runtime::Event;

use crate::copies::{Guarded, Seed, points, rect};

/// Indices with some space between them, as `element`.
fn indices(memory: &Memory, element: Element, first: i64, values: &[i64]) -> Instance {
    let rect = rect(&[first], &[first + values.len() as i64 - 1]);
    let layout = Layout::strided(element, rect, 3, &[element.bytes() + 1]).unwrap();
    let (all, _) = memory.allocate(layout.end() as u64, 1, Event::NONE).unwrap();
    let instance = all.alias(layout).unwrap();
    all.write(|bytes| {
        for (number, &value) in values.iter().enumerate() {
            let at = 3 + number * (element.bytes() + 1);
            match element {
                Element::I32 => bytes[at..at + 4].copy_from_slice(&(value as i32).to_ne_bytes()),
                _ => bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes()),
            }
        }
    })
    .unwrap();
    instance
}

/// A rectangle of `rows` rows from `first` on, with the same columns as all others.
fn table(first: i64, rows: i64, columns: &[i64]) -> Rect {
    let lo: Vec<i64> = std::iter::once(first).chain(columns.iter().map(|_| -1)).collect();
    let hi: Vec<i64> =
        std::iter::once(first + rows - 1).chain(columns.iter().map(|extent| extent - 2)).collect();
    rect(&lo, &hi)
}

#[test]
fn rows_are_found_by_index() {
    let mut seed = Seed(5);
    let mut copied = 0;
    for case in 0..600 {
        let memories = Memories::new();
        let memory = memories.memory("host", 1 << 16);
        let columns: Vec<i64> = (0..seed.below(3)).map(|_| 1 + seed.below(4) as i64).collect();
        let (walked, rows) = (1 + seed.below(6) as i64, 1 + seed.below(6) as i64);
        let (start, first) = (seed.below(5) as i64 - 2, seed.below(5) as i64 - 2);
        let element = seed.pick(&[Element::F32, Element::I64, Element::Bytes(3)]);
        let values: Vec<i64> = (0..walked).map(|_| first + seed.below(rows as u64) as i64).collect();
        let index = indices(&memory, seed.pick(&[Element::I32, Element::I64]), start, &values);
        let short = Guarded::random(&memory, element, table(start, walked, &columns), &mut seed);
        let long = Guarded::random(&memory, element, table(first, rows, &columns), &mut seed);
        let gathers = case % 2 == 0;
        let (from, to) = if gathers { (&long, &short) } else { (&short, &long) };
        let (source, over) = (from.elements.clone(), *short.elements.rect());
        let kind = match gathers {
            true => CopyKind::Gather { source, indices: index },
            false => CopyKind::Scatter { source, indices: index },
        };
        let (mut expected, given) = (to.bytes(), from.bytes());
        for point in points(&over) {
            let value = values[(point[0] - start) as usize];
            let named: Vec<i64> = std::iter::once(value).chain(point[1..].iter().copied()).collect();
            let (here, there) = if gathers { (&point, &named) } else { (&named, &point) };
            expected[to.range(here)].copy_from_slice(&given[from.range(there)]);
            copied += 1;
        }
        let plan = memories.plan(kind, over, &to.elements).unwrap();
        assert_eq!(plan.bytes(), points(&over).len() * element.bytes());
        plan.execute().unwrap();
        assert_eq!(to.bytes(), expected, "case {case}: {plan} over {over}, rows {values:?}");
        assert_eq!(from.bytes(), given, "case {case}: the source is as before");
    }
    assert!(copied > 5000, "{copied} elements");
}

#[test]
fn an_index_out_of_range_is_named_and_nothing_is_written() {
    let memories = Memories::new();
    let memory = memories.memory("host", 1 << 16);
    let mut seed = Seed(6);
    for (wrong, kind) in [(4, "gather"), (-1, "gather"), (i64::MAX, "scatter"), (i64::MIN, "scatter")] {
        let index = indices(&memory, Element::I64, 0, &[0, 3, wrong, 1]);
        let [short, long] =
            [4, 4].map(|rows| Guarded::random(&memory, Element::F32, table(0, rows, &[3]), &mut seed));
        let (source, id) = (short.elements.clone(), index.id());
        let over = table(0, 4, &[3]);
        let kind = match kind {
            "gather" => CopyKind::Gather { source, indices: index },
            _ => CopyKind::Scatter { source, indices: index },
        };
        let (plan, before) = (memories.plan(kind, over, &long.elements).unwrap(), long.bytes());
        let fault = plan.execute().unwrap_err().to_string();
        let said = format!("index 2 of {id} is {wrong}, but ");
        assert!(fault.contains(&said) && fault.contains("has rows 0 to 3; nothing is copied"), "{fault}");
        assert_eq!(long.bytes(), before);
    }
}

#[test]
fn what_cannot_be_indexed_is_refused() {
    let memories = Memories::new();
    let memory = memories.memory("host", 1 << 16);
    let mut seed = Seed(7);
    let over = table(0, 4, &[3]);
    let [from, to] =
        [0, 0].map(|first| Guarded::random(&memory, Element::F32, table(first, 4, &[3]), &mut seed));
    let floats = Guarded::random(&memory, Element::F32, rect(&[0], &[3]), &mut seed);
    let refused = |source: &Instance, indices: &Instance, to: &Instance| {
        let kind = CopyKind::Gather { source: source.clone(), indices: indices.clone() };
        memories.plan(kind, over, to).unwrap_err().to_string()
    };
    let index = indices(&memory, Element::I32, 0, &[0, 1, 2, 3]);
    let text = refused(&from.elements, &floats.elements, &to.elements);
    assert!(text.ends_with("indices are i32 or i64 along one dimension"), "{text}");
    let text = refused(&from.elements, &index, &from.elements);
    assert!(text.starts_with("source and destination share bytes"), "{text}");
    let line = Guarded::random(&memory, Element::F32, rect(&[0], &[3]), &mut seed);
    let text = refused(&line.elements, &index, &to.elements);
    assert!(text.ends_with("both need the same number of dimensions"), "{text}");
    // Indices and rows that are not there leave nothing to do.
    let far = indices(&memory, Element::I32, 100, &[0, 1]);
    let kind = CopyKind::Gather { source: from.elements.clone(), indices: far };
    assert_eq!(memories.plan(kind, over, &to.elements).unwrap().bytes(), 0);
}
