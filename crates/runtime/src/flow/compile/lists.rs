//! Making lists: counting sort, never comparing.

use crate::flow::Lists;

impl Lists {
    /// Of pairs of position and item, for each of `n` positions its items in the order of the pairs.
    pub(super) fn group(n: usize, pairs: &[(u32, u32)]) -> Lists {
        Lists::place(n, pairs.iter().copied())
    }

    /// The lists turned round: for each of `n` items the positions whose lists hold it. Positions are walked in the
    /// given order, and so every new list has that order.
    pub(super) fn transposed(&self, positions: &[u32], n: usize) -> Lists {
        let pairs = |&position: &u32| self.of(position).iter().map(move |&item| (item, position));
        Lists::place(n, positions.iter().flat_map(pairs))
    }

    fn place(n: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Lists {
        // Position `p` is counted at `p + 2`. After the sums its list starts where `starts[p + 1]` says, which moves to
        // its end, the start of the next, while the list fills.
        let mut starts = vec![0_u32; n + 2];
        pairs.clone().for_each(|(position, _)| starts[position as usize + 2] += 1);
        let mut sum = 0;
        starts.iter_mut().for_each(|start| {
            sum += *start;
            *start = sum;
        });
        let mut items = vec![0; sum as usize];
        for (position, item) in pairs {
            let next = &mut starts[position as usize + 1];
            items[*next as usize] = item;
            *next += 1;
        }
        starts.pop();
        Lists { starts, items }
    }

    /// Without the second and later occurrences of an item in a list. Items are below `n`.
    pub(super) fn without_repeats(self, n: usize) -> Lists {
        let mut last_seen = vec![u32::MAX; n];
        self.retained(|position, item| {
            let last = std::mem::replace(&mut last_seen[item as usize], position);
            last != position
        })
    }

    /// Only the items for which `keep` holds, which is asked in order.
    pub fn retained(mut self, mut keep: impl FnMut(u32, u32) -> bool) -> Lists {
        let (mut read, mut written) = (0, 0);
        for position in 0..self.starts.len() - 1 {
            let end = self.starts[position + 1] as usize;
            while read < end {
                let item = self.items[read];
                if keep(position as u32, item) {
                    self.items[written] = item;
                    written += 1;
                }
                read += 1;
            }
            self.starts[position + 1] = written as u32;
        }
        self.items.truncate(written);
        self
    }
}
