//! A binary heap whose array can be seen.
//!
//! The reference scans its ready heap in array order, so the array must be the one that Python's `heapq` makes: a pop
//! moves the last entry to the root, sinks it to a leaf along the smaller children and lets it rise again. The standard
//! library's heap hides its array.

/// A heap with the smallest entry at the front of its array.
pub(super) struct Heap<T> {
    entries: Vec<T>,
}

impl<T: Copy + Ord> Heap<T> {
    pub(super) fn new() -> Self {
        Heap { entries: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn peek(&self) -> Option<&T> {
        self.entries.first()
    }

    /// All entries in array order.
    pub(super) fn entries(&self) -> &[T] {
        &self.entries
    }

    pub(super) fn push(&mut self, entry: T) {
        self.entries.push(entry);
        self.rise(self.entries.len() - 1, 0);
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let last = self.entries.pop()?;
        let Some(root) = self.entries.first_mut() else { return Some(last) };
        let smallest = std::mem::replace(root, last);
        self.sink(0);
        Some(smallest)
    }

    /// Deletes entries from the array, then orders what is left from the leaves upward.
    pub(super) fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        self.entries.retain(keep);
        for at in (0..self.entries.len() / 2).rev() {
            self.sink(at);
        }
    }

    /// Exchanges the entry at `at` with its parents up to `top`, as long as they are larger.
    fn rise(&mut self, mut at: usize, top: usize) {
        while at > top {
            let parent = (at - 1) / 2;
            if self.entries[at] >= self.entries[parent] {
                break;
            }
            self.entries.swap(at, parent);
            at = parent;
        }
    }

    /// Sinks the entry at `top` to a leaf, whatever its size, and lets it rise again.
    fn sink(&mut self, top: usize) {
        let mut at = top;
        while 2 * at + 1 < self.entries.len() {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let right_is_smaller = right < self.entries.len() && self.entries[left] >= self.entries[right];
            let child = if right_is_smaller { right } else { left };
            self.entries.swap(at, child);
            at = child;
        }
        self.rise(at, top);
    }
}

#[cfg(test)]
mod tests {
    use super::Heap;

    /// The arrays that Python 3.11's `heapq` has after the same calls.
    #[test]
    fn the_array_is_that_of_heapq() {
        let mut heap = Heap::new();
        for entry in [7, 3, 9, 1, 8, 2, 6, 4] {
            heap.push(entry);
        }
        assert_eq!(heap.entries(), [1, 3, 2, 4, 8, 9, 6, 7]);
        assert_eq!(heap.pop(), Some(1));
        assert_eq!(heap.entries(), [2, 3, 6, 4, 8, 9, 7]);
        heap.retain(|&entry| entry != 3 && entry != 6);
        assert_eq!(heap.entries(), [2, 4, 8, 9, 7]);
        assert_eq!(heap.pop(), Some(2));
        assert_eq!(heap.entries(), [4, 7, 8, 9]);
    }

    #[test]
    fn entries_leave_in_order() {
        let mut heap = Heap::new();
        (0..100).for_each(|k| heap.push(k * 37 % 101));
        let left: Vec<i32> = std::iter::from_fn(|| heap.pop()).collect();
        assert_eq!(left.len(), 100);
        assert!(left.is_sorted());
        assert!(heap.is_empty());
    }
}
