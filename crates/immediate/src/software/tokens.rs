//! Which tokens have been recorded, which have fired, and which callbacks wait for them.
//!
//! A token is *recorded* if its number is below the next one, and has *fired* once every mark that was put on a lane
//! for it has been reached. Only tokens that are unfired or poisoned take memory, the latter for as long as the device
//! lives.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use phalanx_runtime::{Fault, Outcome, Token};

pub(super) type Then = Box<dyn FnOnce(Outcome) + Send>;

#[derive(Default)]
pub(super) struct Tokens {
    n_recorded: u64,
    unfired: HashMap<Token, Unfired>,
    /// Faults of tokens, from the first mark that had one.
    poisoned: HashMap<Token, Fault>,
}

struct Unfired {
    /// Marks that have not been reached.
    n_marks: usize,
    thens: Vec<Then>,
}

/// Callbacks that are due. They are called without the device's lock, since they may use the device.
#[must_use]
pub(super) struct Fired {
    outcome: Outcome,
    thens: Vec<Then>,
}

impl Tokens {
    /// A token that fires when its marks have been reached: at once if there are none.
    pub(super) fn record(&mut self, n_marks: usize) -> Token {
        let token = Token(self.n_recorded);
        self.n_recorded += 1;
        if n_marks > 0 {
            self.unfired.insert(token, Unfired { n_marks, thens: Vec::new() });
        }
        token
    }

    /// A token that has fired already, poisoned.
    pub(super) fn record_poisoned(&mut self, fault: Fault) -> Token {
        let token = self.record(0);
        self.poisoned.insert(token, fault);
        token
    }

    /// One of the token's marks has been reached, and this is what its lane says there. The first fault is the token's.
    pub(super) fn reach(&mut self, token: Token, mark: Outcome) -> Option<Fired> {
        if let Err(fault) = mark {
            self.poisoned.entry(token).or_insert(fault);
        }
        let unfired = self.unfired.get_mut(&token)?;
        unfired.n_marks -= 1;
        if unfired.n_marks > 0 {
            return None;
        }
        let thens = self.unfired.remove(&token)?.thens;
        Some(Fired { outcome: self.outcome(token), thens })
    }

    /// Keeps `then` until the token fires, or returns it if that has happened or never will.
    pub(super) fn when_fired(&mut self, token: Token, then: Then) -> Option<Fired> {
        if let Some(unfired) = self.unfired.get_mut(&token) {
            unfired.thens.push(then);
            return None;
        }
        let outcome = self.check(token).and_then(|()| self.outcome(token));
        Some(Fired { outcome, thens: vec![then] })
    }

    /// Whether the token has been recorded.
    pub(super) fn check(&self, token: Token) -> Outcome {
        if token.0 < self.n_recorded {
            return Ok(());
        }
        let n_recorded = self.n_recorded;
        let why =
            format_args!("the device has recorded {n_recorded} tokens so far; record it before it is used");
        Err(Fault::refused(format_args!("token {}", token.0), why))
    }

    pub(super) fn has_fired(&self, token: Token) -> bool {
        !self.unfired.contains_key(&token)
    }

    /// What a token that has fired says.
    pub(super) fn outcome(&self, token: Token) -> Outcome {
        self.poisoned.get(&token).cloned().map_or(Ok(()), Err)
    }

    pub(super) fn n_unfired(&self) -> usize {
        self.unfired.len()
    }
}

impl Fired {
    /// Calls the callbacks. One that panics ends alone: the panic hook has reported it, and the next one is called.
    pub(super) fn tell(self) {
        for then in self.thens {
            let outcome = self.outcome.clone();
            // Unwind safe: a callback shares only what locks guard, and `lock` says why that is never half changed.
            let _ = catch_unwind(AssertUnwindSafe(|| then(outcome)));
        }
    }
}
