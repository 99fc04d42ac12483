//! A table that grows in place: an entry never moves, and reaching one takes no lock.
//!
//! Entries lie in chunks, each twice as long as the one before, made when first reached. A number is taken, used, and
//! given back to be taken again; the entry keeps what it holds meanwhile, which is how its users distinguish old from
//! new.
//!
//! Numbers given back form a stack: `free` names the top, each entry the one below. A thread that takes reads the top,
//! then what is below, then replaces the top by that if it is still the top. `free` also counts how often it was taken
//! from: else a top that was taken, and given back when another one lay below, would pass for the same.

use std::sync::OnceLock;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Entries of the first chunk.
const FIRST_CHUNK: usize = if cfg!(loom) { 2 } else { 64 };

/// Chunks that hold an entry for every number.
const CHUNKS: usize = 33 - FIRST_CHUNK.ilog2() as usize;

/// Entries of one kind, by number.
pub struct Table<T> {
    chunks: [OnceLock<Box<[Entry<T>]>>; CHUNKS],
    /// The last number given back, as a [`Top`].
    free: AtomicU64,
    /// Numbers taken at least once.
    used: AtomicU32,
}

#[derive(Default)]
struct Entry<T> {
    value: T,
    /// What lies below this entry on the stack, plus one; zero if nothing does.
    below: AtomicU32,
}

/// The top of the stack.
#[derive(Clone, Copy)]
struct Top {
    /// Its number plus one; zero if the stack is empty.
    place: u32,
    /// How often a number was taken from the stack. It may wrap around: a thread would have to rest for exactly so
    /// long.
    taken: u32,
}

impl Top {
    fn pack(self) -> u64 {
        u64::from(self.taken) << 32 | u64::from(self.place)
    }

    fn unpack(word: u64) -> Top {
        Top { place: word as u32, taken: (word >> 32) as u32 }
    }
}

/// What makes the stack work. Models weaken each part to see themselves fail.
#[derive(Clone, Copy)]
struct Protocol {
    /// Ordering that publishes what lies below, and what the owner did to the entry; pairs with `take`.
    give_back: Ordering,
    /// Ordering that sees what `give_back` has published.
    take: Ordering,
    /// What a take adds to the count.
    count: u32,
}

const PROTOCOL: Protocol = Protocol { give_back: Ordering::Release, take: Ordering::Acquire, count: 1 };

impl<T: Default> Default for Table<T> {
    fn default() -> Table<T> {
        let (free, used) = (AtomicU64::new(0), AtomicU32::new(0));
        Table { chunks: [const { OnceLock::new() }; CHUNKS], free, used }
    }
}

impl<T: Default> Table<T> {
    /// A number that is the caller's alone until it is given back: the last one given back, or a new one.
    pub fn take(&self) -> u32 {
        self.take_with(PROTOCOL)
    }

    /// Gives `number` back. What its owner did to the entry is seen by the thread that takes it next.
    pub fn give_back(&self, number: u32) {
        self.give_back_with(number, PROTOCOL);
    }

    /// How many numbers were ever in use at the same time, or never given back.
    pub fn used(&self) -> u32 {
        // Relaxed: a count that orders nothing.
        self.used.load(Ordering::Relaxed)
    }

    /// What is at `number`, taken or not.
    pub fn entry(&self, number: u32) -> &T {
        &self.place(number).value
    }

    fn place(&self, number: u32) -> &Entry<T> {
        let place = number as usize + FIRST_CHUNK;
        let chunk = (place.ilog2() - FIRST_CHUNK.ilog2()) as usize;
        let first = FIRST_CHUNK << chunk;
        let entries = self.chunks[chunk].get_or_init(|| (0..first).map(|_| Entry::default()).collect());
        &entries[place - first]
    }

    fn take_with(&self, protocol: Protocol) -> u32 {
        // Acquire, here and below: pairs with the exchange in `give_back_with`; see `Protocol`.
        let mut word = self.free.load(protocol.take);
        loop {
            let top = Top::unpack(word);
            let Some(number) = top.place.checked_sub(1) else { return self.take_new() };
            // Relaxed: written before the exchange that made this the top. If it is not the top any more, the number
            // read here may be anything, and the exchange fails.
            let below = self.place(number).below.load(Ordering::Relaxed);
            let next = Top { place: below, taken: top.taken.wrapping_add(protocol.count) };
            match self.free.compare_exchange_weak(word, next.pack(), protocol.take, protocol.take) {
                Ok(_) => return number,
                Err(found) => word = found,
            }
        }
    }

    fn take_new(&self) -> u32 {
        // Relaxed: the number is new, so there is nothing to see yet.
        let number = self.used.fetch_add(1, Ordering::Relaxed);
        assert_ne!(number, u32::MAX, "fewer than four billion entries are in use");
        number
    }

    fn give_back_with(&self, number: u32, protocol: Protocol) {
        let entry = self.place(number);
        // Relaxed: only compared and passed on; what the exchange reads is not followed.
        let mut word = self.free.load(Ordering::Relaxed);
        loop {
            let top = Top::unpack(word);
            // Relaxed: published by the exchange.
            entry.below.store(top.place, Ordering::Relaxed);
            let next = Top { place: number + 1, ..top };
            // Release: see `Protocol`. Later exchanges keep it published, since there are no plain stores.
            match self.free.compare_exchange_weak(word, next.pack(), protocol.give_back, Ordering::Relaxed) {
                Ok(_) => return,
                Err(found) => word = found,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_entries_stay_where_they_are() {
        let table = Table::<AtomicU32>::default();
        let numbers: Vec<_> = (0..200).map(|_| table.take()).collect();
        assert_eq!(numbers, (0..200).collect::<Vec<_>>());
        for &number in &numbers {
            table.entry(number).store(number + 1, Ordering::Relaxed);
        }
        table.give_back(70);
        table.give_back(3);
        assert_eq!([table.take(), table.take(), table.take(), table.used()], [3, 70, 200, 201]);
        let held: Vec<_> =
            numbers.iter().map(|&number| table.entry(number).load(Ordering::Relaxed)).collect();
        assert_eq!(held, (1..=200).collect::<Vec<_>>());
    }

    /// Four threads take a few numbers at a time; a thread that has one finds its entry unowned.
    #[test]
    fn nobody_has_a_number_that_another_one_has() {
        let table = Table::<AtomicU32>::default();
        let turn = || {
            for round in 0..20_000 {
                let numbers: Vec<_> = (0..round % 4).map(|_| table.take()).collect();
                for &number in &numbers {
                    assert_eq!(table.entry(number).fetch_add(1, Ordering::Relaxed), 0, "owners of {number}");
                }
                for &number in &numbers {
                    table.entry(number).fetch_sub(1, Ordering::Relaxed);
                    table.give_back(number);
                }
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(turn))));
        assert!(table.used() <= 12, "{} numbers for 4 threads with 3 each", table.used());
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::panic::catch_unwind;

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Runs `model` in every order; whether loom found one in which it fails.
    fn fails(model: impl Fn() + Sync + Send + std::panic::UnwindSafe + 'static) -> bool {
        catch_unwind(|| loom::model(model)).is_err()
    }

    /// One thread takes a number while another takes two and gives the first one back: what is held then is distinct.
    fn owners_are_alone(protocol: Protocol) {
        let table = Arc::new(Table::<()>::default());
        let both = [table.take(), table.take()];
        both.iter().for_each(|&number| table.give_back_with(number, protocol));
        let other = thread::spawn({
            let table = Arc::clone(&table);
            move || table.take_with(protocol)
        });
        let (first, second) = (table.take_with(protocol), table.take_with(protocol));
        table.give_back_with(first, protocol);
        let other = other.join().expect("taking does not panic");
        let third = table.take_with(protocol);
        assert!(second != other && other != third && third != second, "held: {second} {other} {third}");
    }

    #[test]
    fn a_number_has_one_owner() {
        loom::model(|| owners_are_alone(PROTOCOL));
    }

    #[test]
    fn without_the_count_a_number_gets_two_owners() {
        assert!(fails(|| owners_are_alone(Protocol { count: 0, ..PROTOCOL })));
    }

    /// One thread writes to an entry and gives it back; another that takes it writes too.
    fn entry_is_handed_over(protocol: Protocol) {
        let table = Arc::new(Table::<Cell>::default());
        let number = table.take();
        // Makes the chunk before the threads part: loom does not see how the standard library's cell orders them.
        table.entry(number);
        let next = thread::spawn({
            let table = Arc::clone(&table);
            move || table.entry(table.take_with(protocol)).set(2)
        });
        table.entry(number).set(1);
        table.give_back_with(number, protocol);
        next.join().expect("taking does not panic");
    }

    #[derive(Default)]
    struct Cell(UnsafeCell<u32>);

    impl Cell {
        fn set(&self, value: u32) {
            // SAFETY: loom checks that no other thread has access.
            self.0.with_mut(|cell| unsafe { *cell = value });
        }
    }

    // SAFETY: loom checks every access.
    unsafe impl Sync for Cell {}

    #[test]
    fn the_next_owner_sees_what_the_last_one_wrote() {
        loom::model(|| entry_is_handed_over(PROTOCOL));
    }

    #[test]
    fn a_relaxed_exchange_hands_over_too_early() {
        let relaxed = Ordering::Relaxed;
        assert!(fails(move || entry_is_handed_over(Protocol { give_back: relaxed, ..PROTOCOL })));
        assert!(fails(move || entry_is_handed_over(Protocol { take: relaxed, ..PROTOCOL })));
    }
}
