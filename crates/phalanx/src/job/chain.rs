//! Which operation waits for which, over all ranks, down to the one where a step is stuck.
//!
//! Every rank says how far its lanes are; what an operation waits for is in the parts of the program, which all ranks
//! can compute. From an operation that is not complete the chain goes to one that it waits for: in its lane's own part
//! through waits, to another rank through the other end of a message. It ends at the first operation that waits for no
//! other.

use std::collections::BTreeSet;
use std::fmt;

use phalanx_program::{ARRIVE, Operation, Program, SEND, Wait};
use serde::{Deserialize, Serialize};

/// How far a rank is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressReport {
    /// Runs launched so far.
    pub launched: u64,
    /// Seconds since an operation was completed last.
    pub seconds: u64,
    /// By lane of its part.
    pub lanes: Vec<LaneProgress>,
}

/// How far a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneProgress {
    /// Which run it is in.
    pub run: u64,
    /// Operations of that run that are complete: fewer than the lane has, if it has any.
    pub done: u32,
    /// Whether the next one has been started.
    pub running: bool,
}

/// An operation that is not complete, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitLink {
    /// Whose it is.
    pub rank: u32,
    /// On which device; none where only the rank is known.
    pub device: Option<u32>,
    /// Which one, for people.
    pub operation: String,
    /// In which run, from 0.
    pub run: Option<u64>,
    /// Why it is not complete.
    pub why: Why,
}

/// Why an operation is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It waits for the next link of the chain.
    Waits,
    /// It is being executed.
    Runs,
    /// Both ranks have started the message.
    UnderWay,
    /// All it waits for is complete, but it has not been started.
    Ready,
    /// The rank has done all it had to do, and its main thread starts no further run.
    Idle,
    /// The rank says nothing.
    Silent,
    /// It waits for itself: the program is wrong.
    Circle,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    rank: u32,
    lane: u32,
    position: u32,
    run: u64,
}

/// The chain from what rank `from` waits for; `parts` and `reports` are by rank, none where a rank says nothing.
pub fn chain(parts: &[Program], reports: &[Option<ProgressReport>], from: u32) -> Vec<WaitLink> {
    let finder = Finder { parts, reports };
    let (mut links, mut seen) = (Vec::new(), BTreeSet::new());
    let mut next = finder.unfinished(from);
    loop {
        let node = match next {
            Ok(node) => node,
            Err((rank, why)) => {
                let operation = String::new();
                links.push(WaitLink { rank, device: None, operation, run: None, why });
                return links;
            }
        };
        let again = !seen.insert(node);
        let step = if again { ChainStep::Ends(Why::Circle) } else { finder.step(node) };
        let why = if let ChainStep::Ends(why) = step { why } else { Why::Waits };
        links.push(finder.link(node, why));
        match step {
            ChainStep::Ends(_) => return links,
            ChainStep::Goes(to) => next = to,
        }
    }
}

/// The rank whose chain is the most useful: of those that have something left to do, the one that stands still for
/// longest. If there is none, one that says nothing; if all are idle, the longest.
pub(super) fn held_up(parts: &[Program], reports: &[Option<ProgressReport>]) -> u32 {
    let finder = Finder { parts, reports };
    let telling = |&rank: &u32| {
        let worth = match finder.unfinished(rank) {
            Ok(_) => 2,
            Err((_, Why::Silent)) => 1,
            Err(_) => 0,
        };
        (worth, finder.report(rank).map(|report| report.seconds))
    };
    // The lowest of equals.
    (0..reports.len() as u32).rev().max_by_key(telling).unwrap_or(0)
}

/// Where a chain goes on: at an operation, or at a rank of which no more is known.
type Next = Result<Node, (u32, Why)>;

enum ChainStep {
    Ends(Why),
    Goes(Next),
}

struct Finder<'a> {
    parts: &'a [Program],
    reports: &'a [Option<ProgressReport>],
}

impl Finder<'_> {
    /// What a rank says. Whatever does not fit its part is worth nothing.
    fn report(&self, rank: u32) -> Option<&ProgressReport> {
        let report = self.reports.get(rank as usize)?.as_ref()?;
        let part = self.parts.get(rank as usize)?;
        (report.lanes.len() == part.lanes().len()).then_some(report)
    }

    /// An operation of a rank that is not complete in a run that was launched: one that is being executed, since no
    /// other rank holds that up; else the earliest.
    fn unfinished(&self, rank: u32) -> Next {
        let Some(report) = self.report(rank) else { return Err((rank, Why::Silent)) };
        let nodes = (0..report.lanes.len() as u32).filter_map(|lane| self.next(rank, lane, report));
        let open = nodes.filter(|node| node.run < report.launched);
        open.min_by_key(|&node| (!self.is_executing(node), node.run, node.lane)).ok_or((rank, Why::Idle))
    }

    /// The operation that a lane is at, if it has any.
    fn next(&self, rank: u32, lane: u32, report: &ProgressReport) -> Option<Node> {
        let LaneProgress { run, done, .. } = report.lanes[lane as usize];
        let length = self.parts[rank as usize].lanes()[lane as usize].operations.len() as u32;
        (done < length).then_some(Node { rank, lane, position: done, run })
    }

    fn operation(&self, node: Node) -> &Operation {
        let part = &self.parts[node.rank as usize];
        &part.operations_of(&part.lanes()[node.lane as usize])[node.position as usize]
    }

    fn is_complete(&self, node: Node) -> bool {
        let Some(report) = self.report(node.rank) else { return false };
        let LaneProgress { run, done, .. } = report.lanes[node.lane as usize];
        run > node.run || run == node.run && done > node.position
    }

    fn is_running(&self, node: Node) -> bool {
        let Some(report) = self.report(node.rank) else { return false };
        report.lanes[node.lane as usize].running && self.next(node.rank, node.lane, report) == Some(node)
    }

    /// Whether it runs on this rank alone.
    fn is_executing(&self, node: Node) -> bool {
        let kernel = self.parts[node.rank as usize].kernel(self.operation(node));
        self.is_running(node) && ![SEND, ARRIVE].contains(&kernel)
    }

    fn step(&self, node: Node) -> ChainStep {
        let Some(report) = self.report(node.rank) else { return ChainStep::Ends(Why::Silent) };
        if node.run >= report.launched {
            return ChainStep::Goes(self.unfinished(node.rank));
        }
        if let Some(earlier) = self.next(node.rank, node.lane, report).filter(|&next| next != node) {
            return ChainStep::Goes(Ok(earlier));
        }
        let part = &self.parts[node.rank as usize];
        let operation = self.operation(node);
        if self.is_running(node) {
            return match part.kernel(operation) {
                SEND | ARRIVE => self.other_end(node, operation),
                _ => ChainStep::Ends(Why::Runs),
            };
        }
        let at = |wait: &Wait, run| Node { rank: node.rank, lane: wait.lane, position: wait.position, run };
        let same = part.waits(operation).iter().map(|wait| at(wait, node.run));
        let before = node.run.checked_sub(1);
        let carried = part.carried(operation).iter().filter_map(|wait| Some(at(wait, before?)));
        let open = same.chain(carried).find(|&wait| !self.is_complete(wait));
        open.map_or(ChainStep::Ends(Why::Ready), |wait| ChainStep::Goes(Ok(wait)))
    }

    /// The other end of a message that was started here and is not complete. What is known not to be started comes
    /// before what may be: of the end of a rank that says nothing it is not known whether it is missing.
    fn other_end(&self, node: Node, operation: &Operation) -> ChainStep {
        let part = &self.parts[node.rank as usize];
        let kernel = if part.kernel(operation) == SEND { ARRIVE } else { SEND };
        let ends = part.messages(operation);
        let (heard, silent): (Vec<_>, Vec<_>) = ends.iter().partition(|end| self.report(end.peer).is_some());
        let mut others =
            heard.iter().filter_map(|end| self.find(end.peer, kernel, node.rank, end.tag, node.run));
        let missing = others.find(|&other| !self.is_complete(other) && !self.is_running(other));
        match (missing, silent.first()) {
            (Some(other), _) => ChainStep::Goes(Ok(other)),
            (None, Some(end)) => ChainStep::Goes(Err((end.peer, Why::Silent))),
            (None, None) => ChainStep::Ends(Why::UnderWay),
        }
    }

    fn find(&self, rank: u32, kernel: &str, peer: u32, tag: u32, run: u64) -> Option<Node> {
        let part = &self.parts[rank as usize];
        (0..).zip(part.lanes()).find_map(|(lane, lane_of)| {
            let operations = (0..).zip(part.operations_of(lane_of));
            let mut ends = operations.filter(|(_, operation)| part.kernel(operation) == kernel);
            let (position, _) = ends.find(|(_, operation)| {
                part.messages(operation).iter().any(|end| end.peer == peer && end.tag == tag)
            })?;
            Some(Node { rank, lane, position, run })
        })
    }

    fn link(&self, node: Node, why: Why) -> WaitLink {
        let part = &self.parts[node.rank as usize];
        WaitLink {
            rank: node.rank,
            device: Some(part.lanes()[node.lane as usize].device),
            operation: part.describe(self.operation(node)),
            run: Some(node.run),
            why,
        }
    }
}

impl fmt::Display for WaitLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        if let (Some(device), Some(run)) = (self.device, self.run) {
            write!(f, ", device {device}: {} of step {}", self.operation, run + 1)?;
        }
        f.write_str(match self.why {
            Why::Waits => " waits for",
            Why::Runs => " is being executed",
            Why::UnderWay => ": its message was started on both sides and does not arrive",
            Why::Ready => " could start, but no thread of the rank does it",
            Why::Idle => {
                " has done all it was told and starts no further step: its main thread is busy or waits"
            }
            Why::Silent => " does not answer: it is stopped, dead or cut off",
            Why::Circle => " waits for itself: this is a bug",
        })
    }
}

#[cfg(test)]
mod tests;
