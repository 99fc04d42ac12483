//! Leases and lanes that share queues, under random use.

use std::sync::{Arc, Mutex};

use phalanx_immediate::Software;
use phalanx_runtime::{Device, Lane, Outcome, Token};
use phalanx_testkit::{Rng, cases};

use crate::stepped;

#[test]
fn a_lane_in_use_is_never_leased_twice() {
    let mut random = Rng::new(11);
    let device = stepped(2, 11);
    let mut leased: Vec<Lane> = Vec::new();
    for _ in 0..2000 {
        if leased.is_empty() || random.below(2) == 0 {
            let lane = device.lease();
            assert!(!leased.contains(&lane), "{lane:?} is in use");
            leased.push(lane);
        } else {
            device.give_back(leased.swap_remove(random.below(leased.len())));
        }
    }
}

#[test]
fn a_lane_given_back_too_early_is_leased_again_when_it_is_done() {
    let device = stepped(0, 0);
    let lane = device.lease();
    device.enqueue(lane, Box::new(|| ()));
    device.give_back(lane);
    let other = device.lease();
    assert_ne!(other, lane);
    assert!(device.step());
    assert_eq!(device.lease(), lane);
}

/// A device under random use, and for all that happens on it what must have happened before, as bits of works.
struct Usage {
    device: Arc<Software>,
    random: Rng,
    leased: Vec<Lane>,
    /// What is known to be done when a lane has come to its end.
    known: Vec<u128>,
    tokens: Vec<u128>,
    n_works: u32,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default, PartialEq)]
struct Seen {
    works: u128,
    n_fired: usize,
    /// Works and tokens that came before a work that they follow, or that were poisoned.
    n_wrong: usize,
}

impl Seen {
    fn check(&mut self, needs: u128) {
        self.n_wrong += usize::from(needs & !self.works != 0);
    }
}

impl Usage {
    fn new(n_queues: u32, seed: u64) -> Usage {
        let (device, random) = (stepped(n_queues, seed), Rng::new(seed));
        let (leased, known, tokens) = (Vec::new(), Vec::new(), Vec::new());
        Usage { device, random, leased, known, tokens, n_works: 0, seen: Arc::default() }
    }

    fn act(&mut self) {
        match self.random.below(9) {
            0 => self.lease(),
            _ if self.leased.is_empty() => self.lease(),
            1 => {
                let lane = self.random.below(self.leased.len());
                self.device.give_back(self.leased.swap_remove(lane));
            }
            2 | 3 => self.enqueue(),
            4 => {
                let lane = self.lane();
                let token = self.device.record(lane);
                self.expect(token, self.known[lane.0 as usize]);
            }
            5 => self.record_all(),
            6 | 7 if !self.tokens.is_empty() => {
                let (lane, token) = (self.lane(), self.random.below(self.tokens.len()));
                self.device.wait(lane, Token(token as u64));
                self.known[lane.0 as usize] |= self.tokens[token];
            }
            _ => _ = self.device.step(),
        }
    }

    fn lane(&mut self) -> Lane {
        self.leased[self.random.below(self.leased.len())]
    }

    fn lease(&mut self) {
        let lane = self.device.lease();
        self.leased.push(lane);
        self.known.resize(self.known.len().max(lane.0 as usize + 1), 0);
    }

    fn record_all(&mut self) {
        let token = self.device.record_all();
        self.expect(token, self.known.iter().fold(0, |all, known| all | known));
    }

    fn enqueue(&mut self) {
        let lane = self.lane();
        let (known, seen) = (&mut self.known[lane.0 as usize], Arc::clone(&self.seen));
        let (needs, work) = (*known, 1 << self.n_works);
        *known |= work;
        self.n_works += 1;
        let act = move || {
            let mut seen = seen.lock().expect("no thread panics with the lock");
            seen.check(needs);
            seen.works |= work;
        };
        self.device.enqueue(lane, Box::new(act));
    }

    /// A token has been recorded that fires after these works.
    fn expect(&mut self, token: Token, works: u128) {
        assert_eq!(token, Token(self.tokens.len() as u64));
        self.tokens.push(works);
        let seen = Arc::clone(&self.seen);
        let then = move |outcome: Outcome| {
            let mut seen = seen.lock().expect("no thread panics with the lock");
            seen.check(works);
            seen.n_fired += 1;
            seen.n_wrong += usize::from(outcome.is_err());
        };
        self.device.when_fired(token, Box::new(then));
    }

    /// Steps until all is done, which never gets stuck on the way.
    fn finish(mut self) {
        self.record_all();
        while self.device.unfired() > 0 {
            assert!(self.device.step(), "tokens have not fired and no queue can go on");
        }
        assert!(!self.device.step());
        let works = (1 << self.n_works) - 1;
        assert_eq!(
            *self.seen.lock().expect("no thread panics with the lock"),
            Seen { works, n_fired: self.tokens.len(), n_wrong: 0 }
        );
    }
}

#[test]
fn lanes_that_share_queues_never_get_stuck() {
    for n_queues in 0..=4 {
        for seed in 0..cases(4000) {
            let mut usage = Usage::new(n_queues, seed);
            (0..100).for_each(|_| usage.act());
            usage.finish();
        }
    }
}
