//! Drops edges that the order of processors implies, however far apart they lead.
//!
//! A processor whose operations each follow the one before, as they are defined, is a *line*. An operation that waits
//! for one of a line has waited for all earlier ones, and what one operation of a line has waited for, the later ones
//! need not wait for again. So an operation keeps at most one edge from every line, and none from its own but that of
//! the one before it.
//!
//! As in `reduce`, each edge is implied by edges between operations nearer together in the order. Lines consist of
//! tasks whose effects are complete when they return.

use super::NONE;
use crate::flow::builder::Op;
use crate::flow::{Lists, TaskKind};

/// The most lines that are distinguished, so that what each knows of each fits a few megabytes.
const MOST: usize = 1024;

/// Drops what lines imply from `predecessors`; those that were declared determine the lines.
pub(super) fn reduce(ops: &[Op], declared: &Lists, predecessors: Lists) -> Lists {
    let lines = Lines::find(ops, declared);
    if lines.count == 0 {
        return predecessors;
    }
    let mut keep = lines.needed(&predecessors).into_iter();
    predecessors.retained(|_, _| keep.next().expect("every edge was looked at"))
}

struct Lines {
    count: usize,
    /// By operation: its line and its place there; [`NONE`] for those of no line.
    spots: Vec<(u32, u32)>,
}

impl Lines {
    fn find(ops: &[Op], declared: &Lists) -> Lines {
        let mut last: Vec<Option<u32>> = Vec::new();
        let mut broken: Vec<bool> = Vec::new();
        let mut spots = vec![(NONE, 0); ops.len()];
        for (number, op) in (0..).zip(ops) {
            let Some(processor) = op.processor else { continue };
            let at = processor as usize;
            if at >= last.len() {
                last.resize(at + 1, None);
                broken.resize(at + 1, false);
            }
            let before = last[at].replace(number);
            let follows = before.is_none_or(|before| declared.of(number).contains(&before));
            broken[at] |= !follows || !matches!(op.kind, TaskKind::NonBlocking | TaskKind::Blocking);
            spots[number as usize] = (processor, before.map_or(0, |before| spots[before as usize].1 + 1));
        }
        // Lines get numbers of their own, ascending with their processors.
        let mut count = 0;
        let number = |&broken: &bool| {
            let line = if broken { NONE } else { count };
            count += u32::from(!broken);
            line
        };
        let numbers: Vec<u32> = broken.iter().map(number).collect();
        let count = if count as usize > MOST { 0 } else { count as usize };
        spots.iter_mut().filter(|spot| spot.0 != NONE).for_each(|spot| spot.0 = numbers[spot.0 as usize]);
        Lines { count, spots }
    }

    /// Of all edges, in the order of the lists, whether they are needed.
    fn needed(&self, predecessors: &Lists) -> Vec<bool> {
        let mut needed = Vec::with_capacity(predecessors.items().len());
        // How many operations of each line every line has waited for, row after row.
        let mut known = vec![0; self.count * self.count];
        // The place of the latest predecessor in each line.
        let mut latest = vec![0; self.count];
        for (op, &(own, place)) in (0..).zip(&self.spots) {
            let on_lines = || {
                predecessors
                    .of(op)
                    .iter()
                    .map(|&from| self.spots[from as usize])
                    .filter(|spot| spot.0 != NONE)
            };
            on_lines().for_each(|(line, _)| latest[line as usize] = 0);
            on_lines().for_each(|(line, at)| latest[line as usize] = latest[line as usize].max(at));
            let at_own = |line: u32| own as usize * self.count + line as usize;
            needed.extend(predecessors.of(op).iter().map(|&from| match self.spots[from as usize] {
                (NONE, _) => true,
                (line, at) if line == own => at + 1 == place,
                (line, at) => at == latest[line as usize] && (own == NONE || known[at_own(line)] <= at),
            }));
            if own != NONE {
                let waited = on_lines().filter(|&(line, _)| line != own);
                waited.for_each(|(line, at)| known[at_own(line)] = known[at_own(line)].max(at + 1));
            }
        }
        needed
    }
}
