//! Arguments and results, and the feeds and fetches between them and the lanes.

use phalanx_ir::{DType, TensorType};
use phalanx_program::{
    Builder, Draft, FEED, FETCH, Field, MAX_RESULT, Port, PortKind, PortTile, Program, ProgramError, Slice,
    feeds, fetches,
};

/// A matrix in tiles: origin, extents, lane and offset of each.
fn port(name: &str, kind: PortKind, dims: [usize; 2], tiles: &[([usize; 2], [usize; 2], u32, u64)]) -> Port {
    let tile = |&(origin, extents, lane, offset): &([usize; 2], [usize; 2], u32, u64)| {
        let ty = TensorType::f32(extents);
        let slice = Slice { lane, offset, bytes: ty.bytes() as u64 };
        PortTile { origin: origin.to_vec(), ty, slice }
    };
    Port { name: name.into(), kind, ty: TensorType::f32(dims), tiles: tiles.iter().map(tile).collect() }
}

/// Lanes of 512 bytes with nothing but their feeds and fetches.
fn program(ports: &[Port], lanes: usize) -> Result<Program, Vec<ProgramError>> {
    let mut builder = Builder::new("host");
    ports.iter().for_each(|port| builder.port(port.clone()));
    let (feeds, fetches) = (feeds(ports, lanes), fetches(ports, lanes));
    for lane in 0..lanes {
        builder.lane(lane as u32, 512);
        feeds[lane].iter().for_each(|feed| builder.operation(feed.draft()));
        fetches[lane].iter().for_each(|fetch| builder.operation(fetch.draft()));
    }
    builder.finish()
}

#[test]
fn arguments_are_all_inputs_and_results_all_small_outputs() {
    let whole = |name: &str, kind, ty: TensorType, offset| {
        let slice = Slice { lane: 0, offset, bytes: ty.bytes() as u64 };
        let tile = PortTile { origin: vec![0; ty.shape.rank()], ty: ty.clone(), slice };
        Port { name: name.into(), kind, ty, tiles: vec![tile] }
    };
    let largest = MAX_RESULT as usize / 4;
    let ports = [
        whole("a", PortKind::Input, TensorType::f32([17]), 0),
        whole("scalar", PortKind::Output, TensorType::f32([0; 0]), 128),
        whole("w", PortKind::Param, TensorType::f32([4]), 192),
        whole("large", PortKind::Output, TensorType::f32([largest + 1]), 256),
        whole("b", PortKind::Input, TensorType::new(DType::I64, [2]), 1 << 20),
        whole("most", PortKind::Output, TensorType::f32([largest]), 1 << 21),
        whole("last", PortKind::Output, TensorType::f32([1]), 1 << 22),
    ];
    let mut builder = Builder::new("records");
    ports.iter().for_each(|port| builder.port(port.clone()));
    builder.lane(0, 1 << 23);
    feeds(&ports, 1)[0].iter().for_each(|feed| builder.operation(feed.draft()));
    fetches(&ports, 1)[0].iter().for_each(|fetch| builder.operation(fetch.draft()));
    let program = builder.finish().expect("the program is sound");
    let (arguments, results) = (program.arguments(), program.results());
    let field = |port, offset, bytes| Field { port, offset, bytes };
    assert_eq!((arguments.fields, arguments.bytes), (vec![field(0, 0, 68), field(4, 128, 16)], 192));
    let fields = vec![field(1, 0, 4), field(5, 64, MAX_RESULT), field(6, 64 + MAX_RESULT, 4)];
    assert_eq!((results.fields, results.bytes), (fields, 128 + MAX_RESULT));
}

/// An input cut along columns, one on both lanes, an output on both lanes, one cut along rows with one half twice.
fn ports() -> [Port; 4] {
    let (left, right) = (([0, 0], [2, 3], 0, 0), ([0, 3], [2, 1], 1, 0));
    let (top, bottom) = (([0, 0], [1, 2], 1, 64), ([1, 0], [3, 2], 1, 128));
    [
        port("cut", PortKind::Input, [2, 4], &[left, right]),
        port("twice", PortKind::Input, [1, 1], &[([0, 0], [1, 1], 0, 64), ([0, 0], [1, 1], 1, 192)]),
        port("both", PortKind::Output, [1, 4], &[([0, 0], [1, 4], 0, 128), ([0, 0], [1, 4], 1, 256)]),
        port("rows", PortKind::Output, [4, 2], &[top, bottom, ([1, 0], [3, 2], 0, 192)]),
    ]
}

#[test]
fn every_tile_is_fed_and_every_rectangle_fetched_once() {
    let text = program(&ports(), 2).expect("feeds and fetches are sound").to_string();
    let runs: Vec<_> = text.lines().filter_map(|line| line.trim().strip_prefix("run ")).collect();
    assert_eq!(
        runs,
        [
            // Two rows of three floats out of rows of four; then argument 1.
            "feed [0 at 0/12 = 0 at 0/16 run 12 x 2, 1 at 0 = 1 at 0 run 4] -> 0+24, 64+4 scratch 0+0 of \"arguments\"",
            "fetch [0 at 0 = 0 at 0 run 16] 128+16 -> scratch 0+0 of \"results\"",
            "feed [0 at 0/4 = 0 at 12/16 run 4 x 2, 1 at 0 = 1 at 0 run 4] -> 0+8, 192+4 scratch 0+0 of \"arguments\"",
            // Result 1: its first row, then three from byte 8 on.
            "fetch [1 at 0 = 0 at 0 run 8, 1 at 8 = 1 at 0 run 24] 64+8, 128+24 -> scratch 0+0 of \"results\"",
        ]
    );
}

#[test]
fn feeds_and_fetches_are_exactly_those_of_the_ports() {
    let text = program(&ports(), 2).expect("feeds and fetches are sound").to_string();
    let feed_lines: Vec<_> = text.lines().filter(|line| line.contains("run feed")).collect();
    let fetch_lines: Vec<_> = text.lines().filter(|line| line.contains("run fetch")).collect();
    let wrong_feed =
        "lane 0 has 2 tiles of inputs: it must start with a `feed` of exactly these, the only one";
    let wrong_fetch =
        "lane 1 has 2 tiles of results: it must end with a `fetch` of exactly these, the only one";
    let (feed, fetch) = (feed_lines[0], fetch_lines[1]);
    let work = "    run work [] -> 448+8 scratch 0+0 of \"w\"";
    let cases = [
        (feed, String::new(), wrong_feed),
        (feed, format!("{work}\n{feed}"), wrong_feed),
        (feed, format!("{feed}\n{feed}"), wrong_feed),
        (feed, "    run copy [] -> 0+24, 64+4 scratch 0+0 of \"arguments\"".into(), wrong_feed),
        // Another run, another part, a piece too few, another place, a tile too few, working memory.
        (feed, feed.replace("run 12", "run 8"), wrong_feed),
        (feed, feed.replace("1 at 0 run 4]", "0 at 0 run 4]"), wrong_feed),
        (feed, feed.replace(", 1 at 0 = 1 at 0 run 4]", "]"), wrong_feed),
        (feed, feed.replace("64+4", "384+4"), wrong_feed),
        (feed, feed.replace("0+24, 64+4", "0+24"), wrong_feed),
        (feed, feed.replace("-> 0+24", "384+64 -> 0+24"), wrong_feed),
        (feed, feed.replace("scratch 0+0", "scratch 384+8"), wrong_feed),
        (fetch, String::new(), wrong_fetch),
        (fetch, format!("{fetch}\n{work}"), wrong_fetch),
        (fetch, format!("{fetch}\n{fetch}"), wrong_fetch),
        (fetch, fetch.replace("[1 at 0", "[0 at 0"), wrong_fetch),
        (fetch, fetch.replace("1 at 8", "1 at 0"), wrong_fetch),
        (fetch, fetch.replace("64+8", "0+8"), wrong_fetch),
        (fetch, fetch.replace("-> scratch", "-> 384+64 scratch"), wrong_fetch),
    ];
    for (from, to, message) in cases {
        let changed = text.replacen(from, &to, 1);
        assert_ne!(changed, text, "{to} is a change");
        let error = changed.parse::<Program>().expect_err("the transfer is wrong").to_string();
        assert!(error.contains(message), "{to}: {error}");
    }
    text.replace(feed, &format!("{feed}\n{work}")).parse::<Program>().expect("work follows a feed");
}

#[test]
fn a_lane_without_tiles_has_neither() {
    for kernel in [FEED, FETCH] {
        let mut builder = Builder::new("idle");
        builder.lane(0, 64);
        builder.operation(Draft { kernel, ..Draft::default() });
        let error = builder.finish().expect_err("there is nothing to exchange")[0].to_string();
        assert!(error.contains("lane 0 has 0 tiles") && error.contains(kernel), "{error}");
    }
}

#[test]
fn tiles_of_a_result_are_equal_or_apart() {
    let halves = |start| {
        [([0, 0], [2, 2], 0, 0), ([start, 0], [4 - start, 2], 1, 0), ([start, 0], [4 - start, 2], 0, 64)]
    };
    program(&[port("y", PortKind::Output, [4, 2], &halves(2))], 2).expect("halves are apart");
    let found = program(&[port("y", PortKind::Output, [4, 2], &halves(1))], 2);
    assert_eq!(found, Err(vec![ProgramError::Result { name: "y".into() }]));
    program(&[port("y", PortKind::Param, [4, 2], &halves(1))], 2).expect("what is not fetched may overlap");
}
