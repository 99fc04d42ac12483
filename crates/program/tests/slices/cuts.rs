//! What parts look like: messages, groups, lanes and waits of programs made by hand.

use phalanx_program::rect::Tile;
use phalanx_program::{
    ALIGNMENT, ARRIVE, Builder, Draft, IN_LANES, MessageEnd, Operation, Piece, Placement, Program,
    ProgramError, RECEIVE, SEGMENT, SEND, Slice, Wait, landing_bytes,
};

use crate::machine::execute;
use crate::{Random, certified, two_ranks};

/// Two devices. The second one copies columns of a tile of the first, and sums a tile of its own with one of the first.
const COPY_AND_SUM: &str = "program @pair {
  lane dev0 arena 256
    run work [] -> 0+64 scratch 0+0 of \"a\"
    run work [] -> 64+64 scratch 0+0 of \"b\"
    run work [] -> 0+64 scratch 0+0 of \"c\" after 1/1
  lane dev1 arena 512
    run work [] -> 0+64 scratch 0+0 of \"d\"
    run receive [0 at 0/16 = 0 at 8/16 run 8 x 4, 1 at 0 = 1 at 0 + 2 at 0 run 64] 0/0+64, 0/64+64, 0+64 -> 64+64, 128+64 scratch 256+64 of \"e\" after 0/1
    run work [] 64+64, 128+64 -> 0+64 scratch 0+0 of \"f\"
}";

/// Its parts. The copied columns arrive in place, the summed tile in the working memory; `c` overwrites what was sent when
/// it has been sent, and the next run's messages arrive when this run has used those before.
const PARTS: [&str; 2] = [
    "  lane dev0 arena 256
    run work [] -> 0+64 scratch 0+0 of \"a\"
    run work [] -> 64+64 scratch 0+0 of \"b\"
    run work [] -> 0+64 scratch 0+0 of \"c\" after 1/0
  lane dev0 beside 0
    run send [tag 0 rank 1 dev1 in 0 at 8/16 run 8 x 4, tag 1 rank 1 dev1 in 1 at 0 run 64] 0+64, 64+64 -> scratch 0+0 of \"e\" after 0/1
}",
    "  lane dev1 arena 512
    run work [] -> 0+64 scratch 0+0 of \"d\"
    run receive [1 at 0 = 1 at 0 + 0 at 0 run 64] 0+64, 256+64 -> 64+64, 128+64 scratch 0+0 of \"e\" after 1/0
    run work [] 64+64, 128+64 -> 0+64 scratch 0+0 of \"f\"
  lane dev1 beside 0
    run arrive [tag 0 rank 0 dev0 in 0 at 0/16 run 8 x 4, tag 1 rank 0 dev0 in 1 at 0 run 64] -> 64+64, 256+64 scratch 0+0 of \"e\" carried 0/2
}",
];

#[test]
fn copies_arrive_in_place_and_parts_of_sums_in_the_working_memory() {
    let whole: Program = COPY_AND_SUM.parse().unwrap();
    let parts = whole.parts(&two_ranks()).unwrap();
    let head = |rank| format!("program @pair {{\n  part {rank} of 2 of {:032x}\n", whole.hash());
    let texts: Vec<_> = parts.iter().map(Program::to_string).collect();
    assert_eq!(texts, [head(0) + PARTS[0], head(1) + PARTS[1]]);
    assert_eq!(certified(&parts).posted(), [32 + 64; 2]);
}

#[test]
fn with_one_rank_the_part_is_the_whole() {
    let whole: Program = COPY_AND_SUM.parse::<Program>().unwrap();
    let part = whole.slice(&Placement { ranks: 1, of_device: vec![0, 0] }, 0).unwrap();
    let line = format!("  part 0 of 1 of {:032x}\n", whole.hash());
    // The text above has no carried waits yet, which a part gets.
    let text = part.to_string().replace(&line, "").replace(" carried 1/1", "");
    assert_eq!(text, whole.to_string().replace(" carried 1/1", ""));
    assert!(part.operations().iter().all(|operation| part.messages(operation).is_empty()));
}

#[test]
fn what_cannot_be_cut_is_refused() {
    let parse = |from: &str, to: &str| {
        let text = COPY_AND_SUM.replacen(from, to, 1);
        text.parse::<Program>().unwrap_or_else(|error| panic!("{text}: {error}"))
    };
    let errors = |whole: &Program, ranks: u32, of_device: &[u32]| {
        let placement = Placement { ranks, of_device: of_device.to_vec() };
        let errors = whole.parts(&placement).expect_err("refused");
        errors.iter().map(ProgramError::to_string).collect::<Vec<_>>()
    };
    let whole = parse("", "");
    let unplaced = |device| {
        format!("device dev{device} is on none of the 2 ranks: the placement must name one of them for it")
    };
    assert_eq!(errors(&whole, 2, &[0]), [unplaced(1)]);
    assert_eq!(errors(&whole, 2, &[2, 0]), [unplaced(0)]);
    let what = "operation 1 of lane 1 (receive of e)";
    let small = parse("scratch 256+64", "scratch 256+63");
    assert_eq!(
        errors(&small, 2, &[0, 1]),
        [format!(
            "{what}: 64 bytes of other ranks land in its working memory, which has 63; reserve `landing_bytes` of it"
        )]
    );
    for (from, to) in [
        ("[0 at 0/16", "[2 at 0/16"),
        ("run 8 x 4", "run 8 x 5"),
        ("0 at 8/16 run 8", "0 at 8/4 run 8"),
        ("2 at 0 run 64", "3 at 0 run 64"),
        ("2 at 0 run 64", "3 at 0 run 0"),
        ("2 at 0 run 64", "2 at 8 run 64"),
        ("2 at 0 run 64", "2 at 0 run 62"),
    ] {
        let error = COPY_AND_SUM.replacen(from, to, 1).parse::<Program>().expect_err("it lies elsewhere");
        let piece = usize::from(from.starts_with('2'));
        let problem =
            format!("{what}: piece {piece} leaves the 3 read and 2 written slices, overlaps itself or");
        assert!(error.message.contains(&problem), "{to}: {error}");
    }
    let part = whole.slice(&two_ranks(), 1).unwrap();
    let none = "there is no part 1 of 2 of `pair`: only a whole program has parts, one for each rank";
    assert_eq!(errors(&part, 2, &[0, 1]), [none]);
    let beyond = whole.slice(&two_ranks(), 2).expect_err("two ranks");
    assert_eq!(beyond[0].to_string(), none.replace("part 1", "part 2"));
}

/// Device 0 sums rectangles of tiles of `tile` extents of all devices.
fn large_sum(devices: usize, tile: [usize; 2], rect: [usize; 2]) -> Program {
    let (origin, corner) = ([0, 0], [1, usize::from(rect[1] < tile[1])]);
    let rect = Tile { origin: &corner, extents: &rect };
    let tile = Tile { origin: &origin, extents: &tile };
    let parts: Vec<_> = (0..devices as u32).map(|read| (read, tile)).collect();
    let pieces = vec![Piece::new(4, rect, (0, tile), &parts)];
    let bytes = (tile.extents.iter().product::<usize>() * 4) as u64;
    let place = |lane: u32, number: u64| Slice { lane, offset: number * bytes.next_multiple_of(64), bytes };
    let landing = Slice { bytes: landing_bytes(&pieces, |read| read > 0), ..place(0, 2) };
    let mut whole = Builder::new("sum");
    for lane in 0..devices as u32 {
        whole.lane(lane, landing.end());
        let scratch = Slice { lane, ..Slice::default() };
        whole.operation(Draft {
            kernel: "mix",
            params: &[5],
            writes: &[place(lane, 0)],
            scratch,
            ..Draft::default()
        });
        if lane == 0 {
            whole.operation(Draft {
                kernel: RECEIVE,
                pieces: pieces.clone(),
                reads: &(0..devices as u32).map(|lane| place(lane, 0)).collect::<Vec<_>>(),
                writes: &[place(0, 1)],
                scratch: landing,
                waits: &(1..devices as u32).map(|lane| Wait { lane, position: 0 }).collect::<Vec<_>>(),
                ..Draft::default()
            });
        }
    }
    whole.finish().expect("the sum waits for all that it reads")
}

fn of_kernel<'a>(part: &'a Program, kernel: &'a str) -> impl Iterator<Item = &'a Operation> {
    part.operations().iter().filter(move |operation| part.kernel(operation) == kernel)
}

#[test]
fn a_large_sum_is_cut_into_segments_that_land_one_after_the_other() {
    // Contiguous rows, rows of an odd size, rows longer than a segment, and such that only all of them end aligned.
    let cases = [
        ([1026, 1000], [1024, 1000], 8),
        ([5002, 77], [5000, 67], 3),
        ([3, 140_000], [2, 139_520], 2),
        ([3, 140_000], [2, 139_521], 1),
    ];
    for (tile, rect, groups) in cases {
        let whole = large_sum(3, tile, rect);
        let placement = Placement { ranks: 3, of_device: vec![0, 1, 2] };
        let parts = whole.parts(&placement).unwrap();
        let scratch = whole.operations()[1].scratch;
        let mut next = scratch.offset;
        let mut arrivals: Vec<_> = of_kernel(&parts[0], ARRIVE).collect();
        arrivals.sort_by_key(|arrival| parts[0].slices(&arrival.writes)[0].offset);
        for arrival in arrivals {
            let &[landing] = parts[0].slices(&arrival.writes) else { panic!("one slice") };
            assert_eq!((landing.offset, landing.offset % ALIGNMENT), (next, 0));
            next = landing.end();
            let ends = parts[0].messages(arrival);
            assert_eq!(ends.iter().map(|end| end.device).collect::<Vec<_>>(), [1, 2], "one of each device");
            assert!(landing.bytes <= SEGMENT || rect[0] < 16, "{landing}");
        }
        assert_eq!(next, scratch.end(), "all of the working memory is used");
        assert_eq!(of_kernel(&parts[0], ARRIVE).count(), groups, "{rect:?}");
        assert_eq!(of_kernel(&parts[0], RECEIVE).count(), groups);
        assert_eq!(parts[0].lanes().len(), 1 + groups.min(IN_LANES as usize));
        for part in &parts[1..] {
            let sent: u64 =
                of_kernel(part, SEND).flat_map(|send| part.messages(send)).map(MessageEnd::bytes).sum();
            assert_eq!((of_kernel(part, SEND).count(), sent), (groups, (rect[0] * rect[1] * 4) as u64));
        }
        let mut random = Random(3);
        let alone = execute(std::slice::from_ref(&whole), 2, &mut random);
        let together = execute(&parts, 2, &mut random);
        let before = ..scratch.offset as usize;
        assert!(alone.arenas[0][0][before] == together.arenas[0][0][before], "{rect:?} sums up alike");
        certified(&parts);
    }
}
