//! A job that goes on with fewer ranks: what it runs then.
//!
//! Every rank brings its devices, so with a rank its devices are lost, and a preset is made again for those that are
//! left. The part of it that shrinks is the one without size, which takes what the others leave, as `dp` in `dp-tp2`;
//! if all have sizes, it is the first one that cuts the batch, since a model cut otherwise may need all its cuts to fit
//! into memory. A file is a plan for one number of devices. Whether a smaller job works is found out by compiling it:
//! the batch, the model and the reduction blocks of its sums decide which numbers of devices do. When a job loses ranks is
//! decided elsewhere.

use phalanx_program::Placement;

use super::{TrainConfig, prepare};
use crate::Error;
use crate::choice::{PlanChoice, sizes};
use crate::job::deal_devices;
use crate::pipeline::{Settings, compile};

/// Why a job cannot go on with fewer ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ElasticError {
    /// The plan is a file.
    #[error(
        "the plan {plan} is a file for one number of devices, and fewer ranks have fewer: take a preset such as dp"
    )]
    File { plan: String },
    /// No part of the preset may shrink.
    #[error(
        "the plan `{plan}` has a size for every part and none that cuts the batch, so it cannot shrink with the ranks: \
         take one with a part that can, as in `dp-{plan}`"
    )]
    Fixed { plan: String },
    /// Ranks have different numbers of devices.
    #[error(
        "{devices} devices are not the same number on each of {ranks} ranks, and it is unclear how many are lost with one: \
         take a multiple of {ranks}"
    )]
    Uneven { devices: usize, ranks: u32 },
}

/// A job that can lose ranks.
#[derive(Clone, Debug)]
pub struct Elastic {
    config: TrainConfig,
    /// The preset, with the part that shrinks left open.
    plan: String,
    devices_per_rank: usize,
}

/// What fewer ranks run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallerJob {
    /// How many there are.
    pub ranks: u32,
    /// A preset.
    pub plan: String,
    /// Devices of all of them.
    pub devices: usize,
}

impl Elastic {
    /// The job of `config` on `ranks` ranks.
    pub fn new(config: &TrainConfig, ranks: u32) -> Result<Elastic, ElasticError> {
        let whole = config.clone().for_ranks(ranks);
        let plan = whole.plan.unwrap_or_else(|| "dp".into());
        if PlanChoice::is_file(&plan) {
            return Err(ElasticError::File { plan });
        }
        let devices = whole.devices.unwrap_or_else(|| sizes(&plan));
        if !devices.is_multiple_of(ranks as usize) {
            return Err(ElasticError::Uneven { devices, ranks });
        }
        let devices_per_rank = devices / ranks as usize;
        match opened(&plan) {
            Some(plan) => Ok(Elastic { config: config.clone(), plan, devices_per_rank }),
            None => Err(ElasticError::Fixed { plan }),
        }
    }

    /// The first of these numbers of ranks on which the job compiles, if there is one.
    pub fn first_fit(&self, numbers: impl IntoIterator<Item = u32>) -> Result<Option<SmallerJob>, Error> {
        let (_, _, graph) = prepare(&self.config, &mut |_, _| ())?;
        let smaller = |ranks| {
            let devices = self.devices_per_rank * ranks as usize;
            SmallerJob { ranks, plan: self.plan.clone(), devices }
        };
        let compiles = |smaller: &SmallerJob| {
            let settings = self.settings(&graph, smaller);
            settings.is_ok_and(|settings| compile(&graph, &settings).is_ok())
        };
        Ok(numbers.into_iter().map(smaller).find(compiles))
    }

    fn settings(&self, graph: &phalanx_ir::graph::Graph, smaller: &SmallerJob) -> Result<Settings, Error> {
        let &SmallerJob { ranks, ref plan, devices } = smaller;
        let config = TrainConfig { plan: Some(plan.clone()), devices: Some(devices), ..self.config.clone() };
        let placement = Placement { ranks, of_device: deal_devices(devices, ranks as usize, None)? };
        Ok(Settings { placement, ..config.settings(graph)? })
    }
}

/// A preset with a part whose size is open: its own one, or else the first that cuts the batch.
fn opened(plan: &str) -> Option<String> {
    let mut parts: Vec<&str> = plan.split('-').collect();
    let has_size =
        |part: &&str| part.strip_prefix("zero1").unwrap_or(part).ends_with(|c: char| c.is_ascii_digit());
    if !parts.iter().all(has_size) {
        return Some(plan.into());
    }
    let cuts_batch = |part: &&str| ["dp", "fsdp", "zero1"].into_iter().find(|name| part.starts_with(name));
    let (at, name) = parts.iter().enumerate().find_map(|(at, part)| Some((at, cuts_batch(part)?)))?;
    parts[at] = name;
    Some(parts.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(plan: &str, devices: Option<usize>) -> TrainConfig {
        TrainConfig {
            plan: Some(plan.into()),
            devices,
            layers: Some(1),
            heads: Some(2),
            width: Some(16),
            context: Some(16),
            batch: 8,
            ..TrainConfig::default()
        }
    }

    fn first_fit(config: &TrainConfig, ranks: u32) -> Option<(u32, String, usize)> {
        let fit = Elastic::new(config, ranks).unwrap().first_fit((1..ranks).rev()).unwrap();
        fit.map(|SmallerJob { ranks, plan, devices }| (ranks, plan, devices))
    }

    #[test]
    fn the_part_that_shrinks_is_the_open_one_or_cuts_the_batch() {
        for (plan, expected) in [
            ("dp", Some("dp")),
            ("dp4", Some("dp")),
            ("tp", Some("tp")),
            ("dp2-tp", Some("dp2-tp")),
            ("tp2-dp2", Some("tp2-dp")),
            ("fsdp2-tp2-pp2", Some("fsdp-tp2-pp2")),
            ("zero1", Some("zero1")),
            ("zero14-tp2", Some("zero1-tp2")),
            ("tp2-pp2", None),
        ] {
            assert_eq!(opened(plan).as_deref(), expected, "{plan}");
        }
    }

    #[test]
    fn with_a_rank_its_devices_go_and_numbers_that_do_not_compile_are_left_out() {
        // The batch of 8 cannot be cut into 3.
        assert_eq!(first_fit(&config("dp", Some(4)), 4), Some((2, "dp".into(), 2)));
        assert_eq!(first_fit(&config("dp", None), 3), Some((2, "dp".into(), 2)));
        let two_each = TrainConfig { devices_per_rank: Some(2), ..config("fsdp", None) };
        assert_eq!(first_fit(&two_each, 3), Some((2, "fsdp".into(), 4)));
        assert_eq!(first_fit(&config("dp2-tp2", None), 2), Some((1, "dp-tp2".into(), 2)));
        assert_eq!(
            first_fit(&TrainConfig { plan: None, ..config("dp", None) }, 2),
            Some((1, "dp".into(), 1))
        );
        // Two heads cannot be cut into four, and half of a tp2 is none.
        assert_eq!(first_fit(&config("dp2-tp2", None), 4), Some((2, "dp-tp2".into(), 2)));
        assert_eq!(
            first_fit(&TrainConfig { batch: 1, ..config("dp", Some(3)) }, 3),
            Some((1, "dp".into(), 1))
        );
    }

    #[test]
    fn plans_that_cannot_shrink_are_named() {
        let error = |plan: &str, devices, ranks| Elastic::new(&config(plan, devices), ranks).unwrap_err();
        assert_eq!(error("my/plan.toml", None, 2), ElasticError::File { plan: "my/plan.toml".into() });
        assert_eq!(error("tp2-pp2", None, 2), ElasticError::Fixed { plan: "tp2-pp2".into() });
        assert_eq!(error("dp", Some(8), 3), ElasticError::Uneven { devices: 8, ranks: 3 });
    }
}
