//! Programs of several lanes in which a read of another lane's bytes meets a write of that lane.

use std::collections::BTreeSet;

use phalanx_program::{Builder, Draft, Program, ProgramError, RECEIVE, Slice, Wait};

/// An operation of a lane.
#[derive(Clone)]
pub(super) struct Op {
    pub(super) lane: u32,
    pub(super) kernel: &'static str,
    pub(super) reads: Vec<Slice>,
    pub(super) writes: Vec<Slice>,
    pub(super) scratch: Slice,
    pub(super) waits: Vec<Wait>,
}

pub(super) fn op(lane: u32, kernel: &'static str) -> Op {
    let scratch = Slice { lane, ..Slice::default() };
    Op { lane, kernel, reads: vec![], writes: vec![], scratch, waits: vec![] }
}

/// Lanes of these operations, which are in the order of each lane.
pub(super) fn program(lanes: u32, ops: &[Op]) -> Result<Program, Vec<ProgramError>> {
    let mut builder = Builder::new("p");
    for lane in 0..lanes {
        builder.lane(lane, 1024);
        for op in ops.iter().filter(|op| op.lane == lane) {
            let Op { kernel, reads, writes, scratch, waits, .. } = op;
            let (label, scratch) = ("x", *scratch);
            builder.operation(Draft { kernel, label, words: &[], reads, writes, scratch, waits });
        }
    }
    builder.finish()
}

/// Lane 0 writes a tile, lane 1 fetches it, lane 0 uses the place again.
const REUSE: &str = "program @reuse {
  lane dev0 arena 256
    run work [] -> 64+64 scratch 0+0 of \"a\"
    run work [] -> 128+64 scratch 0+100 of \"c\" after 1/0
  lane dev1 arena 256
    run receive [] 0/64+64 -> 0+64 scratch 0+0 of \"b\" after 0/0
}";

/// The same with a lane between them: lane 2 tells lane 1 of the tile, and lane 0 of the fetch.
const THROUGH: &str = "program @through {
  lane dev0 arena 256
    run work [] -> 64+64 scratch 0+0 of \"a\"
    run work [] -> 128+64 scratch 0+0 of \"b\" after 2/1
    run work [] -> scratch 0+192 of \"c\"
  lane dev1 arena 256
    run work [] -> 64+64 scratch 0+0 of \"d\" after 2/0
    run receive [] 0/64+64, 2/0+8 -> 0+64 scratch 0+0 of \"e\"
  lane dev2 arena 256
    run work [] -> 0+64 scratch 0+0 of \"f\" after 0/0
    run work [] -> 64+64 scratch 0+0 of \"g\" after 1/1
}";

#[test]
fn what_waits_order_is_accepted() {
    for text in [REUSE, THROUGH] {
        let program: Program = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(program.to_string().parse().as_ref(), Ok(&program));
    }
}

#[test]
fn what_nothing_orders_is_refused_also_as_text() {
    let fetch = "operation 0 of lane 1 (receive of b)";
    let sum = "operation 1 of lane 1 (receive of e)";
    let [a, c] = ["0 of lane 0 (work of a)", "2 of lane 0 (work of c)"];
    let cases = [
        // The wait before the read, and the one before the place is used again.
        (REUSE, " after 0/0", "", fetch, "0/64+64", a),
        (REUSE, " after 1/0", "", fetch, "0/64+36", "1 of lane 0 (work of c)"),
        // Each link of the chains through lane 2.
        (THROUGH, " after 0/0", "", sum, "0/64+64", a),
        (THROUGH, " after 2/0", "", sum, "0/64+64", a),
        (THROUGH, " after 2/1", "", sum, "0/64+64", c),
        (THROUGH, " after 1/1", "", sum, "0/64+64", c),
        (THROUGH, " after 1/1", " after 1/0", sum, "0/64+64", c),
    ];
    for (text, from, to, reader, bytes, writer) in cases {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from} is in the text");
        let error = changed.parse::<Program>().expect_err("the program races").to_string();
        let race = format!("{reader} reads {bytes}, where operation {writer} writes, and nothing orders");
        assert!(error.contains(&race), "{from} to {to}: {error}");
    }
}

/// Numbers below a bound, always the same ones.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }

    fn slice(&mut self, lane: u32, first: u64) -> Slice {
        Slice {
            lane,
            offset: 64 * (first + self.below(5)),
            bytes: [0, 1, 64, 65, 128, 200][self.below(6) as usize],
        }
    }
}

/// Up to 18 operations. Each waits only for ones made before it, so that nothing waits in a circle.
pub(super) fn random_ops(random: &mut Random, lanes: u32) -> Vec<Op> {
    let mut made = vec![0; lanes as usize];
    let mut ops = Vec::new();
    let waits = 2 + random.below(7);
    for _ in 0..4 + random.below(15) {
        let lane = random.below(lanes.into()) as u32;
        let mut next = op(lane, if random.below(2) == 0 { "work" } else { RECEIVE });
        for _ in 0..random.below(waits) {
            let other = random.below(lanes.into()) as u32;
            let last = made[other as usize];
            if other != lane && last > 0 {
                let back = (random.below(5) / 3).min(last - 1);
                next.waits.push(Wait { lane: other, position: (last - 1 - back) as u32 });
            }
        }
        if next.kernel == RECEIVE {
            for _ in 0..1 + random.below(2) {
                let from = (lane + 1 + random.below(u64::from(lanes) - 1) as u32) % lanes;
                next.reads.push(random.slice(from, 0));
            }
        }
        // Foreign reads are of the first half of an arena; a movement rarely writes there.
        let first = if next.kernel == RECEIVE && random.below(4) > 0 { 8 } else { 0 };
        match random.below(3) {
            0 => next.scratch = random.slice(lane, first),
            _ => next.writes.push(random.slice(lane, first)),
        }
        made[lane as usize] += 1;
        ops.push(next);
    }
    ops
}

/// Lane and position of each operation.
pub(super) fn spots(ops: &[Op]) -> Vec<Wait> {
    let before = |index: usize| ops[..index].iter().filter(|op| op.lane == ops[index].lane).count();
    (0..ops.len()).map(|i| Wait { lane: ops[i].lane, position: before(i) as u32 }).collect()
}

/// Which operation comes before which: the closure of lane orders and waits (Floyd and Warshall).
fn orders(ops: &[Op], spots: &[Wait]) -> Vec<Vec<bool>> {
    let direct = |a: usize, b: usize| {
        let follows = spots[a].lane == spots[b].lane && spots[a].position < spots[b].position;
        follows || ops[b].waits.contains(&spots[a])
    };
    let all = 0..ops.len();
    let mut before: Vec<Vec<bool>> =
        all.clone().map(|a| all.clone().map(|b| direct(a, b)).collect()).collect();
    for middle in all.clone() {
        for first in all.clone().filter(|&first| before[first][middle]).collect::<Vec<_>>() {
            for last in all.clone() {
                before[first][last] |= before[middle][last];
            }
        }
    }
    before
}

/// Whether `reader` reads a byte that `writer` writes or works in.
pub(super) fn meet(reader: &Op, writer: &Op) -> bool {
    let meet = |a: &Slice, b: &Slice| {
        a.lane == b.lane && (a.offset..a.end()).any(|byte| (b.offset..b.end()).contains(&byte))
    };
    let mut written = writer.writes.iter().chain([&writer.scratch]);
    written.any(|write| reader.reads.iter().any(|read| meet(read, write)))
}

/// The reader and writer of every race.
fn races(ops: &[Op]) -> BTreeSet<(String, String)> {
    let spots = spots(ops);
    let before = orders(ops, &spots);
    let name = |i: usize| {
        let Wait { lane, position } = spots[i];
        format!("operation {position} of lane {lane} ({} of x)", ops[i].kernel)
    };
    let mut races = BTreeSet::new();
    for (r, reader) in ops.iter().enumerate() {
        for (w, writer) in ops.iter().enumerate().filter(|(_, writer)| writer.lane != reader.lane) {
            if meet(reader, writer) && !before[r][w] && !before[w][r] {
                races.insert((name(r), name(w)));
            }
        }
    }
    races
}

#[test]
fn random_programs_race_exactly_if_some_pair_is_unordered() {
    let mut random = Random(7);
    let (mut sound, mut racy) = (0, 0);
    for case in 0..6000 {
        let lanes = 2 + random.below(4) as u32;
        let ops = random_ops(&mut random, lanes);
        let expected = races(&ops);
        let errors = program(lanes, &ops).err().unwrap_or_default();
        assert_eq!(errors.is_empty(), expected.is_empty(), "case {case}: {expected:?} and {errors:?}");
        for error in errors {
            let ProgramError::Race { reader, writer, .. } = error else { panic!("case {case}: {error}") };
            assert!(expected.contains(&(reader.clone(), writer.clone())), "case {case}: {reader}, {writer}");
        }
        if expected.is_empty() { sound += 1 } else { racy += 1 }
    }
    assert!(sound > 1500 && racy > 1500, "{sound} sound, {racy} racy");
}

/// In each round every lane writes its tile, then fetches those of the next three lanes and works on the sum.
pub(super) fn rounds(lanes: u32, rounds: u32) -> Vec<Op> {
    let tile = |lane, number: u64| Slice { lane, offset: 64 * number, bytes: 64 };
    let mut ops = Vec::new();
    for round in 0..rounds {
        for lane in 0..lanes {
            let near = |step: u32| (lane + step) % lanes;
            let fetched =
                |last: u32| (1..4).map(move |step| Wait { lane: near(lanes - step), position: 3 * last + 1 });
            ops.push(Op {
                writes: vec![tile(lane, 0)],
                waits: round.checked_sub(1).into_iter().flat_map(fetched).collect(),
                ..op(lane, "work")
            });
            ops.push(Op {
                reads: (1..4).map(|step| tile(near(step), 0)).collect(),
                writes: vec![tile(lane, 1)],
                waits: (1..4).map(|step| Wait { lane: near(step), position: 3 * round }).collect(),
                ..op(lane, RECEIVE)
            });
            ops.push(Op { reads: vec![tile(lane, 1)], writes: vec![tile(lane, 2)], ..op(lane, "work") });
        }
    }
    ops
}

/// None of the waits of a large program can be missed.
#[test]
fn a_single_missing_wait_is_found_among_many() {
    let (lanes, count) = (16, 200);
    let ops = rounds(lanes, count);
    program(lanes, &ops).expect("every round waits for the one before");
    let waiting: Vec<_> = (0..ops.len()).filter(|&index| !ops[index].waits.is_empty()).collect();
    let mut random = Random(1);
    for _ in 0..20 {
        let index = waiting[random.below(waiting.len() as u64) as usize];
        let mut ops = ops.clone();
        let Wait { lane, position } = ops[index].waits.remove(random.below(3) as usize);
        let errors = program(lanes, &ops).expect_err("a wait is missing");
        let [ProgramError::Race { reader, writer, bytes }] = &errors[..] else {
            panic!("one race: {errors:?}")
        };
        let missed = format!("operation {position} of lane {lane} ");
        assert!(reader.starts_with(&missed) || writer.starts_with(&missed), "{missed}: {reader}, {writer}");
        assert_eq!((bytes.offset, bytes.bytes), (0, 64));
    }
}
