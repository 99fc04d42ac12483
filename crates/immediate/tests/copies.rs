//! Copies, fills and reductions from outside, against a naive evaluator that looks at one point at a time.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::mpsc;

use phalanx_immediate::{
    CopyError, CopyKind, CopyPlan, Element, Initial, Instance, Layout, MAX_INLINE_COPY, Memories, Memory,
    Rebound, Rect, Reduction,
};
use phalanx_runtime::{Cause, Event};

/// Numbers that look random.
pub(crate) struct Seed(pub(crate) u64);

impl Seed {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    fn order(&mut self, rank: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..rank).collect();
        (1..rank).for_each(|last| order.swap(last, self.below(last as u64 + 1) as usize));
        order
    }
}

pub(crate) fn rect(lo: &[i64], hi: &[i64]) -> Rect {
    Rect::new(lo, hi).unwrap()
}

/// Every point of `rect`, one by one.
pub(crate) fn points(rect: &Rect) -> Vec<Vec<i64>> {
    let mut points = vec![Vec::new()];
    for (lo, hi) in rect.lo().iter().zip(rect.hi()) {
        let longer = |point: Vec<i64>| (*lo..=*hi).map(move |at| [point.clone(), vec![at]].concat());
        points = points.into_iter().flat_map(longer).collect();
    }
    points
}

/// An instance with bytes around and between its elements that must not be touched.
pub(crate) struct Guarded {
    all: Instance,
    pub(crate) elements: Instance,
}

impl Guarded {
    /// Elements of `rect` in some order with some padding, and random bytes everywhere.
    pub(crate) fn random(memory: &Memory, element: Element, rect: Rect, seed: &mut Seed) -> Guarded {
        let (base, mut stride) = (seed.below(40), element.bytes() as u64 + seed.pick(&[0, 0, 3]));
        let mut strides = vec![0; rect.rank()];
        for dim in seed.order(rect.rank()) {
            strides[dim] = stride as usize;
            stride = stride * rect.extent(dim) + seed.pick(&[0, 0, 5]);
        }
        let layout = Layout::strided(element, rect, base as usize, &strides).unwrap();
        let (all, ready) = memory.allocate(layout.end() as u64 + seed.below(40), 64, Event::NONE).unwrap();
        assert_eq!(ready, Event::NONE);
        let guarded = Guarded { elements: all.alias(layout).unwrap(), all };
        guarded.all.write(|bytes| bytes.iter_mut().for_each(|byte| *byte = seed.next() as u8)).unwrap();
        guarded
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.all.read(<[u8]>::to_vec).unwrap()
    }

    /// Where the element of `point` is, from first principles.
    pub(crate) fn range(&self, point: &[i64]) -> std::ops::Range<usize> {
        let layout = self.elements.layout();
        let steps = point.iter().zip(layout.rect().lo()).zip(layout.strides());
        let at = layout.base() + steps.map(|((at, lo), stride)| (at - lo) as usize * stride).sum::<usize>();
        at..at + layout.element().bytes()
    }
}

/// Joins two elements, as bytes.
fn join(element: Element, op: Reduction, a: &[u8], b: &[u8]) -> Vec<u8> {
    macro_rules! join {
        ($type:ty, $sum:expr, $nan:expr) => {{
            let [a, b] = [a, b].map(|bytes| <$type>::from_ne_bytes(bytes.try_into().unwrap()));
            let value = match op {
                Reduction::Sum => $sum(a, b),
                _ if $nan(a) => a,
                _ if $nan(b) => b,
                Reduction::Max if a > b => a,
                Reduction::Min if a < b => a,
                _ => b,
            };
            value.to_ne_bytes().to_vec()
        }};
    }
    match element {
        Element::F32 => join!(f32, |a, b| a + b, f32::is_nan),
        Element::F64 => join!(f64, |a, b| a + b, f64::is_nan),
        Element::I32 => join!(i32, i32::wrapping_add, |_| false),
        Element::I64 => join!(i64, i64::wrapping_add, |_| false),
        Element::Bytes(_) => unreachable!("bytes are no numbers"),
    }
}

/// Whether two elements are the same number, or both are none: bits of a computed NaN are the machine's.
fn same(element: Element, a: &[u8], b: &[u8]) -> bool {
    let nan = |bytes: &[u8]| match element {
        Element::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        Element::F64 => f64::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        _ => false,
    };
    a == b || (nan(a) && nan(b))
}

/// Does the copy with a plan and naively, and compares all bytes of the destination. How many points there were.
fn check(memories: &Memories, kind: CopyKind, over: &Rect, sources: &[Guarded], to: &Guarded) -> usize {
    let element = to.elements.layout().element();
    let before = to.bytes();
    let plan = memories.plan(kind.clone(), *over, &to.elements).unwrap();
    assert_eq!(plan.execute(), Ok(()));
    let after = to.bytes();
    let mut expected = before.clone();
    let from: Vec<Vec<u8>> = sources.iter().map(Guarded::bytes).collect();
    let inside = |point: &[i64]| sources.iter().all(|source| source.elements.rect().contains_point(point));
    let mut n_points = 0;
    for point in
        points(to.elements.rect()).into_iter().filter(|point| over.contains_point(point) && inside(point))
    {
        let of = |source: usize| &from[source][sources[source].range(&point)];
        let value = match &kind {
            CopyKind::Fill(pattern) => pattern.repeat(element.bytes() / pattern.len()),
            CopyKind::Copy(_) => of(0).to_vec(),
            CopyKind::Gather { .. } | CopyKind::Scatter { .. } => unreachable!("see `indexed`"),
            CopyKind::Reduce { op, start, .. } => {
                let (first, rest) = match start {
                    Initial::Destination => (before[to.range(&point)].to_vec(), 0),
                    Initial::FirstSource => (of(0).to_vec(), 1),
                };
                (rest..sources.len()).fold(first, |value, source| join(element, *op, &value, of(source)))
            }
        };
        let at = to.range(&point);
        assert!(same(element, &after[at.clone()], &value), "{kind:?} at {point:?}");
        expected[at.clone()].copy_from_slice(&after[at]);
        n_points += 1;
    }
    assert_eq!(after, expected, "{kind:?} over {over} changes nothing else");
    assert_eq!(plan.bytes(), n_points * element.bytes());
    n_points
}

/// A rectangle near `origin`, now and then an empty one.
fn near(origin: &[i64], seed: &mut Seed) -> Rect {
    let longest = [20, 12, 8, 5, 4, 4][origin.len() - 1];
    let lo: Vec<i64> = origin.iter().map(|at| at + seed.below(2) as i64).collect();
    let empty = seed.below(16) == 0;
    let longer = |lo: &i64| lo + 1 + seed.below(longest - 1) as i64;
    let mut hi: Vec<i64> = lo.iter().map(longer).collect();
    if empty {
        hi[0] = lo[0].saturating_sub(1);
    }
    rect(&lo, &hi)
}

fn origin(rank: usize, seed: &mut Seed) -> Vec<i64> {
    let far = [0, -1000, 1 << 40, i64::MIN, i64::MAX - 20];
    (0..rank).map(|_| seed.pick(&far)).collect()
}

#[test]
fn copies_of_any_rectangle_change_exactly_the_named_elements() {
    let mut seed = Seed(1);
    let mut n_points = 0;
    for round in 0..1500 {
        let memories = Memories::new();
        let memory = memories.memory("system", 1 << 20);
        let origin = origin(1 + round % 6, &mut seed);
        let element = Element::Bytes(seed.pick(&[1, 2, 3, 4, 8, 12, 16, 64]));
        let [from, to, over] = [(); 3].map(|()| near(&origin, &mut seed));
        let from = Guarded::random(&memory, element, from, &mut seed);
        let to = Guarded::random(&memory, element, to, &mut seed);
        n_points += check(&memories, CopyKind::Copy(from.elements.clone()), &over, &[from], &to);
    }
    assert!(n_points > 10_000, "{n_points} points");
}

#[test]
fn fills_of_any_rectangle_change_exactly_the_named_elements() {
    let mut seed = Seed(2);
    let mut n_points = 0;
    for round in 0..600 {
        let memories = Memories::new();
        let memory = memories.memory("system", 1 << 20);
        let origin = origin(1 + round % 6, &mut seed);
        let bytes = seed.pick(&[1, 2, 3, 8, 12, 64]);
        let element = Element::Bytes(bytes * seed.pick(&[1, 1, 2]));
        let pattern = (0..bytes).map(|_| seed.next() as u8).collect();
        let [to, over] = [(); 2].map(|()| near(&origin, &mut seed));
        let to = Guarded::random(&memory, element, to, &mut seed);
        n_points += check(&memories, CopyKind::Fill(pattern), &over, &[], &to);
    }
    assert!(n_points > 10_000, "{n_points} points");
}

#[test]
fn reductions_of_any_rectangle_go_in_the_order_of_the_sources() {
    let mut seed = Seed(3);
    let mut n_points = 0;
    for round in 0..1500 {
        let memories = Memories::new();
        let memory = memories.memory("system", 1 << 20);
        let origin = origin(1 + round % 6, &mut seed);
        let element = seed.pick(&[Element::F32, Element::F64, Element::I32, Element::I64]);
        let op = seed.pick(&[Reduction::Sum, Reduction::Max, Reduction::Min]);
        let start = seed.pick(&[Initial::Destination, Initial::FirstSource]);
        let [to, over] = [(); 2].map(|()| near(&origin, &mut seed));
        let to = Guarded::random(&memory, element, to, &mut seed);
        let source = |seed: &mut Seed| Guarded::random(&memory, element, near(&origin, seed), seed);
        let guarded: Vec<Guarded> = (0..1 + seed.below(4)).map(|_| source(&mut seed)).collect();
        let sources = guarded.iter().map(|source| source.elements.clone()).collect();
        n_points += check(&memories, CopyKind::Reduce { op, start, sources }, &over, &guarded, &to);
    }
    assert!(n_points > 10_000, "{n_points} points");
}

#[test]
fn transposing_copies_work_for_all_orders_of_up_to_three_dimensions() {
    let orders: [&[&[usize]]; 3] = [
        &[&[0]],
        &[&[0, 1], &[1, 0]],
        &[&[0, 1, 2], &[0, 2, 1], &[1, 0, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0]],
    ];
    let memories = Memories::new();
    let mut seed = Seed(4);
    for (orders, extents) in orders.into_iter().zip([&[70][..], &[70, 19], &[5, 70, 19]]) {
        for (element, (a, b)) in [1, 2, 3, 4, 8, 16, 24].into_iter().flat_map(|bytes| {
            orders
                .iter()
                .flat_map(|a| orders.iter().map(move |b| (a, b)))
                .map(move |pair| (Element::Bytes(bytes), pair))
        }) {
            let memory = memories.memory("system", 1 << 20);
            let space = Rect::sized(&vec![-7; extents.len()], extents).unwrap();
            let make = |order: &[usize], seed: &mut Seed| {
                let guarded = Guarded::random(&memory, element, space, seed);
                let layout = Layout::ordered(element, space, order).unwrap();
                Guarded { elements: guarded.all.alias(layout).unwrap(), all: guarded.all }
            };
            let (from, to) = (make(a, &mut seed), make(b, &mut seed));
            check(&memories, CopyKind::Copy(from.elements.clone()), &space, &[from], &to);
        }
    }
}

#[test]
fn patterns_of_all_sizes_fill_long_and_short_runs() {
    let memories = Memories::new();
    let mut seed = Seed(5);
    for bytes in [1, 2, 3, 8, 12, 64, 4096] {
        for uniform in [false, true] {
            let memory = memories.memory("system", 1 << 24);
            let space = rect(&[-1, 3], &[1, 130]);
            let to = Guarded::random(&memory, Element::Bytes(bytes), space, &mut seed);
            let pattern: Box<[u8]> = (0..bytes).map(|at| if uniform { 9 } else { at as u8 ^ 0x5a }).collect();
            check(&memories, CopyKind::Fill(pattern.clone()), &space, &[], &to);
            let dense = Layout::row_major(Element::Bytes(bytes), space).unwrap();
            let to = Guarded { elements: to.all.alias(dense).unwrap(), all: to.all };
            check(&memories, CopyKind::Fill(pattern.clone()), &space, &[], &to);
            check(&memories, CopyKind::Fill(pattern), &rect(&[0, 50], &[1, 50]), &[], &to);
        }
    }
}

/// An instance of 64-bit integers with these values.
fn integers(memories: &Memories, values: &[i64]) -> Instance {
    let memory = memories.memory("integers", 8 * values.len() as u64);
    let space = Rect::sized(&[0], &[values.len() as u64]).unwrap();
    let (instance, _) = memory.create(Layout::row_major(Element::I64, space).unwrap(), Event::NONE);
    let write = |bytes: &mut [u8]| {
        let pairs = bytes.as_chunks_mut::<8>().0.iter_mut().zip(values);
        pairs.for_each(|(to, value)| *to = value.to_ne_bytes());
    };
    instance.write(write).unwrap();
    instance
}

fn values(instance: &Instance) -> Vec<i64> {
    let numbers =
        |bytes: &[u8]| bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_ne_bytes(*bytes)).collect();
    instance.read(numbers).unwrap()
}

fn copy(memories: &Memories, from: &Instance, to: &Instance) -> Arc<CopyPlan> {
    Arc::new(memories.plan(CopyKind::Copy(from.clone()), *from.rect(), to).unwrap())
}

#[test]
fn concurrent_reductions_into_the_same_elements_lose_nothing() {
    let memories = Memories::new();
    let total = integers(&memories, &[0; 8000]);
    let plan = |value: i64| {
        let sources = vec![integers(&memories, &[value; 8000])];
        let kind = CopyKind::Reduce { op: Reduction::Sum, start: Initial::Destination, sources };
        Arc::new(memories.plan(kind, rect(&[10], &[7989]), &total).unwrap())
    };
    let plans = [1, 1000, 1_000_000].map(plan);
    std::thread::scope(|scope| {
        for plan in &plans {
            let launch = || assert_eq!(memories.copy(plan, Event::NONE), Event::NONE);
            scope.spawn(move || (0..500).for_each(|_| launch()));
        }
    });
    let inside = |at: i64| (10..7990).contains(&at);
    let expected: Vec<i64> = (0..8000).map(|at| if inside(at) { 500_500_500 } else { 0 }).collect();
    assert_eq!(values(&total), expected);
    let fault = total.read(|_| plans[0].execute().unwrap_err()).unwrap();
    let why = "reduces into i0.1 while the host reads it; order one after the other by an event";
    assert_eq!(fault.to_string(), format!("reduction c0 into i0.1: {why}"), "turns are for reductions only");
}

#[test]
fn copies_wait_for_their_event_small_ones_inline_and_large_ones_in_the_background() {
    let memories = Memories::new();
    let events = Arc::clone(memories.events());
    for n_values in [1000, MAX_INLINE_COPY / 8 + 1] {
        let numbers: Vec<i64> = (0..n_values as i64).collect();
        let (a, b, c) = (
            integers(&memories, &numbers),
            integers(&memories, &vec![0; n_values]),
            integers(&memories, &vec![0; n_values]),
        );
        let start = events.user();
        let first = memories.copy(&copy(&memories, &a, &b), start.event());
        let second = memories.copy(&copy(&memories, &b, &c), first);
        assert_eq!((events.outcome(second), values(&c)[1]), (None, 0));
        let (send, receive) = mpsc::channel();
        events.subscribe(second, move |outcome| {
            send.send((outcome.clone(), std::thread::current().id())).unwrap()
        });
        events.trigger(start).unwrap();
        let (outcome, thread) = receive.recv().unwrap();
        assert_eq!((outcome, values(&c)), (Ok(()), numbers));
        assert_eq!(thread == std::thread::current().id(), n_values == 1000);
    }
}

#[test]
fn a_poisoned_event_poisons_a_chain_of_copies_of_which_none_runs() {
    let memories = Memories::new();
    let events = Arc::clone(memories.events());
    let (a, b) = (integers(&memories, &[1; 9]), integers(&memories, &[0; 9]));
    let start = events.user();
    let first = memories.copy(&copy(&memories, &a, &b), start.event());
    let second = memories.copy(&copy(&memories, &b, &a), first);
    events.cancel(start, "somebody").unwrap();
    for event in [first, second, memories.copy(&copy(&memories, &a, &b), second)] {
        let fault = events.outcome(event).unwrap().unwrap_err();
        assert_eq!((fault.operation(), fault.cause()), ("somebody", &Cause::Cancelled));
    }
    assert_eq!((values(&a), values(&b)), (vec![1; 9], vec![0; 9]));
}

#[test]
fn a_copy_before_its_instance_is_ready_is_refused_by_name() {
    let memories = Memories::new();
    let events = memories.events();
    let memory = memories.memory("system", 64);
    let layout = Layout::row_major(Element::I64, rect(&[0], &[7])).unwrap();
    let start = events.user();
    let (late, ready) = memory.create(layout, start.event());
    let plan = copy(&memories, &integers(&memories, &[3; 8]), &late);
    let fault = events.outcome(memories.copy(&plan, Event::NONE)).unwrap().unwrap_err();
    assert_eq!(fault.to_string(), "copy c0 into i0.1: i0.1 is not ready; wait for its ready event");
    let done = memories.copy(&plan, ready);
    events.trigger(start).unwrap();
    assert_eq!((events.outcome(done), values(&late)), (Some(Ok(())), vec![3; 8]));
}

#[test]
fn a_plan_never_touches_what_took_the_place_of_its_instance() {
    let memories = Memories::new();
    let memory = memories.memory("system", 256);
    let (space, wider) = (rect(&[0], &[7]), rect(&[-2], &[9]));
    let create = |rect: &Rect| {
        let (instance, ready) = memory.create(Layout::row_major(Element::I64, *rect).unwrap(), Event::NONE);
        assert_eq!(ready, Event::NONE);
        instance.write(|bytes| bytes.fill(0)).unwrap();
        instance
    };
    let source = integers(&memories, &[5; 8]);
    let first = create(&space);
    let mut plan = memories.plan(CopyKind::Copy(source), space, &first).unwrap();
    memories.release(first.id(), Event::NONE).unwrap();
    let second = create(&space);
    assert_eq!(second.id().index(), first.id().index(), "the same number and the same bytes");
    let fault = plan.execute().unwrap_err();
    assert_eq!(
        fault.to_string(),
        "copy c0 into i1.1: i1.1 has been released; name the instance that took its place"
    );
    assert_eq!(values(&second), [0; 8]);
    assert_eq!(plan.rebind(first.id(), &second), Ok(Rebound::Rebased));
    assert_eq!((plan.execute(), values(&second)), (Ok(()), vec![5; 8]));
    memories.release(second.id(), Event::NONE).unwrap();
    let third = create(&wider);
    assert_eq!(plan.rebind(second.id(), &third), Ok(Rebound::Replanned));
    assert_eq!((plan.execute(), &values(&third)[..]), (Ok(()), &[0, 0, 5, 5, 5, 5, 5, 5, 5, 5, 0, 0][..]));
    let unused = plan.rebind(first.id(), &third).unwrap_err();
    assert_eq!(unused.to_string(), "copy c0 does not use i1.1; it uses i1.3");
}

#[test]
fn columns_of_one_matrix_can_be_copied_onto_each_other_unless_they_share_elements() {
    let memories = Memories::new();
    let memory = memories.memory("system", 1 << 10);
    let layout = Layout::row_major(Element::I64, rect(&[0, 0], &[2, 3])).unwrap();
    let (matrix, _) = memory.create(layout, Event::NONE);
    let column =
        |at: i64, width: i64| matrix.view(rect(&[0, at], &[2, at + width - 1])).unwrap().zero_based();
    let space = rect(&[0, 0], &[2, 1]);
    matrix.write(|bytes| (0..).zip(bytes).for_each(|(at, byte)| *byte = at)).unwrap();
    let before = values(&matrix);
    memories.plan(CopyKind::Copy(column(0, 2)), space, &column(2, 2)).unwrap().execute().unwrap();
    let expected: Vec<i64> = before.chunks(4).flat_map(|row| [row[0], row[1], row[0], row[1]]).collect();
    assert_eq!(values(&matrix), expected);
    let refused = memories.plan(CopyKind::Copy(column(0, 2)), space, &column(1, 2)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "source and destination share bytes of i0.1 over [0..=2, 0..=1]; go through another instance"
    );
}

#[test]
fn plans_that_cannot_be_are_named() {
    let memories = Memories::new();
    let to = integers(&memories, &[0; 4]);
    let memory = memories.memory("system", 1 << 10);
    let other = |element| memory.create(Layout::row_major(element, rect(&[0], &[3])).unwrap(), Event::NONE).0;
    let text =
        |kind: CopyKind, over: Rect, to: &Instance| memories.plan(kind, over, to).unwrap_err().to_string();
    let space = rect(&[0], &[3]);
    assert_eq!(
        text(CopyKind::Fill([1, 2, 3].into()), space, &to),
        "a pattern of 3 bytes for elements of i64; an element must be one or several patterns"
    );
    let floats = other(Element::F32);
    assert_eq!(
        text(CopyKind::Copy(floats), space, &to),
        "i1.1 holds f32 and i0.1 holds i64; copy between elements of one size, reduce one type"
    );
    let sum = |sources| CopyKind::Reduce { op: Reduction::Sum, start: Initial::Destination, sources };
    assert!(text(sum(vec![other(Element::F64)]), space, &to).contains("holds f64 and i0.1 holds i64"));
    assert_eq!(text(sum(vec![]), space, &to), "0 sources of a reduction; it has 1 to 64");
    assert_eq!(
        text(sum(vec![to.clone()]), space, &other(Element::Bytes(8))),
        "i3.1 holds bytes[8], which cannot be reduced; use f32, f64, i32 or i64"
    );
    let plane = rect(&[0, 0], &[3, 3]);
    let ranks = memories.plan(CopyKind::Fill([0].into()), plane, &to).unwrap_err();
    assert_eq!(ranks, CopyError::Ranks { instance: to.id(), has: space.into(), rect: plane.into() });
}
