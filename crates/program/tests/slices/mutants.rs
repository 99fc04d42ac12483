//! Jobs with one thing broken: a certificate is given exactly where brute force finds that every order of steps ends.
//!
//! Brute force knows nothing of partners and turns. It visits every state that the lanes can reach: an operation is posted
//! when the one before it and all it waits for are complete, one message at a time moves when both of its ends are
//! posted, and an operation is complete when all its messages have moved. Nothing is buffered.

use std::collections::HashSet;

use phalanx_program::{Certificate, CertificateError, Program};

use crate::Random;

/// Mutants of jobs; each that has a certificate also has its turns changed, as often as this.
const MUTANTS: usize = 6000;
const CHANGED_TURNS: usize = 3;

/// One end of a message. There is one device on every rank, of the rank's number.
#[derive(Clone, Debug)]
struct End {
    tag: usize,
    peer: usize,
    device: usize,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Operation {
    sends: bool,
    ends: Vec<End>,
    /// Lane and position on the same rank.
    waits: Vec<(usize, usize)>,
}

/// Operations by rank and lane.
type Job = Vec<Vec<Vec<Operation>>>;

/// Messages of a random job, each posted after all before it: such a job ends.
fn random_job(random: &mut Random) -> Job {
    let mut below = |bound: usize| random.below(bound as u64) as usize;
    let ranks = 2 + below(2);
    let mut job: Job = (0..ranks).map(|_| vec![Vec::new(); 1 + below(3)]).collect();
    for tag in 0..2 + below(5) {
        let from = below(ranks);
        let to = (from + 1 + below(ranks - 1)) % ranks;
        let bytes = 4 * (1 + below(3));
        for (rank, peer, sends) in [(from, to, true), (to, from, false)] {
            let lane = below(job[rank].len());
            let other = below(job[rank].len());
            let last = job[rank][other].len().checked_sub(1).filter(|_| other != lane && below(2) == 0);
            let waits = last.map(|position| (other, position)).into_iter().collect();
            let ends = vec![End { tag, peer, device: peer, bytes }];
            job[rank][lane].push(Operation { sends, ends, waits });
        }
    }
    job
}

/// Changes one thing, if the one that was chosen is there.
fn mutate(job: &mut Job, random: &mut Random) -> Option<()> {
    let ranks = job.len();
    let mut below = |bound: usize| if bound == 0 { None } else { Some(random.below(bound as u64) as usize) };
    let rank = below(ranks)?;
    let lanes = job[rank].len();
    let (kind, lane, other) = (below(10)?, below(lanes)?, below(lanes)?);
    let (target, operations) = (below(job[rank][other].len()), &mut job[rank][lane]);
    let at = below(operations.len())?;
    let end = below(operations[at].ends.len());
    match kind {
        0 | 1 => operations.swap(at, at.checked_sub(1)?),
        2 => {
            let second = below(operations.len())?;
            operations.swap(at, second);
        }
        3 => operations[at].waits.push((other, target?)),
        4 => drop(operations[at].waits.pop()?),
        // Two operations of a lane become one.
        5 => {
            let mut second = operations.remove(at);
            let first = operations.get_mut(at.checked_sub(1)?)?;
            let alike = first.sends == second.sends;
            first.ends.append(&mut second.ends);
            first.waits.append(&mut second.waits);
            alike.then_some(())?;
        }
        6 => drop(operations.remove(at)),
        7 => operations[at].ends[end?].bytes += 4,
        8 => operations[at].ends[end?].tag += 1,
        _ => {
            let moved = (rank + 1 + below(ranks - 1)?) % ranks;
            let end = &mut operations[at].ends[end?];
            match below(2)? {
                0 => end.device = moved,
                _ => end.peer = moved,
            }
        }
    }
    Some(())
}

/// The part of every rank as text; every end has bytes of its own.
fn texts(job: &Job) -> Vec<String> {
    let text = |(rank, lanes): (usize, &Vec<Vec<Operation>>)| {
        let mut text = format!("program @job {{\n  part {rank} of {} of 0\n", job.len());
        let (mut lines, mut used) = (Vec::new(), 0);
        for (number, lane) in lanes.iter().enumerate() {
            lines.push(if number == 0 { String::new() } else { format!("  lane dev{rank} beside 0\n") });
            for operation in lane {
                let (mut ends, mut slices) = (Vec::new(), Vec::new());
                for (slice, End { tag, peer, device, bytes }) in operation.ends.iter().enumerate() {
                    ends.push(format!("tag {tag} rank {peer} dev{device} in {slice} at 0 run {bytes}"));
                    slices.push(format!("{used}+64"));
                    used += 64;
                }
                let (ends, slices) = (ends.join(", "), slices.join(", "));
                let moves = match operation.sends {
                    true => format!("send [{ends}] {slices} ->"),
                    false => format!("arrive [{ends}] -> {slices}"),
                };
                let waits: Vec<_> = operation.waits.iter().map(|(lane, at)| format!("{lane}/{at}")).collect();
                let after =
                    if waits.is_empty() { String::new() } else { format!(" after {}", waits.join(", ")) };
                lines.push(format!("    run {moves} scratch 0+0 of \"m\"{after}\n"));
            }
        }
        text += &format!("  lane dev{rank} arena {used}\n");
        text + &lines.concat() + "}"
    };
    job.iter().enumerate().map(text).collect()
}

/// A lane in a state: operations complete, and which messages of the next one have moved, if it is posted.
type LaneState = (usize, Option<Vec<bool>>);

/// What goes wrong in some order of steps.
fn problem(job: &Job) -> Option<String> {
    let lanes: Vec<(usize, usize)> = job
        .iter()
        .enumerate()
        .flat_map(|(rank, lanes)| (0..lanes.len()).map(move |lane| (rank, lane)))
        .collect();
    let start: Vec<LaneState> = lanes.iter().map(|_| (0, None)).collect();
    let (mut seen, mut open) = (HashSet::from([start.clone()]), vec![start]);
    while let Some(state) = open.pop() {
        let next = match steps(job, &lanes, &state) {
            Ok(next) => next,
            Err(problem) => return Some(problem),
        };
        let is_over =
            lanes.iter().zip(&state).all(|(&(rank, lane), (done, _))| *done == job[rank][lane].len());
        if next.is_empty() && !is_over {
            return Some(format!("stuck at {state:?}"));
        }
        open.extend(next.into_iter().filter(|state| seen.insert(state.clone())));
    }
    None
}

/// All states after one step.
fn steps(job: &Job, lanes: &[(usize, usize)], state: &[LaneState]) -> Result<Vec<Vec<LaneState>>, String> {
    let done = |rank: usize, lane: usize| {
        let at = lanes.iter().position(|&known| known == (rank, lane)).expect("a lane of the job");
        state[at].0
    };
    let mut all = Vec::new();
    for (number, &(rank, lane)) in lanes.iter().enumerate() {
        let Some(operation) = job[rank][lane].get(state[number].0) else { continue };
        let Some(moved) = &state[number].1 else {
            if operation.waits.iter().all(|&(lane, at)| done(rank, lane) > at) {
                let mut next = state.to_vec();
                next[number].1 = Some(vec![false; operation.ends.len()]);
                complete(&mut next[number]);
                all.push(next);
            }
            continue;
        };
        for (at, end) in operation.ends.iter().enumerate().filter(|&(at, _)| operation.sends && !moved[at]) {
            for (other, &(peer, peer_lane)) in
                lanes.iter().enumerate().filter(|(_, (peer, _))| *peer == end.peer)
            {
                let Some(arrival) = job[peer][peer_lane].get(state[other].0).filter(|it| !it.sends) else {
                    continue;
                };
                let Some(taken) = &state[other].1 else { continue };
                let fits = |(_, found): &(usize, &End)| found.peer == rank && found.tag == end.tag;
                let Some((place, found)) = arrival.ends.iter().enumerate().find(fits) else { continue };
                if taken[place] || found.bytes != end.bytes || end.device != peer || found.device != rank {
                    return Err(format!("{end:?} meets {found:?}"));
                }
                let mut next = state.to_vec();
                for (lane, place) in [(number, at), (other, place)] {
                    next[lane].1.as_mut().expect("posted")[place] = true;
                    complete(&mut next[lane]);
                }
                all.push(next);
            }
        }
    }
    Ok(all)
}

/// An operation whose messages have all moved is complete.
fn complete(lane: &mut LaneState) {
    if lane.1.as_ref().is_some_and(|moved| moved.iter().all(|moved| *moved)) {
        *lane = (lane.0 + 1, None);
    }
}

/// Whether all operations can be posted in these turns of rank, lane and count. One step at a time: after each, every
/// message whose ends are both posted moves.
fn follows(job: &Job, turns: &[Turn]) -> bool {
    let lanes: Vec<(usize, usize)> = job
        .iter()
        .enumerate()
        .flat_map(|(rank, lanes)| (0..lanes.len()).map(move |lane| (rank, lane)))
        .collect();
    let mut state: Vec<LaneState> = lanes.iter().map(|_| (0, None)).collect();
    for &(rank, lane, count) in turns {
        let Some(number) = lanes.iter().position(|&known| known == (rank, lane)) else { return false };
        for _ in 0..count {
            let is_posted = |next: &Vec<LaneState>| next[number] != state[number];
            let posted = match state[number].1 {
                None => steps(job, &lanes, &state).expect("it fits").into_iter().find(is_posted),
                Some(_) => None,
            };
            let Some(posted) = posted else { return false };
            state = posted;
            // Posting is the only step that leaves as many messages as before.
            let moved = |state: &[LaneState]| -> usize {
                let ends = |(at, (done, now)): (usize, &LaneState)| {
                    let (rank, lane) = lanes[at];
                    let before = job[rank][lane][..*done].iter().map(|operation| operation.ends.len());
                    before.sum::<usize>() + now.iter().flatten().filter(|moved| **moved).count()
                };
                state.iter().enumerate().map(ends).sum()
            };
            let move_one = |state: &[LaneState]| {
                let next = steps(job, &lanes, state).expect("it fits");
                next.into_iter().find(|next| moved(next) > moved(state))
            };
            while let Some(next) = move_one(&state) {
                state = next;
            }
        }
    }
    lanes.iter().zip(&state).all(|(&(rank, lane), (done, _))| *done == job[rank][lane].len())
}

/// Rank, lane and count.
type Turn = (usize, usize, usize);

/// Changes the turns in a certificate's text; the text and the turns.
fn change_turns(text: &str, random: &mut Random) -> Option<(String, Vec<Turn>)> {
    let (before, rest) = text.split_once("  turns ")?;
    let (line, after) = rest.split_once('\n')?;
    let turn = |text: &str| {
        let (rank, rest) = text.split_once('/')?;
        let (lane, count) = rest.split_once('+')?;
        Some((rank.parse().ok()?, lane.parse().ok()?, count.parse().ok()?))
    };
    let mut turns: Vec<Turn> = line.split(", ").map(turn).collect::<Option<_>>()?;
    let (at, other) = (random.below(turns.len() as u64) as usize, random.below(turns.len() as u64) as usize);
    match random.below(4) {
        0 => turns.swap(at, other),
        1 => turns[at].2 += 1,
        2 => drop(turns.remove(at)),
        _ => {
            // One operation later, in another turn.
            turns[at].2 = turns[at].2.checked_sub(1).filter(|count| *count > 0)?;
            let (rank, lane, _) = turns[at];
            turns.push((rank, lane, 1));
        }
    }
    let list: Vec<_> = turns.iter().map(|(rank, lane, count)| format!("{rank}/{lane}+{count}")).collect();
    Some((format!("{before}  turns {}\n{after}", list.join(", ")), turns))
}

#[test]
fn a_certificate_is_given_exactly_where_every_order_of_steps_ends() {
    let mut random = Random(17);
    let [mut certified, mut circles, mut others, mut followed, mut turned_away] = [0; 5];
    for number in 0..MUTANTS {
        let mut job = random_job(&mut random);
        if number % 50 == 0 {
            assert_eq!(problem(&job), None, "messages in one order: {job:?}");
        } else if mutate(&mut job, &mut random).is_none() {
            continue;
        }
        let texts = texts(&job);
        // The verifier of a part refuses tags used twice and circles inside of it.
        let parts: Result<Vec<Program>, _> = texts.iter().map(|text| text.parse()).collect();
        let Ok(parts) = parts else { continue };
        let found = problem(&job);
        match Certificate::new(&parts) {
            Ok(certificate) => {
                assert_eq!(found, None, "{texts:#?}");
                certified += 1;
                for _ in 0..CHANGED_TURNS {
                    let Some((text, turns)) = change_turns(&certificate.to_string(), &mut random) else {
                        continue;
                    };
                    let follows = follows(&job, &turns);
                    assert_eq!(text.parse::<Certificate>().is_ok(), follows, "{text}");
                    *if follows { &mut followed } else { &mut turned_away } += 1;
                }
            }
            Err(errors) => {
                assert!(found.is_some(), "{errors:?} of {texts:#?}");
                match errors[0] {
                    CertificateError::Circle { .. } => circles += 1,
                    _ => others += 1,
                }
            }
        }
    }
    let all = certified + circles + others;
    assert!(
        all >= 2000
            && certified > 500
            && circles > 200
            && others > 500
            && followed > 100
            && turned_away > 1000,
        "{all} mutants: {certified} certified, {circles} circles, {others} others; turns: {followed} can be \
         followed, {turned_away} cannot"
    );
}
