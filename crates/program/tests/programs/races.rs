//! Programs of several lanes that touch the same bytes.

use std::collections::BTreeSet;

use phalanx_program::{Builder, Draft, Program, ProgramError, RECEIVE, Slice, Wait};
use phalanx_testkit::cases;

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

/// Lanes of these operations, which are in the order of each lane. Those beyond `homes` are beside these in turn.
pub(super) fn program(homes: u32, ops: &[Op]) -> Result<Program, Vec<ProgramError>> {
    let mut builder = Builder::new("p");
    let lanes = ops.iter().map(|op| op.lane + 1).max().unwrap_or(0).max(homes);
    for lane in 0..lanes {
        match lane.checked_sub(homes) {
            None => builder.lane(lane, 1024),
            Some(guest) => builder.transfer_lane(guest % homes, guest % homes),
        };
        for op in ops.iter().filter(|op| op.lane == lane) {
            let Op { kernel, reads, writes, scratch, waits, .. } = op;
            let (label, scratch) = ("x", *scratch);
            builder.operation(Draft { kernel, label, reads, writes, scratch, waits, ..Draft::default() });
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
        let writer = format!("operation {writer}");
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from} is in the text");
        let error = changed.parse::<Program>().expect_err("the program races").to_string();
        let race = |a: &str, b: &str| {
            format!("{a} and {b} both touch {bytes}, one of them writes, and nothing orders")
        };
        let races = [race(reader, &writer), race(&writer, reader)];
        assert!(races.iter().any(|race| error.contains(race)), "{from} to {to}: {error}");
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

/// How many bytes two slices share.
fn common(a: &Slice, b: &Slice) -> u64 {
    if a.lane == b.lane { a.end().min(b.end()).saturating_sub(a.offset.max(b.offset)) } else { 0 }
}

/// Up to 18 operations of `homes` lanes and `beside` ones beside these in turn. Each waits only for ones made before
/// it, so that nothing waits in a circle.
pub(super) fn random_ops(random: &mut Random, homes: u32, beside: u32) -> Vec<Op> {
    let lanes = homes + beside;
    let mut made = vec![0; lanes as usize];
    let mut ops = Vec::new();
    let waits = 2 + random.below(7);
    for _ in 0..4 + random.below(15) {
        let lane = random.below(lanes.into()) as u32;
        let is_beside = lane >= homes;
        let home = lane % homes;
        let mut next = op(lane, if !is_beside && random.below(2) == 0 { "work" } else { RECEIVE });
        next.scratch.lane = home;
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
                let from = (home + u32::from(!is_beside) + random.below(u64::from(homes) - 1) as u32) % homes;
                next.reads.push(random.slice(from, 0));
            }
        } else if random.below(2) == 0 {
            next.reads.push(random.slice(home, 0));
        }
        // Foreign reads are of the first half of an arena; a movement rarely writes there.
        let first = if next.kernel == RECEIVE && random.below(4) > 0 { 8 } else { 0 };
        match random.below(3) {
            0 => next.scratch = random.slice(home, first),
            _ => next.writes.push(random.slice(home, first)),
        }
        let written: Vec<_> = next.writes.iter().chain([&next.scratch]).copied().collect();
        next.reads.retain(|read| written.iter().all(|write| common(read, write) == 0));
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

/// Whether both touch a byte, and one of them writes it or works there.
pub(super) fn clash(one: &Op, other: &Op) -> bool {
    let written = |op: &Op| op.writes.iter().chain([&op.scratch]).copied().collect::<Vec<_>>();
    let touched = |op: &Op| [written(op), op.reads.clone()].concat();
    let meet = |a: Vec<Slice>, b: Vec<Slice>| a.iter().any(|a| b.iter().any(|b| common(a, b) > 0));
    meet(written(one), touched(other)) || meet(touched(one), written(other))
}

/// Both operations of every race, in both orders.
fn races(ops: &[Op]) -> BTreeSet<(String, String)> {
    let spots = spots(ops);
    let before = orders(ops, &spots);
    let name = |i: usize| {
        let Wait { lane, position } = spots[i];
        format!("operation {position} of lane {lane} ({} of x)", ops[i].kernel)
    };
    let mut races = BTreeSet::new();
    for (a, one) in ops.iter().enumerate() {
        for (b, other) in ops.iter().enumerate().filter(|(_, other)| other.lane != one.lane) {
            if clash(one, other) && !before[a][b] && !before[b][a] {
                races.insert((name(a), name(b)));
            }
        }
    }
    races
}

#[test]
fn random_programs_race_exactly_if_some_pair_is_unordered() {
    let mut random = Random(7);
    let (mut sound, mut racy) = (0, 0);
    for case in 0..cases(6000) {
        let homes = 2 + random.below(4) as u32;
        let beside = random.below(2) as u32 * random.below(2 * u64::from(homes) + 1) as u32;
        let ops = random_ops(&mut random, homes, beside);
        let expected = races(&ops);
        let errors = program(homes, &ops).err().unwrap_or_default();
        assert_eq!(errors.is_empty(), expected.is_empty(), "case {case}: {expected:?} and {errors:?}");
        for error in errors {
            let ProgramError::Race { before, after, .. } = error else { panic!("case {case}: {error}") };
            assert!(expected.contains(&(before.clone(), after.clone())), "case {case}: {before}, {after}");
        }
        if expected.is_empty() { sound += 1 } else { racy += 1 }
    }
    assert!(sound > cases(1500) && racy > cases(1500), "{sound} sound, {racy} racy");
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
        let [ProgramError::Race { before, after, bytes }] = &errors[..] else {
            panic!("one race: {errors:?}")
        };
        let missed = format!("operation {position} of lane {lane} ");
        assert!(before.starts_with(&missed) || after.starts_with(&missed), "{missed}: {before}, {after}");
        assert_eq!((bytes.offset, bytes.bytes), (0, 64));
    }
}
