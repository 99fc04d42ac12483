//! Running all parts together without buffers.
//!
//! An operation is *posted* when the one before it in its lane and all it waits for are complete. It is complete when it
//! and all operations that it shares messages with are posted.

use super::job::Job;
use super::{CertificateError, Turn};

/// An order in which all operations can be posted; if there is none, a circle.
pub(super) fn find(job: &Job<'_>) -> Result<Vec<Turn>, CertificateError> {
    let mut run = Run::new(job);
    let mut turns: Vec<Turn> = Vec::new();
    // By operation: the lanes to look at again when it is complete.
    let mut waiting: Vec<Vec<u32>> = vec![Vec::new(); job.lane_of.len()];
    let mut ready: Vec<u32> = (0..job.lanes.len() as u32).rev().collect();
    while let Some(lane) = ready.pop() {
        let mut count = 0;
        while let Some(op) = run.head(lane) {
            if let Some(before) = run.holds_back(op) {
                waiting[before as usize].push(lane);
                break;
            }
            run.post(op, |complete| ready.append(&mut waiting[complete as usize]));
            count += 1;
        }
        if count > 0 {
            let (rank, lane) = (job.lanes[lane as usize].rank, job.lanes[lane as usize].number);
            turns.push(Turn { rank, lane, count });
        }
    }
    match (0..job.lanes.len() as u32).find(|&lane| run.head(lane).is_some()) {
        Some(stuck) => Err(run.circle(stuck)),
        None => Ok(turns),
    }
}

/// Checks that operations can be posted in this order, and that all are.
pub(super) fn follow(job: &Job<'_>, turns: &[Turn]) -> Result<(), CertificateError> {
    let mut run = Run::new(job);
    for (turn, &Turn { rank, lane, count }) in turns.iter().enumerate() {
        let known = job.lane(rank, lane);
        let left = known.map_or(0, |lane| job.lanes[lane as usize].end - run.next[lane as usize]);
        let Some(known) = known.filter(|_| count <= left) else {
            return Err(CertificateError::NoTurn { turn, count, lane, rank, left });
        };
        for _ in 0..count {
            let op = run.next[known as usize];
            if let Some(before) = run.holds_back(op) {
                let (what, before) = (job.what(op), job.what(before));
                return Err(CertificateError::TooEarly { turn, what, before });
            }
            run.post(op, |_| ());
        }
    }
    match (0..job.lanes.len() as u32).find_map(|lane| run.head(lane)) {
        Some(op) => Err(CertificateError::Missing { what: job.what(op) }),
        None => Ok(()),
    }
}

struct Run<'a> {
    job: &'a Job<'a>,
    /// By lane: its first operation that is not posted.
    next: Vec<u32>,
    /// By operation: how many of it and its partners are not posted.
    missing: Vec<u32>,
}

impl<'a> Run<'a> {
    fn new(job: &'a Job<'a>) -> Self {
        let next = job.lanes.iter().map(|lane| lane.first).collect();
        let missing = job.partners.iter().map(|partners| 1 + partners.len() as u32).collect();
        Run { job, next, missing }
    }

    /// The next operation of a lane to be posted.
    fn head(&self, lane: u32) -> Option<u32> {
        Some(self.next[lane as usize]).filter(|&op| op < self.job.lanes[lane as usize].end)
    }

    /// What the next operation of its lane waits for.
    fn holds_back(&self, op: u32) -> Option<u32> {
        let first = self.job.lanes[self.job.lane_of[op as usize] as usize].first;
        let before = (op > first).then(|| op - 1);
        before.into_iter().chain(self.job.waits(op)).find(|&before| self.missing[before as usize] > 0)
    }

    /// Posts the next operation of its lane; tells which ones are complete with that.
    fn post(&mut self, op: u32, mut complete: impl FnMut(u32)) {
        self.next[self.job.lane_of[op as usize] as usize] += 1;
        for &touched in self.job.partners[op as usize].iter().chain([&op]) {
            self.missing[touched as usize] -= 1;
            if self.missing[touched as usize] == 0 {
                complete(touched);
            }
        }
    }

    /// Goes from a stuck lane to the one it waits for, and on, until it comes to one again.
    fn circle(&self, stuck: u32) -> CertificateError {
        let (mut path, mut lane) = (Vec::new(), stuck);
        // By lane: where it is on the path.
        let mut seen = vec![None; self.job.lanes.len()];
        while seen[lane as usize].is_none() {
            seen[lane as usize] = Some(path.len());
            let head = self.head(lane).expect("a lane that waits has an operation that is not posted");
            let before = self.holds_back(head).expect("a lane stops only where something holds it back");
            path.extend([head, before]);
            // If it is posted, it is not complete because a partner is not posted.
            if before < self.next[self.job.lane_of[before as usize] as usize] {
                let partners = self.job.partners[before as usize].iter();
                let missing = partners.copied().find(|&partner| self.is_open(partner));
                path.extend(missing);
            }
            let last = path[path.len() - 1];
            lane = self.job.lane_of[last as usize];
        }
        let mut circle = path.split_off(seen[lane as usize].unwrap_or_default());
        circle.dedup();
        if circle.len() > 1 && circle.first() == circle.last() {
            circle.pop();
        }
        CertificateError::Circle { operations: circle.into_iter().map(|op| self.job.what(op)).collect() }
    }

    fn is_open(&self, op: u32) -> bool {
        op >= self.next[self.job.lane_of[op as usize] as usize]
    }
}
