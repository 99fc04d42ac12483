//! The bytes alive at the nodes of a group that moves through a list.
//!
//! A group grows at one end only, so that its nodes have numbers in the order they join. Passing a node changes all
//! levels alike, and a buffer that changes hands changes those of the nodes up to some number; both cost a logarithm
//! at most, and the highest level is always known.

/// Levels by number.
#[derive(Clone, Debug)]
pub(in crate::model) struct Levels {
    /// Belongs to every level.
    offset: i64,
    len: usize,
    /// A heap-shaped tree over steps: level `i` is the offset and the steps from `i` on, so that a change of all
    /// levels before some number is one step's change.
    tree: Vec<Span>,
}

/// A range of steps.
#[derive(Clone, Copy, Debug)]
struct Span {
    sum: i64,
    /// The largest sum of a tail that holds a step in use.
    highest: i64,
}

const EMPTY: Span = Span { sum: 0, highest: i64::MIN / 2 };

impl Span {
    fn join(self, behind: Span) -> Span {
        Span { sum: self.sum + behind.sum, highest: behind.highest.max(self.highest + behind.sum) }
    }
}

impl Levels {
    /// No levels.
    pub fn new() -> Levels {
        Levels { offset: 0, len: 0, tree: vec![EMPTY; 2] }
    }

    /// Forgets all levels.
    pub fn clear(&mut self) {
        (self.offset, self.len) = (0, 0);
        self.tree.clear();
        self.tree.resize(2, EMPTY);
    }

    /// Adds the level of one node more.
    pub fn push(&mut self, level: i64) {
        if self.len == self.tree.len() / 2 {
            self.grow();
        }
        let step = level - self.offset;
        self.len += 1;
        self.add(self.len - 1, step);
        self.raise_before(self.len - 1, -step);
    }

    /// Raises all levels.
    pub fn raise(&mut self, by: i64) {
        self.offset += by;
    }

    /// Raises the levels with numbers below `end`.
    pub fn raise_before(&mut self, end: usize, by: i64) {
        if let Some(last) = end.checked_sub(1) {
            self.add(last, by);
        }
    }

    /// The level of the first node; 0 if there is none.
    pub fn first(&self) -> i64 {
        self.offset + self.tree[1].sum
    }

    /// The highest level.
    pub fn highest(&self) -> i64 {
        self.offset + self.tree[1].highest
    }

    /// All levels with their numbers, the last first.
    pub fn iter(&self) -> impl Iterator<Item = (usize, i64)> {
        let leaves = &self.tree[self.tree.len() / 2..][..self.len];
        leaves.iter().enumerate().rev().scan(self.offset, |level, (number, leaf)| {
            *level += leaf.sum;
            Some((number, *level))
        })
    }

    fn add(&mut self, number: usize, by: i64) {
        let mut at = self.tree.len() / 2 + number;
        let sum = self.tree[at].sum + by;
        self.tree[at] = Span { sum, highest: sum };
        while at > 1 {
            at /= 2;
            self.tree[at] = self.tree[2 * at].join(self.tree[2 * at + 1]);
        }
    }

    /// Twice as many leaves: the old ones move to the right half of a new row of leaves.
    fn grow(&mut self) {
        let leaves = self.tree.len() / 2;
        let mut tree = vec![EMPTY; 4 * leaves];
        tree[2 * leaves..3 * leaves].copy_from_slice(&self.tree[leaves..]);
        for at in (1..2 * leaves).rev() {
            tree[at] = tree[2 * at].join(tree[2 * at + 1]);
        }
        self.tree = tree;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_a_plain_array() {
        let (mut levels, mut plain) = (Levels::new(), Vec::new());
        let mut random = 1_u64;
        for _ in 0..2000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (what, by, end) = (random >> 62, (random >> 40) as i64 % 100 - 50, (random >> 20) as usize);
            match what {
                0 => {
                    levels.push(by);
                    plain.push(by);
                }
                1 => {
                    levels.raise(by);
                    plain.iter_mut().for_each(|level| *level += by);
                }
                _ => {
                    let end = end % (plain.len() + 1);
                    levels.raise_before(end, by);
                    plain[..end].iter_mut().for_each(|level| *level += by);
                }
            }
            if let (Some(&first), Some(&highest)) = (plain.first(), plain.iter().max()) {
                assert_eq!((levels.first(), levels.highest()), (first, highest));
            }
        }
        let mut found: Vec<_> = levels.iter().collect();
        found.reverse();
        assert_eq!(found, plain.into_iter().enumerate().collect::<Vec<_>>());
    }
}
