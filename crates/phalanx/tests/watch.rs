//! Numbers one can watch: event files, losses on held-back data, hashes, and where numbers stop being finite.
#![allow(clippy::unwrap_used)]

mod evaluation;
mod events;
mod hashes;
mod nan;

use std::sync::Arc;
use std::thread;

use phalanx::internals::net::Network;
use phalanx::internals::net::local::Local;
use phalanx::job::{Alerts, Hello, Job};
use phalanx::train::{Run, TrainConfig};

/// A model that trains in milliseconds.
fn small() -> TrainConfig {
    TrainConfig::default()
        .layers(Some(2))
        .heads(Some(2))
        .width(Some(16))
        .context(Some(16))
        .batch(8)
        .steps(6)
        .warmup(2)
        .cores(1)
        .costs(Some("modelled".into()))
}

/// The same on so many devices.
fn on(plan: &str, devices: usize, config: TrainConfig) -> TrainConfig {
    config.plan(Some(plan.into())).devices(Some(devices))
}

/// A run to its end.
fn trained(config: TrainConfig) -> Run {
    let mut run = Run::new(config).unwrap();
    while !run.is_done() {
        run.step().unwrap();
    }
    run
}

/// What `work` makes of the run of each rank, in a job of threads.
fn on_ranks<T: Send>(ranks: u32, config: &TrainConfig, work: impl Fn(Run) -> T + Sync) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let rank = |local: Local| {
            let (network, config): (Arc<dyn Network>, _) = (Arc::new(local), config.clone());
            scope.spawn(move || {
                let hello = Hello::of_this_process(network.rank(), config.rank_options().unwrap()).unwrap();
                let hellos = hello.exchange(&*network).unwrap();
                let alerts = Alerts::listen(&network);
                let job = Job { network, alerts, say: Arc::new(|text| panic!("{text}")), hellos };
                work(Run::in_job(config, &job, &mut |_| ()).unwrap())
            })
        };
        let ranks: Vec<_> = Local::job(ranks).into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
