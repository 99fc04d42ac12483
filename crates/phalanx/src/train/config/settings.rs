//! How the model of a configuration is compiled: plan, memory, times of kernels, optimizer.

use std::path::Path;
use std::sync::Arc;

use phalanx_ir::graph::Graph;
use phalanx_link::Topology;
use phalanx_plan::Plan;
use phalanx_runtime::ExecutionMode;

use super::{Bits, ConfigError, OptimizerKind, TrainConfig};
use crate::choice::PlanChoice;
use crate::cluster::Cluster;
use crate::costs::CostTable;
use crate::job::Drill;
use crate::pipeline::Settings;
use crate::{Decays, Error, Goal, LearningRate, Leaves, Optimizer, ProgramCache, UpdateRule};

impl TrainConfig {
    /// The permissions that files do not get, if they are set.
    pub fn file_mask(&self) -> Option<u32> {
        self.umask.as_deref().and_then(super::parse_umask)
    }

    /// How sums are cut.
    pub fn leaves(&self) -> Leaves {
        Leaves { batch: self.blocks_batch, feature: self.blocks_feature, sequence: self.blocks_sequence }
    }

    /// How `model` is compiled.
    pub fn settings(&self, model: &Graph) -> Result<Settings, Error> {
        self.settings_for(self.resolve_plan(model)?)
    }

    /// The plan for `model`; options that have no effect on its devices are refused.
    pub(crate) fn resolve_plan(&self, model: &Graph) -> Result<Plan, Error> {
        let cluster = self.read_cluster()?;
        let all = cluster.as_ref().map(|cluster| cluster.devices);
        let all = all.filter(|_| self.plan.as_deref().is_some_and(PlanChoice::needs_devices));
        let choice = PlanChoice::default()
            .plan(self.plan.clone())
            .devices(self.devices.or(all))
            .microbatches((self.accumulate > 1).then_some(self.accumulate));
        let plan = choice.resolve(model)?;
        self.parse_link()?;
        self.check_devices(plan.mesh.devices())?;
        if let Some(cluster) = cluster.filter(|cluster| cluster.devices < plan.mesh.devices()) {
            let (devices, wanted) = (cluster.devices, plan.mesh.devices());
            return Err(ConfigError::SmallCluster { devices, wanted }.into());
        }
        Ok(plan)
    }

    /// How models are compiled under a plan.
    pub(crate) fn settings_for(&self, plan: Plan) -> Result<Settings, Error> {
        let cluster = self.read_cluster()?;
        let mut settings = self.settings_on(plan, cluster.as_ref())?;
        if let Some(path) = self.costs_file().filter(|path| settings.needs_costs() && path.exists()) {
            settings.cost_table = Some(Arc::new(CostTable::read(path)?));
        }
        Ok(settings)
    }

    /// The same on a cluster that is read already, without times of kernels.
    pub(crate) fn settings_on(&self, plan: Plan, cluster: Option<&Cluster>) -> Result<Settings, Error> {
        Ok(Settings {
            leaves: self.leaves(),
            precision: self.precision,
            seed: self.seed,
            cores: self.device_cores(plan.mesh.devices(), cluster),
            free_bits: self.bits == Bits::Free,
            execution: self.execution(),
            topology: self.parse_link()?.or(cluster.map(|cluster| cluster.topology.clone())),
            speeds: cluster.map(|cluster| cluster.speeds.clone()).unwrap_or_default(),
            overlap: self.overlap,
            memory: self.parse_memory()?.or(cluster.and_then(|cluster| cluster.memory)),
            recompute: self.recompute,
            snapshot: self.checkpoint.is_some(),
            fusion: self.fusion,
            pin: self.pin,
            check: self.check,
            runs: Some(self.steps),
            plan,
            ..Settings::new(Goal::Train(self.build_optimizer()))
        })
    }

    /// The same, with times of kernels from the file `costs`, if the scheduler uses them: what it lacks is measured and added.
    /// `progress` is called with how many kernels are done, of how many, and which is next.
    pub fn measured_settings(
        &self,
        model: &Graph,
        progress: &mut dyn FnMut(usize, usize, &str),
    ) -> Result<Settings, Error> {
        let mut settings = self.settings(model)?;
        self.measure(model, &mut settings, progress)?;
        Ok(settings)
    }

    /// Gives `settings` the times of kernels from the file `costs`, if the scheduler uses them.
    pub(crate) fn measure(
        &self,
        model: &Graph,
        settings: &mut Settings,
        progress: &mut dyn FnMut(usize, usize, &str),
    ) -> Result<(), Error> {
        match self.costs_file().filter(|_| settings.needs_costs()) {
            Some(path) => settings.measure(model, path, progress),
            None => Ok(()),
        }
    }

    /// Where programs are kept for the next start.
    pub fn program_cache(&self) -> ProgramCache {
        if self.no_cache { ProgramCache::none() } else { ProgramCache::of_user() }
    }

    /// What fails on purpose.
    pub fn parse_drill(&self) -> Result<Option<Drill>, ConfigError> {
        Ok(self.drill.as_deref().map(str::parse).transpose()?)
    }

    /// The configuration of a job of `ranks` ranks. Without a plan it is data parallel, with a device on each rank.
    pub fn for_ranks(mut self, ranks: u32) -> TrainConfig {
        let devices = self.devices_per_rank.unwrap_or(1).saturating_mul(ranks as usize);
        if ranks > 1 && self.devices.is_none() {
            let plan = self.plan.get_or_insert_with(|| "dp".into());
            if PlanChoice::needs_devices(plan) {
                self.devices = Some(devices);
            }
        }
        self
    }

    pub(crate) fn costs_file(&self) -> Option<&Path> {
        self.costs.as_deref().filter(|path| *path != Path::new("modelled"))
    }

    /// The cluster of the file, if one is given.
    pub fn read_cluster(&self) -> Result<Option<Cluster>, ConfigError> {
        Ok(self.cluster.as_deref().map(Cluster::read).transpose()?)
    }

    fn parse_link(&self) -> Result<Option<Topology>, ConfigError> {
        self.link.as_deref().map(str::parse).transpose().map_err(ConfigError::Link)
    }

    fn parse_memory(&self) -> Result<Option<u64>, ConfigError> {
        let Some(text) = &self.memory else { return Ok(None) };
        match bytes(text) {
            Some(bytes) => Ok(Some(bytes)),
            None => self.field("memory", text, "it must be a size above 0 like 512MiB, 2GiB or 1.5GB"),
        }
    }

    fn execution(&self) -> ExecutionMode {
        match self.stepped {
            Some(seed) => ExecutionMode::Stepped(seed),
            None if self.immediate => ExecutionMode::Immediate,
            None => ExecutionMode::Replay,
        }
    }

    /// Cores of each of `devices` devices.
    fn device_cores(&self, devices: usize, cluster: Option<&Cluster>) -> usize {
        match self.cores_per_device {
            0 if cluster.is_some_and(|cluster| cluster.cores.is_some()) => {
                cluster.and_then(|cluster| cluster.cores).unwrap_or(1)
            }
            0 => (self.core_count() / devices.max(1)).max(1),
            cores => cores,
        }
    }

    /// The cores to use.
    pub fn core_count(&self) -> usize {
        match self.cores {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            cores => cores,
        }
    }

    /// The learning rate over the run.
    pub fn learning_rate(&self) -> LearningRate {
        let (peak, floor) = (self.lr, self.lr * self.lr_floor);
        let (schedule, decay) = (self.lr_schedule, self.lr_decay);
        LearningRate { peak, floor, warmup: self.warmup, steps: self.steps, schedule, decay }
    }

    /// The optimizer.
    pub(super) fn build_optimizer(&self) -> Optimizer {
        let Self { beta1, beta2, eps, momentum, nesterov, .. } = *self;
        let rule = match self.optimizer {
            OptimizerKind::AdamW => UpdateRule::Adam { beta1, beta2, eps, decoupled: true },
            OptimizerKind::Adam => UpdateRule::Adam { beta1, beta2, eps, decoupled: false },
            OptimizerKind::Sgd => UpdateRule::Sgd { momentum, nesterov },
        };
        let clip = (self.clip > 0.0).then_some(self.clip);
        Optimizer::new(rule)
            .decay(self.weight_decay)
            .decays(Decays::Matrices)
            .clip(clip)
            .frozen(self.frozen())
    }
}

/// A size like `2GiB`.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    const UNITS: [(&str, f64); 9] = [
        ("B", 1.0),
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
        ("KB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TiB", 1_099_511_627_776.0),
        ("TB", 1e12),
    ];
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(at);
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let bytes = number.trim().parse::<f64>().ok()? * factor;
    (1.0..1e18).contains(&bytes).then_some(bytes as u64)
}
