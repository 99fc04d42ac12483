//! Programs of several lanes: waits, foreign slices, tiles.

use phalanx_ir::TensorType;
use phalanx_program::{
    Builder, Draft, Port, PortKind, PortTile, Program, ProgramError, RECEIVE, Slice, Wait,
};

fn at(lane: u32, offset: u64) -> Slice {
    Slice { lane, offset, bytes: 64 }
}

fn tile(origin: [usize; 2], extents: [usize; 2], slice: Slice) -> PortTile {
    let ty = TensorType::f32(extents);
    PortTile { origin: origin.to_vec(), slice: Slice { bytes: ty.bytes() as u64, ..slice }, ty }
}

fn port(tiles: Vec<PortTile>) -> Port {
    Port { name: "w".into(), kind: PortKind::Param, ty: TensorType::f32([4, 4]), tiles }
}

fn wait(lane: u32, position: u32) -> Wait {
    Wait { lane, position }
}

/// Two lanes, each of which computes and then receives what the other computed; a cut and a mirrored tensor.
fn exchange() -> Builder {
    let mut builder = Builder::new("exchange");
    builder.port(port(vec![tile([0, 0], [2, 4], at(0, 0)), tile([2, 0], [2, 4], at(1, 0))]));
    let mirrored = vec![tile([0, 0], [4, 4], at(0, 192)), tile([0, 0], [4, 4], at(1, 192))];
    builder.port(Port { name: "m".into(), ..port(mirrored) });
    for lane in 0..2 {
        assert_eq!(builder.lane(10 + lane, 256), lane);
        let writes = &[at(lane, 64)];
        let scratch = Slice { lane, ..Slice::default() };
        builder.operation(Draft {
            kernel: "work",
            label: "a",
            reads: &[at(lane, 0)],
            writes,
            scratch,
            ..Draft::default()
        });
        builder.operation(Draft {
            kernel: RECEIVE,
            label: "b",
            reads: &[at(0, 64), at(1, 64)],
            writes: &[at(lane, 128)],
            scratch,
            waits: &[wait(1 - lane, 0)],
            ..Draft::default()
        });
    }
    builder
}

#[test]
fn lanes_print_with_their_waits_and_foreign_slices_and_parse_back() {
    let program = exchange().finish().expect("the lanes do not wait in a circle");
    let text = program.to_string();
    assert_eq!(
        text,
        "program @exchange {\n  param \"w\" f32[4, 4]\n    tile f32[2, 4] at [0, 0] in 0/0\n    \
         tile f32[2, 4] at [2, 0] in 1/0\n  param \"m\" f32[4, 4]\n    tile f32[4, 4] at [0, 0] in 0/192\n    \
         tile f32[4, 4] at [0, 0] in 1/192\n  lane dev10 arena 256\n    \
         run work [] 0+64 -> 64+64 scratch 0+0 of \"a\" carried 1/1\n    \
         run receive [] 64+64, 1/64+64 -> 128+64 scratch 0+0 of \"b\" after 1/0\n  lane dev11 arena 256\n    \
         run work [] 0+64 -> 64+64 scratch 0+0 of \"a\" carried 0/1\n    \
         run receive [] 0/64+64, 64+64 -> 128+64 scratch 0+0 of \"b\" after 0/0\n}"
    );
    let parsed: Program = text.parse().expect("a printed program parses");
    assert_eq!((&parsed, parsed.hash()), (&program, program.hash()));
    let more: Program = text.replace(" after 0/0", " after 0/0, 0/0").parse().expect("waiting twice is fine");
    assert_ne!(more.hash(), program.hash(), "waits count");
    let more: Program =
        text.replace(" carried 0/1", " carried 0/0, 0/1").parse().expect("waiting for more is fine");
    assert_ne!(more.hash(), program.hash(), "carried waits count");
    assert_eq!((program.arena(), program.operations().len()), (512, 4));
    assert_eq!(program.operations_of(&program.lanes()[1]), &program.operations()[2..]);
}

fn errors(builder: Builder) -> Vec<String> {
    let errors = builder.finish().expect_err("the program is not sound");
    errors.iter().map(ProgramError::to_string).collect()
}

/// The exchange with one more operation in lane 1.
fn with(draft: Draft<'_>) -> Builder {
    let mut builder = exchange();
    let scratch = Slice { lane: 1, ..draft.scratch };
    builder.operation(Draft { label: "c", scratch, ..draft });
    builder
}

#[test]
fn only_movements_read_other_lanes_and_nobody_writes_there() {
    let foreign = [at(0, 64)];
    with(Draft { kernel: RECEIVE, reads: &foreign, ..Draft::default() }).finish().expect("movements may");
    let found = errors(with(Draft { kernel: "work", reads: &foreign, ..Draft::default() }));
    let rest = "slice 0/64+64 is in another arena; only `receive` reads other arenas, and none writes there";
    assert_eq!(found, [format!("operation 2 of lane 1 (work of c): {rest}")]);
    for kernel in ["work", RECEIVE] {
        let found = errors(with(Draft { kernel, writes: &foreign, ..Draft::default() }));
        assert_eq!(found, [format!("operation 2 of lane 1 ({kernel} of c): {rest}")]);
    }
    let found = errors(with(Draft { kernel: RECEIVE, reads: &[at(7, 0)], ..Draft::default() }));
    assert!(found[0].contains("outside the arena of 0 of lane 7"), "{found:?}");
    let found = errors(with(Draft { kernel: RECEIVE, reads: &[at(0, 256)], ..Draft::default() }));
    assert!(found[0].contains("outside the arena of 256 of lane 0"), "{found:?}");
}

#[test]
fn a_movement_may_write_where_another_lane_is_read() {
    let (reads, writes) = ([at(0, 64)], [at(1, 64)]);
    let waits = [wait(0, 1)];
    with(Draft { kernel: RECEIVE, reads: &reads, writes: &writes, waits: &waits, ..Draft::default() })
        .finish()
        .expect("equal offsets in different arenas are different bytes");
    let reads = [at(0, 64), at(1, 64)];
    let found = errors(with(Draft { kernel: RECEIVE, reads: &reads, writes: &writes, ..Draft::default() }));
    assert!(found[0].contains("overlaps"), "{found:?}");
}

#[test]
fn waits_name_operations_of_other_lanes() {
    for (lane, position) in [(0, 2), (1, 0), (2, 0)] {
        let found =
            errors(with(Draft { kernel: "work", waits: &[wait(lane, position)], ..Draft::default() }));
        let expected = format!(
            "operation 2 of lane 1 (work of c): waits for operation {position} of lane {lane}, which is its own lane or \
             has none there"
        );
        assert_eq!(found, [expected]);
    }
}

/// Three lanes in which operation i of lane l waits for operation `of(l, i)` of the lane before.
fn ring(lanes: u32, length: u32, of: impl Fn(u32, u32) -> Option<u32>) -> Builder {
    let mut builder = Builder::new("ring");
    for lane in 0..lanes {
        builder.lane(lane, 0);
        for place in 0..length {
            let waits: Vec<_> = of(lane, place)
                .map(|position| wait((lane + lanes - 1) % lanes, position))
                .into_iter()
                .collect();
            let scratch = Slice { lane, ..Slice::default() };
            builder.operation(Draft { kernel: "k", label: "l", scratch, waits: &waits, ..Draft::default() });
        }
    }
    builder
}

#[test]
fn waiting_in_a_circle_is_found() {
    let spiral = |lane, place: u32| if lane == 0 { place.checked_sub(1) } else { Some(place) };
    ring(3, 4, spiral).finish().expect("a spiral ends");
    let circle = |lane, place: u32| if lane == 0 && place < 2 { None } else { Some(place) };
    let found = errors(ring(3, 4, circle));
    let expected = |lane| {
        format!(
            "operation 2 of lane {lane} (k of l): never runs, because the lanes wait for each other in a circle"
        )
    };
    assert_eq!(found, [expected(0), expected(1), expected(2)]);
}

#[test]
fn tiles_cover_the_tensor_and_stay_inside() {
    let half = |row, lane| tile([row, 0], [2, 4], at(lane, 0));
    let cases = [
        (vec![half(0, 0), half(2, 1)], true),
        (vec![half(0, 0), half(0, 1)], false),
        (vec![half(0, 0), half(1, 1), half(2, 0)], true),
        (vec![half(0, 0), half(3, 1)], false),
        (vec![half(0, 0), tile([2, 0], [2, 3], at(1, 0))], false),
        (vec![], false),
    ];
    for (tiles, sound) in cases {
        let mut builder = Builder::new("p");
        let lanes = [0, 1].map(|device| builder.lane(device, 256));
        assert_eq!(lanes, [0, 1]);
        let (ty, count) = ("f32[4, 4]".to_string(), tiles.len());
        builder.port(port(tiles));
        let expected = ProgramError::Cover { name: "w".into(), ty, tiles: count };
        assert_eq!(builder.finish().err(), (!sound).then_some(vec![expected]));
    }
    let mut builder = Builder::new("p");
    builder.lane(0, 256);
    let ty = TensorType::new(phalanx_ir::DType::I32, [4, 4]);
    builder.port(port(vec![PortTile { ty, ..tile([0, 0], [4, 4], at(0, 0)) }]));
    assert_eq!(builder.finish().err(), Some(vec![ProgramError::Port { name: "w".into() }]));
}

/// Half a million operations of 64 lanes; all of them are looked at, the last one included.
#[test]
fn a_large_program_is_checked() {
    let (lanes, length) = (64, 8192);
    let spiral = |lane, place: u32| if lane == 0 { place.checked_sub(1) } else { Some(place) };
    let program = ring(lanes, length, spiral).finish().expect("a spiral ends");
    assert_eq!(program.operations().len(), (lanes * length) as usize);
    let circle = |lane, place| if place + 1 == length { Some(place) } else { spiral(lane, place) };
    assert_eq!(errors(ring(lanes, length, circle)).len(), lanes as usize, "the last of each lane never runs");
}
