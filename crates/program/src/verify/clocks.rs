//! What each lane knows of the others: how many of their operations are complete before its next one starts.
//!
//! A lane's knowledge changes only when it waits. Then it takes over what the other lane knew at the operation waited
//! for, so knowledge is closed: a lane that knows an operation knows all that the operation knew. Records are shared between a
//! lane and its operations that others wait for, copied when the lane learns more, and dropped after their last use.
//!
//! Two runs are looked at, one after the other; counts go on in the second.

use std::collections::HashMap;
use std::rc::Rc;

use crate::{Program, Wait};

/// For each lane how many of its operations are complete.
type Known = Rc<[u32]>;

pub(crate) struct Clocks<'a> {
    program: &'a Program,
    /// What each lane knows.
    lanes: Vec<Known>,
    /// What was known at an operation that others will still wait for, by its position in the program.
    kept: Vec<Option<Known>>,
    /// How often each operation will still be waited for.
    waiters: Vec<u32>,
    /// In the second run: `waiters` and `kept` of the operations of the first that carried waits are for.
    carried: HashMap<usize, (u32, Known)>,
    /// How many operations of each lane are in the runs before this one.
    before: Vec<u32>,
}

impl<'a> Clocks<'a> {
    /// Before the first run: nothing is known.
    pub fn new(program: &'a Program) -> Self {
        let mut clocks = Clocks::expecting(program, 0);
        clocks.expect_waits(&program.waits);
        clocks.expect_waits(&program.carried);
        clocks
    }

    /// The same for one run, in which operations may wait for others than the program says.
    pub fn of_any_waits(program: &'a Program) -> Self {
        Clocks::expecting(program, u32::MAX)
    }

    fn expecting(program: &'a Program, waiters: u32) -> Self {
        let lanes = program.lanes.len();
        Clocks {
            program,
            lanes: vec![Known::from(vec![0; lanes]); lanes],
            kept: vec![None; program.operations.len()],
            waiters: vec![waiters; program.operations.len()],
            carried: HashMap::new(),
            before: vec![0; lanes],
        }
    }

    fn expect_waits(&mut self, waits: &[Wait]) {
        waits.iter().for_each(|&wait| self.waiters[self.program.index_of(wait)] += 1);
    }

    /// The first run is complete: every lane knows all its own operations, and the second begins.
    pub fn next_run(&mut self) {
        let kept = self.kept.iter_mut().zip(&mut self.waiters).enumerate();
        self.carried = kept
            .filter_map(|(index, (kept, waiters))| Some((index, (std::mem::take(waiters), kept.take()?))))
            .collect();
        self.before = self.program.lanes.iter().map(|lane| lane.operations.len() as u32).collect();
        for (lane, (known, &count)) in self.lanes.iter_mut().zip(&self.before).enumerate() {
            Rc::make_mut(known)[lane] = count;
        }
        self.expect_waits(&self.program.waits);
    }

    /// The next operation of `lane` waits for `other` of the same run, which is complete.
    pub fn wait(&mut self, lane: u32, other: Wait) {
        let index = self.program.index_of(other);
        self.waiters[index] -= 1;
        let theirs = match self.waiters[index] {
            0 => self.kept[index].take(),
            _ => self.kept[index].clone(),
        };
        if self.knows(lane, other) {
            return;
        }
        let theirs = theirs.expect("what an operation knew is kept until its last waiter has it");
        self.join(lane, &theirs);
        Rc::make_mut(&mut self.lanes[lane as usize])[other.lane as usize] = self.count(other);
    }

    /// The next operation of `lane` waits for `others`, of different lanes, in the first run; it is in the second.
    /// `needed` is shown those that nothing else puts before it.
    pub fn carry(&mut self, lane: u32, others: &[Wait], mut needed: impl FnMut(Wait)) {
        for &other in others {
            let index = self.program.index_of(other);
            let (waiters, theirs) =
                self.carried.get_mut(&index).expect("it is kept until its last waiter has it");
            *waiters -= 1;
            let (left, theirs) = (*waiters, Rc::clone(theirs));
            if left == 0 {
                self.carried.remove(&index);
            }
            self.join(lane, &theirs);
        }
        others.iter().filter(|&&other| !self.knew(lane, other)).for_each(|&other| needed(other));
        others.iter().for_each(|&other| self.learn(lane, other));
    }

    /// The operation `at`, the next one of its lane, is complete.
    pub fn complete(&mut self, at: Wait) {
        let index = self.program.index_of(at);
        if self.waiters[index] > 0 {
            self.kept[index] = Some(Rc::clone(&self.lanes[at.lane as usize]));
        }
    }

    /// From now on `lane` knows `other` of the first run, but not what that one knew.
    pub fn learn(&mut self, lane: u32, other: Wait) {
        let known = &mut Rc::make_mut(&mut self.lanes[lane as usize])[other.lane as usize];
        *known = (*known).max(other.position + 1);
    }

    /// Whether `other` of this run is complete before the next operation of `lane`, another one, starts.
    pub fn knows(&self, lane: u32, other: Wait) -> bool {
        self.lanes[lane as usize][other.lane as usize] >= self.count(other)
    }

    /// Whether `other` of the first run is complete before the next operation of `lane` starts.
    pub fn knew(&self, lane: u32, other: Wait) -> bool {
        self.lanes[lane as usize][other.lane as usize] > other.position
    }

    /// Whether `other` of this run was complete when `at`, whose knowledge is kept, started.
    pub fn knew_at(&self, at: Wait, other: Wait) -> bool {
        let known = self.kept[self.program.index_of(at)].as_ref();
        known.is_some_and(|known| known[other.lane as usize] >= self.count(other))
    }

    /// How many operations of its lane are complete when `at` is.
    fn count(&self, at: Wait) -> u32 {
        self.before[at.lane as usize] + at.position + 1
    }

    fn join(&mut self, lane: u32, theirs: &[u32]) {
        let mine = Rc::make_mut(&mut self.lanes[lane as usize]);
        mine.iter_mut().zip(theirs).for_each(|(mine, &theirs)| *mine = (*mine).max(theirs));
    }
}
