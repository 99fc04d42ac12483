//! Which tasks of the row before a task reads: the patterns of Task Bench.
//!
//! Each pattern is one predicate over (row, reader, read). Dependencies therefore come in ascending order, without
//! repetition, and always from the row directly before; the first row has none.

use std::fmt;
use std::str::FromStr;

/// Which tasks depend on which from one row to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// No dependencies at all.
    Trivial,
    /// Independent chains: each task reads its own column.
    NoComm,
    /// Each task reads its own column and both neighbors.
    Stencil1d,
    /// Each task reads its own column and those at a distance that doubles from row to row, then starts again at one.
    Fft,
    /// A binary broadcast from column 0 to all, then a reduction back to it, and so on in turns. A column that takes
    /// no part in a row reads itself only.
    Tree,
    /// Each task reads its own column and a random half of the two neighbors on either side; the same ones each time.
    RandomNearest,
    /// Each task reads three columns that are a third of the width apart and move on by one with every row.
    Spread,
    /// Each task reads the whole row.
    AllToAll,
}

impl Pattern {
    /// All patterns, from the fewest dependencies to the most.
    pub const ALL: [Self; 8] = [
        Self::Trivial,
        Self::NoComm,
        Self::Tree,
        Self::Stencil1d,
        Self::Fft,
        Self::RandomNearest,
        Self::Spread,
        Self::AllToAll,
    ];

    /// The name by which it is asked for.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trivial => "trivial",
            Self::NoComm => "no_comm",
            Self::Stencil1d => "stencil_1d",
            Self::Fft => "fft",
            Self::Tree => "tree",
            Self::RandomNearest => "random_nearest",
            Self::Spread => "spread",
            Self::AllToAll => "all_to_all",
        }
    }

    /// Whether task `i` of row `step`, which is not the first, reads task `j` of the row before it.
    fn reads(self, width: usize, step: usize, i: usize, j: usize) -> bool {
        let distance = i.abs_diff(j);
        // So many doublings reach from one column to all.
        let levels = width.next_power_of_two().ilog2().max(1) as usize;
        let (round, level) = ((step - 1) / levels, (step - 1) % levels);
        let growing = 1 << level;
        let shrinking = 1 << (levels - 1 - level);
        match self {
            Self::Trivial => false,
            Self::NoComm => i == j,
            Self::Stencil1d => distance <= 1,
            Self::Fft => i == j || distance == growing,
            Self::Tree if round.is_multiple_of(2) => i == j || (j < growing && i == j + growing),
            Self::Tree => i == j || (i < shrinking && j == i + shrinking),
            Self::RandomNearest => i == j || (distance <= 2 && coin(step, i, j)),
            Self::Spread => (0..3).any(|third| j == (i + step + third * width / 3) % width),
            Self::AllToAll => true,
        }
    }
}

/// One fair bit for each triple, the same on every machine.
fn coin(step: usize, i: usize, j: usize) -> bool {
    let mut bits = ((step as u64) << 40) ^ ((i as u64) << 20) ^ j as u64;
    bits = (bits ^ (bits >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 29)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    bits >> 63 == 1
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no pattern's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no pattern `{name}`; use one of {}", Pattern::ALL.map(Pattern::name).join(", "))]
pub struct UnknownPattern {
    /// What was asked for.
    pub name: String,
}

impl FromStr for Pattern {
    type Err = UnknownPattern;

    fn from_str(name: &str) -> Result<Self, UnknownPattern> {
        let found = Self::ALL.into_iter().find(|pattern| pattern.name() == name);
        found.ok_or_else(|| UnknownPattern { name: name.into() })
    }
}

/// A pattern and its extent: `steps` rows of `width` tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternShape {
    /// Which tasks depend on which.
    pub pattern: Pattern,
    /// Tasks in a row.
    pub width: usize,
    /// Rows.
    pub steps: usize,
}

impl PatternShape {
    /// Tasks in all.
    pub fn tasks(&self) -> usize {
        self.width * self.steps
    }

    /// The columns of row `step - 1` that task `i` of row `step` reads, ascending.
    pub fn deps(&self, step: usize, i: usize) -> impl Iterator<Item = usize> + use<> {
        let Self { pattern, width, .. } = *self;
        let columns = if step == 0 { 0 } else { width };
        (0..columns).filter(move |&j| pattern.reads(width, step, i, j))
    }

    /// What task number `task` reads, by number; tasks are numbered row by row.
    pub fn reads(&self, task: usize) -> impl Iterator<Item = usize> + use<> {
        let (step, width) = (task / self.width, self.width);
        self.deps(step, task % width).map(move |j| (step - 1) * width + j)
    }

    /// A number that two programs agree on only if they mean the same graph.
    pub fn digest(&self) -> u64 {
        let mut digest = 0xcbf2_9ce4_8422_2325u64;
        let mut add = |value: usize| digest = (digest ^ value as u64).wrapping_mul(0x0000_0100_0000_01b3);
        for step in 0..self.steps {
            for i in 0..self.width {
                self.deps(step, i).for_each(|j| add(j + 1));
                add(0);
            }
        }
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What every task of one row reads.
    fn row(pattern: Pattern, width: usize, step: usize) -> Vec<Vec<usize>> {
        let shape = PatternShape { pattern, width, steps: step + 1 };
        (0..width).map(|i| shape.deps(step, i).collect()).collect()
    }

    #[test]
    fn local_patterns() {
        assert_eq!(row(Pattern::Trivial, 3, 1), [[0; 0]; 3]);
        assert_eq!(row(Pattern::NoComm, 3, 5), [[0], [1], [2]]);
        assert_eq!(row(Pattern::Stencil1d, 4, 1), [vec![0, 1], vec![0, 1, 2], vec![1, 2, 3], vec![2, 3]]);
        assert_eq!(row(Pattern::AllToAll, 3, 2), [[0, 1, 2]; 3]);
    }

    #[test]
    fn tasks_are_numbered_row_by_row() {
        let shape = PatternShape { pattern: Pattern::Stencil1d, width: 3, steps: 3 };
        let reads: Vec<Vec<usize>> = (0..shape.tasks()).map(|task| shape.reads(task).collect()).collect();
        let none = Vec::new;
        let first = [none(), none(), none(), vec![0, 1], vec![0, 1, 2], vec![1, 2]];
        assert_eq!(reads[..6], first);
        assert_eq!(reads[6..], [vec![3, 4], vec![3, 4, 5], vec![4, 5]]);
    }

    #[test]
    fn fft_doubles_its_distance() {
        let near = [vec![0, 1], vec![0, 1, 2], vec![1, 2, 3], vec![2, 3]];
        let far = [[0, 2], [1, 3], [0, 2], [1, 3]];
        assert_eq!(row(Pattern::Fft, 4, 1), near);
        assert_eq!(row(Pattern::Fft, 4, 2), far);
        assert_eq!(row(Pattern::Fft, 4, 3), near);
        // Three columns need two doublings as four do.
        assert_eq!(row(Pattern::Fft, 3, 2), [vec![0, 2], vec![1], vec![0, 2]]);
    }

    #[test]
    fn tree_broadcasts_then_reduces() {
        assert_eq!(row(Pattern::Tree, 4, 1), [vec![0], vec![0, 1], vec![2], vec![3]]);
        assert_eq!(row(Pattern::Tree, 4, 2), [vec![0], vec![1], vec![0, 2], vec![1, 3]]);
        assert_eq!(row(Pattern::Tree, 4, 3), [vec![0, 2], vec![1, 3], vec![2], vec![3]]);
        assert_eq!(row(Pattern::Tree, 4, 4), [vec![0, 1], vec![1], vec![2], vec![3]]);
        assert_eq!(row(Pattern::Tree, 4, 5), row(Pattern::Tree, 4, 1));
        // The fourth column is missing, and so is what it would have sent.
        assert_eq!(row(Pattern::Tree, 3, 3), [vec![0, 2], vec![1], vec![2]]);
    }

    #[test]
    fn spread_turns_with_the_rows() {
        assert_eq!(row(Pattern::Spread, 6, 1)[0], [1, 3, 5]);
        assert_eq!(row(Pattern::Spread, 6, 2)[0], [0, 2, 4]);
        assert_eq!(row(Pattern::Spread, 6, 2)[3], [1, 3, 5]);
        assert_eq!(row(Pattern::Spread, 2, 1), [[0, 1]; 2]);
    }

    #[test]
    fn random_reads_itself_and_half_of_its_neighbors() {
        let shape = PatternShape { pattern: Pattern::RandomNearest, width: 32, steps: 101 };
        let mut others = 0;
        for (step, i) in (1..101).flat_map(|step| (0..32).map(move |i| (step, i))) {
            let deps: Vec<usize> = shape.deps(step, i).collect();
            assert!(
                deps.contains(&i) && deps.iter().all(|j| j.abs_diff(i) <= 2),
                "({step}, {i}) reads {deps:?}"
            );
            others += deps.len() - 1;
        }
        // 122 candidates a row, 100 rows: half is 6100, give or take 55.
        assert!((5850..6350).contains(&others), "{others} of 12200 neighbors");
        assert_ne!(row(Pattern::RandomNearest, 32, 1), row(Pattern::RandomNearest, 32, 2));
    }

    #[test]
    fn a_single_column_and_the_first_row_are_fine() {
        for pattern in Pattern::ALL {
            let itself: &[usize] = if pattern == Pattern::Trivial { &[] } else { &[0] };
            assert_eq!(row(pattern, 1, 3), [itself], "{pattern}");
            assert_eq!(row(pattern, 5, 0), [[0; 0]; 5], "{pattern}");
        }
    }

    #[test]
    fn names_are_read_back_and_digests_tell_graphs_apart() {
        let mut digests = Vec::new();
        for pattern in Pattern::ALL {
            assert_eq!(pattern.name().parse(), Ok(pattern));
            digests.push(PatternShape { pattern, width: 8, steps: 9 }.digest());
        }
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), Pattern::ALL.len());
        let error = "stencil".parse::<Pattern>().unwrap_err().to_string();
        assert!(error.starts_with("there is no pattern `stencil`; use one of trivial, no_comm,"), "{error}");
    }
}
