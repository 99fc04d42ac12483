//! Many short lists in one array.

/// Lists by number; all items lie side by side.
#[derive(Clone, Debug)]
pub(crate) struct Rows<T> {
    starts: Vec<u32>,
    items: Vec<T>,
}

impl<T: Copy> Rows<T> {
    /// One list for each of `lists`.
    pub fn new<L: IntoIterator<Item = T>>(lists: impl IntoIterator<Item = L>) -> Self {
        let (mut starts, mut items) = (vec![0], Vec::new());
        for list in lists {
            items.extend(list);
            starts.push(u32::try_from(items.len()).expect("a problem has fewer than 2^32 dependencies"));
        }
        Rows { starts, items }
    }

    /// The items of each number among `count`, from pairs of a number and an item.
    pub fn group(count: usize, pairs: impl IntoIterator<Item = (usize, T)> + Clone) -> Self {
        let mut starts = vec![0_u32; count + 1];
        for (row, _) in pairs.clone() {
            starts[row + 1] += 1;
        }
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let mut next = starts.clone();
        let mut items: Vec<Option<T>> = vec![None; starts[count] as usize];
        for (row, item) in pairs {
            items[next[row] as usize] = Some(item);
            next[row] += 1;
        }
        Rows { starts, items: items.into_iter().flatten().collect() }
    }

    /// The list of number `row`.
    #[inline]
    pub fn row(&self, row: usize) -> &[T] {
        &self.items[self.starts[row] as usize..self.starts[row + 1] as usize]
    }

    /// How many lists there are.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// All lists in order.
    pub fn iter(&self) -> impl Iterator<Item = &[T]> {
        (0..self.len()).map(|row| self.row(row))
    }
}
