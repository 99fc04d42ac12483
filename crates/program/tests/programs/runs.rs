//! Programs whose runs overlap: what must wait for the run before.

use phalanx_program::{Program, RECEIVE, Slice, Wait};

use super::races::{Op, Random, clash, op, program, random_ops, rounds, spots};

fn at(lane: u32, offset: u64) -> Slice {
    Slice { lane, offset, bytes: 64 }
}

fn wait(lane: u32, position: u32) -> Wait {
    Wait { lane, position }
}

fn writes(lane: u32, offset: u64) -> Op {
    Op { writes: vec![at(lane, offset)], ..op(lane, "work") }
}

fn receives(lane: u32, from: Slice, waits: &[Wait]) -> Op {
    Op { reads: vec![from], writes: vec![at(lane, 512)], waits: waits.to_vec(), ..op(lane, RECEIVE) }
}

/// The carried waits of every operation, in program order.
fn carried(program: &Program) -> Vec<Vec<Wait>> {
    program.operations().iter().map(|operation| program.carried(operation).to_vec()).collect()
}

fn finished(lanes: u32, ops: &[Op]) -> Vec<Vec<Wait>> {
    let program = program(lanes, ops).expect("single runs are sound");
    assert_eq!(program.verify(), Ok(()), "what is carried suffices");
    carried(&program)
}

#[test]
fn a_place_is_written_again_after_the_run_before_has_read_it() {
    let ops = [writes(0, 0), receives(1, at(0, 0), &[wait(0, 0)])];
    assert_eq!(finished(2, &ops), [vec![wait(1, 0)], vec![]]);
    // Lane 0 waits for the read in the same run: its next run is after that.
    let told = Op { waits: vec![wait(1, 0)], ..op(0, "work") };
    assert_eq!(finished(2, &[writes(0, 0), told, ops[1].clone()]), [[], [], []]);
}

#[test]
fn what_a_run_writes_at_its_end_is_read_by_the_next() {
    // A parameter: read at the start, updated after all have read it.
    let update = Op { waits: vec![wait(1, 0)], ..writes(0, 0) };
    let ops = [op(0, "work"), update, receives(1, at(0, 0), &[])];
    assert_eq!(finished(2, &ops), [vec![], vec![], vec![wait(0, 1)]]);
    // A lane that waits for anything of lane 0 in its own run is after all of the run before.
    let waits = receives(1, at(0, 0), &[wait(0, 0)]);
    assert_eq!(finished(2, &[ops[0].clone(), ops[1].clone(), waits]), [[], [], []]);
}

#[test]
fn what_a_carried_wait_implies_is_not_waited_for() {
    // Lane 2 reads after lane 1 has: the one wait stands for both. Lane 0's second write is after its first.
    let ops = [
        writes(0, 0),
        writes(0, 64),
        receives(1, at(0, 0), &[wait(0, 0)]),
        receives(2, Slice { bytes: 128, ..at(0, 0) }, &[wait(0, 1), wait(1, 0)]),
    ];
    assert_eq!(finished(3, &ops), [vec![wait(2, 0)], vec![], vec![], vec![]]);
    // Without the order of the two reads both are waited for, each where it first matters.
    let apart = Op { waits: vec![wait(0, 1)], reads: vec![at(0, 64)], ..ops[3].clone() };
    let [a, b, c, _] = ops;
    assert_eq!(finished(3, &[a, b, c, apart]), [vec![wait(1, 0)], vec![wait(2, 0)], vec![], vec![]]);
}

#[test]
fn every_lane_of_a_large_program_waits_for_its_last_readers() {
    let (lanes, count) = (16, 200);
    let mut expected = Vec::new();
    for lane in 0..lanes {
        let mut readers: Vec<_> =
            (1..4).map(|step| wait((lane + lanes - step) % lanes, 3 * (count - 1) + 1)).collect();
        readers.sort_by_key(|wait| wait.lane);
        expected.push(readers);
        expected.extend((1..3 * count).map(|_| Vec::new()));
    }
    assert_eq!(finished(lanes, &rounds(lanes, count)), expected);
}

/// The program with other carried waits, checked.
fn with_carried(program: &Program, carried: &[Vec<Wait>]) -> Result<Program, String> {
    let (text, mut next) = (program.to_string(), carried.iter());
    let mut lines = Vec::new();
    for line in text.lines() {
        let plain = line.split(" carried ").next().unwrap_or_default();
        let waits = if plain.starts_with("    run ") { next.next() } else { None };
        let waits: Vec<_> =
            waits.into_iter().flatten().map(|wait| format!("{}/{}", wait.lane, wait.position)).collect();
        let word = if waits.is_empty() { "" } else { " carried " };
        lines.push(format!("{plain}{word}{}", waits.join(", ")));
    }
    lines.join("\n").parse().map_err(|error: phalanx_ir::text::ParseError| error.to_string())
}

#[test]
fn a_missing_carried_wait_is_refused_with_both_operations() {
    let ops = [writes(0, 0), receives(1, at(0, 0), &[wait(0, 0)])];
    let program = program(2, &ops).expect("single runs are sound");
    let error = with_carried(&program, &[vec![], vec![]]).expect_err("lane 0 may be a run ahead");
    let expected = "operation 0 of lane 0 (work of x) may overtake operation 0 of lane 1 (receive of x) of the run \
                    before, both touch 0/0+64, and one of them writes: it needs a carried wait";
    assert!(error.contains(expected), "{error}");
}

/// The operations of three runs, one run after the other, and for each the set of those before it.
struct Unrolled<'a> {
    program: &'a Program,
    spots: Vec<Wait>,
    before: Vec<u64>,
}

impl<'a> Unrolled<'a> {
    const RUNS: usize = 3;

    fn new(program: &'a Program, carried: &[Vec<Wait>]) -> Self {
        let lanes = (0..).zip(program.lanes());
        let spots: Vec<_> = lanes
            .flat_map(|(lane, of)| (0..of.operations.len() as u32).map(move |i| wait(lane, i)))
            .collect();
        let count = spots.len();
        let node = |run: usize, at: &Wait| {
            run * count + spots.iter().position(|spot| spot == at).expect("it is there")
        };
        let mut before = vec![0u64; Self::RUNS * count];
        for (run, index) in (0..Self::RUNS).flat_map(|run| (0..count).map(move |index| (run, index))) {
            let (me, own) = (run * count + index, spots[index]);
            let earlier = |other: &usize| {
                spots[other % count].lane == own.lane
                    && (other / count, spots[other % count].position) < (run, own.position)
            };
            let waits = program.waits(&program.operations()[index]).iter().map(|at| node(run, at));
            let carried = carried[index].iter().filter(|_| run > 0).map(|at| node(run - 1, at));
            let direct = (0..before.len()).filter(earlier).chain(waits).chain(carried);
            before[me] = direct.fold(0, |set, other| set | 1 << other);
        }
        // As many rounds as the longest path may need.
        for _ in 0..before.len() {
            for node in 0..before.len() {
                let reached = (0..before.len()).filter(|other| before[node] >> other & 1 == 1);
                before[node] = reached.fold(before[node], |set, other| set | before[other]);
            }
        }
        Unrolled { program, spots, before }
    }

    /// Pairs of operations that nothing orders, though one reads where the other writes: that of the earlier run first.
    fn races(&self) -> Vec<(Wait, Wait)> {
        let (count, mut races) = (self.spots.len(), Vec::new());
        for (a, b) in (0..self.before.len()).flat_map(|a| (a + 1..self.before.len()).map(move |b| (a, b))) {
            let ordered = self.before[b] >> a & 1 == 1 || self.before[a] >> b & 1 == 1;
            if self.clash(a % count, b % count) && !ordered {
                races.push((self.spots[a % count], self.spots[b % count]));
            }
        }
        races
    }

    /// Whether operations of different lanes both touch bytes that one of them writes.
    fn clash(&self, a: usize, b: usize) -> bool {
        let op = |index: usize| {
            let operation = &self.program.operations()[index];
            let [reads, writes] =
                [&operation.reads, &operation.writes].map(|range| self.program.slices(range).to_vec());
            Op { reads, writes, scratch: operation.scratch, ..op(0, "work") }
        };
        self.spots[a].lane != self.spots[b].lane && clash(&op(a), &op(b))
    }

    fn name(&self, Wait { lane, position }: Wait) -> String {
        let operation = &self.program.operations_of(&self.program.lanes()[lane as usize])[position as usize];
        format!("operation {position} of lane {lane} ({} of x)", self.program.kernel(operation))
    }

    /// Whether `found`, the verdict of the verifier, is right.
    fn check(&self, found: Result<Program, String>) -> bool {
        let races = self.races();
        match found {
            Ok(_) => races.is_empty(),
            Err(error) => races.iter().any(|&(first, second)| {
                error.contains(&format!("{} may overtake {}", self.name(second), self.name(first)))
            }),
        }
    }
}

/// Random programs in which an operation waits for every earlier one that it would race with.
fn random_programs(seed: u64, count: u64) -> impl Iterator<Item = Program> {
    let mut random = Random(seed);
    (0..count).map(move |_| {
        let homes = 2 + random.below(4) as u32;
        let beside = random.below(2) as u32 * random.below(2 * u64::from(homes) + 1) as u32;
        let mut ops = random_ops(&mut random, homes, beside);
        let spots = spots(&ops);
        for second in 1..ops.len() {
            let (earlier, later) = ops.split_at_mut(second);
            let op = &mut later[0];
            op.waits.retain(|_| random.below(4) == 0);
            let others = earlier.iter().zip(&spots).filter(|(other, _)| other.lane != op.lane);
            let clashing = others.filter(|(other, _)| clash(op, other));
            let waits: Vec<_> = clashing.map(|(_, &spot)| spot).collect();
            op.waits.extend(waits);
        }
        program(homes, &ops).expect("single runs are sound")
    })
}

#[test]
fn carried_waits_suffice_and_none_can_be_dropped() {
    let mut dropped = 0;
    for program in random_programs(3, 1000) {
        let carried = carried(&program);
        assert_eq!(Unrolled::new(&program, &carried).races(), [], "{program}");
        assert_eq!(with_carried(&program, &carried).as_ref(), Ok(&program));
        let all = (0..carried.len()).flat_map(|op| (0..carried[op].len()).map(move |index| (op, index)));
        for (op, index) in all.collect::<Vec<_>>() {
            let mut fewer = carried.clone();
            let missed = fewer[op].remove(index);
            let (unrolled, found) = (Unrolled::new(&program, &fewer), with_carried(&program, &fewer));
            assert!(
                found.is_err() && unrolled.check(found.clone()),
                "without {missed:?}: {found:?} of {program}"
            );
            dropped += 1;
        }
    }
    assert!(dropped > 1000, "{dropped} waits");
}

#[test]
fn two_runs_are_free_of_races_exactly_if_three_are() {
    let (mut sound, mut racy) = (0, 0);
    let mut random = Random(11);
    for program in random_programs(5, 1000) {
        let spots = Unrolled::new(&program, &carried(&program)).spots;
        for _ in 0..4 {
            let mut carried = carried(&program);
            for (op, waits) in carried.iter_mut().enumerate() {
                waits.retain(|_| random.below(2) > 0);
                let other = spots[random.below(spots.len() as u64) as usize];
                if random.below(3) == 0 && other.lane != spots[op].lane {
                    waits.push(other);
                }
            }
            let (unrolled, found) = (Unrolled::new(&program, &carried), with_carried(&program, &carried));
            if found.is_ok() {
                sound += 1
            } else {
                racy += 1
            }
            assert!(unrolled.check(found.clone()), "{carried:?}: {found:?} of {program}");
        }
    }
    assert!(sound > 1000 && racy > 1000, "{sound} sound, {racy} racy");
}
