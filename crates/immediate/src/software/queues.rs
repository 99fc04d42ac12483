//! Lanes on FIFO queues, as plain data: what is enqueued, what may go next, and what it does to its lane.
//!
//! Invariant: while anything is queued, the head of some queue can go or is running. Of all entries take the one that
//! was issued first: it is the head of its queue, and if it waits for a token, the marks of that were issued earlier
//! and so are gone. This needs rule 1, which [`Queues::wait`] enforces.
//!
//! Runs no work and calls no callback: [`Queues::take`] hands them out, to be run without the lock.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};

use phalanx_runtime::parts::panic_message;
use phalanx_runtime::{Fault, Lane, Outcome, Token};

use super::QueueOrder;
use super::tokens::{Fired, Tokens};

pub(super) type Work = Box<dyn FnOnce() + Send>;

pub(super) struct Queues {
    /// How many queues the lanes share; every lane has its own if `None`.
    n_shared: Option<NonZeroU32>,
    order: QueueOrder,
    /// A mark, a wait that is over or a poison takes no time: no work of another queue goes before it.
    prompt: bool,
    queues: Vec<VecDeque<Entry>>,
    lanes: Vec<LaneState>,
    pub(super) tokens: Tokens,
    n_works: u64,
    /// The queue that went last.
    last: usize,
}

struct Entry {
    lane: Lane,
    step: QueuedStep,
}

enum QueuedStep {
    /// The number of the work, and the work.
    Work(u64, Work),
    /// Work that has been taken and is not finished: nothing behind it may go.
    Running,
    Mark(Token),
    Wait(Token),
    Poison(Fault),
}

#[derive(Default)]
struct LaneState {
    leased: bool,
    /// Entries of the lane in its queue. A lane given back too early is leased again only when there are none.
    n_queued: usize,
    poison: Option<Fault>,
}

/// What the thread that takes a step owes.
#[must_use]
pub(super) enum TakenStep {
    Nothing,
    Tell(Fired),
    Run(Job),
}

/// Work whose place in the queue is kept until [`Queues::finish`].
pub(super) struct Job {
    pub(super) lane: Lane,
    pub(super) number: u64,
    work: Work,
    poisoned: bool,
}

impl Queues {
    pub(super) fn new(n_shared: Option<NonZeroU32>, order: QueueOrder, prompt: bool) -> Queues {
        let (queues, lanes, tokens) = (Vec::new(), Vec::new(), Tokens::default());
        Queues { n_shared, order, prompt, queues, lanes, tokens, n_works: 0, last: 0 }
    }

    pub(super) fn lease(&mut self) -> Lane {
        let free = self.lanes.iter().position(|state| !state.leased && state.n_queued == 0);
        let idx = free.unwrap_or_else(|| {
            self.lanes.push(LaneState::default());
            self.lanes.len() - 1
        });
        self.lanes[idx] = LaneState { leased: true, ..LaneState::default() };
        let lane = Lane(u32::try_from(idx).expect("fewer than 2^32 lanes are leased"));
        let n_queues = self.queues.len().max(self.queue_of(lane) + 1);
        self.queues.resize_with(n_queues, VecDeque::new);
        lane
    }

    pub(super) fn give_back(&mut self, lane: Lane) {
        if let Some(state) = self.lanes.get_mut(lane.0 as usize) {
            state.leased = false;
        }
    }

    /// Gives the work back if the lane is not leased.
    pub(super) fn enqueue(&mut self, lane: Lane, work: Work) -> Result<(), Work> {
        if !self.is_leased(lane) {
            return Err(work);
        }
        self.push(lane, QueuedStep::Work(self.n_works, work));
        self.n_works += 1;
        Ok(())
    }

    pub(super) fn record(&mut self, lane: Lane) -> Token {
        if !self.is_leased(lane) {
            let why = "the lane is not leased, so nothing happens on it; lease it first";
            let fault = Fault::refused(format_args!("record on lane {}", lane.0), why);
            return self.tokens.record_poisoned(fault);
        }
        if self.is_through(lane) {
            // The thread may be busy with another lane's work; this lane has nothing left to do.
            let poison = self.lanes[lane.0 as usize].poison.clone();
            return match poison {
                Some(fault) => self.tokens.record_poisoned(fault),
                None => self.tokens.record(0),
            };
        }
        let token = self.tokens.record(1);
        self.push(lane, QueuedStep::Mark(token));
        token
    }

    /// Puts a mark on every lane that holds something or may be poisoned.
    pub(super) fn record_all(&mut self) -> Token {
        let in_use = |state: &LaneState| state.leased || state.n_queued > 0;
        let token = self.tokens.record(self.lanes.iter().filter(|state| in_use(state)).count());
        for idx in 0..self.lanes.len() {
            if in_use(&self.lanes[idx]) {
                self.push(Lane(idx as u32), QueuedStep::Mark(token));
            }
        }
        token
    }

    pub(super) fn wait(&mut self, lane: Lane, token: Token) {
        if !self.is_leased(lane) {
            return;
        }
        let step = match self.tokens.check(token) {
            Ok(()) => QueuedStep::Wait(token),
            Err(fault) => QueuedStep::Poison(Fault::refused(format_args!("wait of lane {}", lane.0), fault)),
        };
        self.push(lane, step);
    }

    /// The next step of a queue that can go on, if there is one.
    pub(super) fn take(&mut self) -> Option<TakenStep> {
        let queue = self.choose()?;
        self.last = queue;
        let head = self.queues[queue].front_mut()?;
        let lane = head.lane;
        let state = &mut self.lanes[lane.0 as usize];
        let taken = match std::mem::replace(&mut head.step, QueuedStep::Running) {
            QueuedStep::Work(number, work) => {
                let poisoned = state.poison.is_some();
                return Some(TakenStep::Run(Job { lane, number, work, poisoned }));
            }
            QueuedStep::Running => unreachable!("a queue whose head is running is not chosen"),
            QueuedStep::Mark(token) => {
                let outcome = state.poison.clone().map_or(Ok(()), Err);
                self.tokens.reach(token, outcome).map_or(TakenStep::Nothing, TakenStep::Tell)
            }
            QueuedStep::Wait(token) => {
                state.poison_if(self.tokens.outcome(token));
                TakenStep::Nothing
            }
            QueuedStep::Poison(fault) => {
                state.poison_if(Err(fault));
                TakenStep::Nothing
            }
        };
        self.pop(queue);
        Some(taken)
    }

    /// A job of the lane is done.
    pub(super) fn finish(&mut self, lane: Lane, outcome: Outcome) {
        self.lanes[lane.0 as usize].poison_if(outcome);
        self.pop(self.queue_of(lane));
    }

    fn is_leased(&self, lane: Lane) -> bool {
        self.lanes.get(lane.0 as usize).is_some_and(|state| state.leased)
    }

    /// Whether what is recorded on the lane now has been reached already.
    fn is_through(&self, lane: Lane) -> bool {
        self.prompt && self.queues[self.queue_of(lane)].is_empty()
    }

    fn queue_of(&self, lane: Lane) -> usize {
        self.n_shared.map_or(lane.0, |n_shared| lane.0 % n_shared) as usize
    }

    fn push(&mut self, lane: Lane, step: QueuedStep) {
        let queue = self.queue_of(lane);
        self.queues[queue].push_back(Entry { lane, step });
        self.lanes[lane.0 as usize].n_queued += 1;
    }

    fn pop(&mut self, queue: usize) {
        let entry = self.queues[queue].pop_front().expect("a step stays queued until it is done");
        self.lanes[entry.lane.0 as usize].n_queued -= 1;
    }

    /// The queue that goes next, of those that can.
    fn choose(&mut self) -> Option<usize> {
        let takes_time = |queues: &Queues, queue: usize| {
            matches!(queues.queues[queue].front(), Some(Entry { step: QueuedStep::Work(..), .. }))
        };
        let no_work = self.prompt && self.able().any(|queue| !takes_time(self, queue));
        let may_go = |queues: &Queues, queue: usize| !(no_work && takes_time(queues, queue));
        let n_able = self.able().filter(|&queue| may_go(self, queue)).count();
        let nth = self.order.pick(n_able)?;
        self.able().filter(|&queue| may_go(self, queue)).nth(nth)
    }

    /// The queues that can go on, in turn after the one that went last.
    fn able(&self) -> impl Iterator<Item = usize> {
        let n_queues = self.queues.len();
        let in_turn = (1..=n_queues).map(move |distance| (self.last + distance) % n_queues);
        in_turn.filter(|&queue| self.can_go(queue))
    }

    fn can_go(&self, queue: usize) -> bool {
        match self.queues[queue].front().map(|entry| &entry.step) {
            None | Some(QueuedStep::Running) => false,
            Some(QueuedStep::Wait(token)) => self.tokens.has_fired(*token),
            Some(QueuedStep::Work(..) | QueuedStep::Mark(_) | QueuedStep::Poison(_)) => true,
        }
    }
}

impl LaneState {
    /// The first fault stays: it is the origin of what follows.
    fn poison_if(&mut self, outcome: Outcome) {
        self.poison = self.poison.take().or(outcome.err());
    }
}

impl QueueOrder {
    /// Which of `n_able` queues goes next.
    fn pick(&mut self, n_able: usize) -> Option<usize> {
        match self {
            _ if n_able == 0 => None,
            QueueOrder::RoundRobin => Some(0),
            QueueOrder::Seeded(state) => Some((splitmix(state) % n_able as u64) as usize),
        }
    }
}

/// The next number of the SplitMix64 generator.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Job {
    /// Does the work, or only drops it if its lane is poisoned: what it would read has not been written.
    pub(super) fn run(self) -> Outcome {
        let Job { lane, number, work, poisoned } = self;
        let act = move || if poisoned { drop(work) } else { work() };
        // Unwind safe: work shares only what locks guard, and readers of its results see the poison first.
        let ended = catch_unwind(AssertUnwindSafe(act));
        ended.map_err(|panic| {
            Fault::failed(format_args!("work {number} on lane {}", lane.0), panic_message(&*panic))
        })
    }
}
