//! Programs with one thing broken: what the verifier accepts, a checker of another kind accepts, too.
//!
//! The checker reads the text of a program by itself, runs the lanes of two runs on paper with vector clocks, and compares
//! every two accesses of overlapping bytes. It knows nothing of the verifier's tables, intervals or clocks.

use std::collections::BTreeMap;

use phalanx::Program;
use phalanx::pipeline::compile;
use phalanx_testkit::{Rng, zoo};

use crate::training::settings;

/// An operation as its line says: accesses are (arena, first byte, byte after the last, whether it writes).
struct Operation {
    line: usize,
    accesses: Vec<(usize, u64, u64, bool)>,
    waits: Vec<(usize, usize)>,
    carried: Vec<(usize, usize)>,
}

/// The operations of every lane.
fn read(lines: &[String]) -> Vec<Vec<Operation>> {
    let mut lanes: Vec<(usize, Vec<Operation>)> = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        if let Some(rest) = line.strip_prefix("  lane ") {
            let words: Vec<&str> = rest.split(' ').collect();
            let home = if words[1] == "beside" { words[2].parse().expect("a lane") } else { lanes.len() };
            lanes.push((home, Vec::new()));
        } else if let Some(rest) = line.strip_prefix("    run ") {
            let (home, operations) = lanes.last_mut().expect("operations are in lanes");
            operations.push(operation(number, rest, *home));
        }
    }
    lanes.into_iter().map(|(_, operations)| operations).collect()
}

fn operation(line: usize, text: &str, home: usize) -> Operation {
    let (_, rest) = text.split_once("] ").expect("parameters in brackets");
    let (reads, rest) = rest.split_once("-> ").expect("writes");
    let (writes, rest) = rest.split_once("scratch ").expect("scratch");
    let (scratch, rest) = rest.split_once(" of ").expect("a label");
    let (_, tail) = rest.rsplit_once('"').expect("a quoted label");
    let (after, carried) = tail.split_once(" carried ").unwrap_or((tail, ""));
    let slices = |list: &str, writes: bool| -> Vec<_> {
        let slice = |text: &str| {
            let (lane, range) = text
                .split_once('/')
                .map_or((home, text), |(lane, range)| (lane.parse().expect("a lane"), range));
            let (start, bytes) = range.split_once('+').expect("a range");
            let (start, bytes): (u64, u64) = (start.parse().expect("a byte"), bytes.parse().expect("bytes"));
            (lane, start, start.saturating_add(bytes), writes)
        };
        list.trim().split(", ").filter(|text| !text.is_empty()).map(slice).collect()
    };
    let accesses = [slices(reads, false), slices(writes, true), slices(scratch, true)].concat();
    let accesses = accesses.into_iter().filter(|(_, start, end, _)| start < end).collect();
    let after = after.trim_start_matches(" after ");
    Operation { line, accesses, waits: waits(after), carried: waits(carried) }
}

fn waits(list: &str) -> Vec<(usize, usize)> {
    let wait = |text: &str| {
        let (lane, position) = text.split_once('/').expect("a lane and a place in it");
        (lane.parse().expect("a lane"), position.parse().expect("a place"))
    };
    list.trim().split(", ").filter(|text| !text.is_empty()).map(wait).collect()
}

/// What is wrong with two runs of the lanes, one after the other: they wait in a circle, or two accesses of the same bytes, one
/// of them writing, are not ordered, or not in the order of their runs.
fn problem(lanes: &[Vec<Operation>]) -> Option<String> {
    let lengths: Vec<usize> = lanes.iter().map(Vec::len).collect();
    // For every operation of both runs: how many of each lane are over when it begins.
    let mut clocks: Vec<Vec<Vec<usize>>> = lanes.iter().map(|_| Vec::new()).collect();
    loop {
        let before: usize = clocks.iter().map(Vec::len).sum();
        for lane in 0..lanes.len() {
            while clocks[lane].len() < 2 * lengths[lane] {
                let (run, position) =
                    (clocks[lane].len() / lengths[lane], clocks[lane].len() % lengths[lane]);
                let operation = &lanes[lane][position];
                let own = operation.waits.iter().map(|&(other, at)| (other, run * lengths[other] + at));
                let earlier = operation.carried.iter().copied().filter(|_| run == 1);
                let needs: Vec<_> = own.chain(earlier).collect();
                if needs.iter().any(|&(other, at)| clocks[other].len() <= at) {
                    break;
                }
                let mut clock = clocks[lane].last().cloned().unwrap_or(vec![0; lanes.len()]);
                clock[lane] = clocks[lane].len();
                for (other, at) in needs {
                    for (known, theirs) in clock.iter_mut().zip(&clocks[other][at]) {
                        *known = (*known).max(*theirs);
                    }
                    clock[other] = clock[other].max(at + 1);
                }
                clocks[lane].push(clock);
            }
        }
        if clocks.iter().map(Vec::len).sum::<usize>() == before {
            break;
        }
    }
    if (0..lanes.len()).any(|lane| clocks[lane].len() < 2 * lengths[lane]) {
        return Some("a circle of waits".into());
    }
    let mut accesses: BTreeMap<usize, Vec<_>> = BTreeMap::new();
    for (lane, operations) in lanes.iter().enumerate() {
        for number in 0..2 * operations.len() {
            for &(arena, start, end, writes) in &operations[number % lengths[lane]].accesses {
                accesses.entry(arena).or_default().push((start, end, writes, lane, number));
            }
        }
    }
    for accesses in accesses.values_mut() {
        accesses.sort_unstable();
        let mut open: Vec<(u64, u64, bool, usize, usize)> = Vec::new();
        for &this in accesses.iter() {
            open.retain(|other| other.1 > this.0);
            for other in open.iter().filter(|other| other.3 != this.3 && (other.2 || this.2)) {
                let is_before = |first: &(_, _, _, usize, usize), second: &(_, _, _, usize, usize)| {
                    clocks[second.3][second.4][first.3] > first.4
                };
                let run = |access: &(_, _, _, usize, usize)| access.4 / lengths[access.3];
                let ordered = match run(other).cmp(&run(&this)) {
                    std::cmp::Ordering::Less => is_before(other, &this),
                    std::cmp::Ordering::Greater => is_before(&this, other),
                    std::cmp::Ordering::Equal => is_before(other, &this) || is_before(&this, other),
                };
                if !ordered {
                    return Some(format!("{other:?} and {this:?}"));
                }
            }
            open.push(this);
        }
    }
    None
}

/// Breaks one thing of a program's text: waits, the order of a lane, or the place of a slice. None if there is nothing to break.
fn mutate(lines: &[String], lanes: &[Vec<Operation>], rng: &mut Rng) -> Option<Vec<String>> {
    let mut lines = lines.to_vec();
    let operations = rng.choose(&lanes.iter().filter(|lane| lane.len() > 3).collect::<Vec<_>>());
    match rng.below(5) {
        0..=2 => {
            let waiting: Vec<&Operation> =
                lanes.iter().flatten().filter(|op| op.waits.len() + op.carried.len() > 0).collect();
            let operation = rng.choose(&waiting);
            let (mut waits, mut carried) = (operation.waits.clone(), operation.carried.clone());
            let number = rng.below(waits.len() + carried.len());
            let (list, chosen) = match number.checked_sub(waits.len()) {
                None => (&mut waits, number),
                Some(carried_number) => (&mut carried, carried_number),
            };
            match list[chosen].1 {
                position if position > 0 && rng.once_in(3) => {
                    list[chosen].1 -= 1 + rng.below(position.min(3));
                }
                _ => drop(list.remove(chosen)),
            }
            let line = &mut lines[operation.line];
            let end = line.rfind('"').expect("a quoted label") + 1;
            line.truncate(end);
            for (word, list) in [("after", waits), ("carried", carried)] {
                let list: Vec<_> = list.iter().map(|(lane, at)| format!("{lane}/{at}")).collect();
                if !list.is_empty() {
                    line.push_str(&format!(" {word} {}", list.join(", ")));
                }
            }
        }
        3 => {
            let at = 1 + rng.below(operations.len() - 2);
            lines.swap(operations[at].line, operations[at - 1].line);
        }
        _ => {
            let line = &mut lines[rng.choose(&operations.iter().collect::<Vec<_>>()).line];
            let start = line.find("] ")? + 2;
            let plus: Vec<usize> = line[start..].match_indices('+').map(|(at, _)| start + at).collect();
            let plus = rng.choose(&plus);
            let first = line[..plus].rfind(|c: char| !c.is_ascii_digit())? + 1;
            let offset: u64 = line[first..plus].parse().ok()?;
            let moved = (offset + 64 * (1 + rng.below(4) as u64)).checked_sub(64 * rng.below(5) as u64)?;
            line.replace_range(first..plus, &moved.to_string());
        }
    }
    Some(lines)
}

#[test]
fn what_the_verifier_accepts_has_no_race_by_another_checker() {
    let graph = zoo::gpt2(8, zoo::GPT2);
    let (mut accepted, mut refused, mut raced) = (0, 0, 0);
    const EACH: u64 = 600;
    for (seed, (plan, devices)) in (0..).zip([("dp", 2), ("fsdp2-tp2", 4), ("pp", 2), ("sp", 4)]) {
        let settings = settings(&graph, (plan, devices, None));
        let text = compile(&graph, &settings).expect("the plan suits the model").to_string();
        let lines: Vec<String> = text.lines().map(str::to_string).collect();
        let lanes = read(&lines);
        assert_eq!(problem(&lanes), None, "{plan}: the program as it is");
        let mut rng = Rng::new(seed);
        for case in 0..EACH {
            let Some(mutant) = mutate(&lines, &lanes, &mut rng) else { continue };
            match mutant.join("\n").parse::<Program>() {
                Err(_) => {
                    refused += 1;
                    raced += u64::from(problem(&read(&mutant)).is_some());
                }
                Ok(_) => {
                    accepted += 1;
                    assert_eq!(problem(&read(&mutant)), None, "{plan}, seed {seed}, case {case}");
                }
            }
        }
    }
    // Others are refused for rules that the checker does not know, such as slices outside of an arena.
    assert!(
        accepted > EACH && raced > 2 * EACH,
        "{accepted} accepted, {refused} refused, {raced} of them with a race"
    );
}
