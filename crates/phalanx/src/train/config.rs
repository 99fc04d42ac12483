//! What a training run is made of: the fields of a TOML file, each with a default.

mod check;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use phalanx_ir::graph::Graph;
use phalanx_link::{Link, LinkError};
use phalanx_runtime::ExecutionMode;

use crate::choice::PlanChoice;
use crate::costs::Book;
use crate::job::{Drill, DrillError, Pin};
use crate::models::{ModelConfig, PresetError};
use crate::pipeline::{DEFAULT_LEAVES, Fusion, Overlap, Settings};
use crate::{Check, Decays, Error, Goal, LearningRate, Leaves, Optimizer, Recompute, UpdateRule};

/// Why a configuration is wrong.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is not a configuration.
    #[error("{}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: toml::de::Error,
    },
    /// No such model or size.
    #[error(transparent)]
    Preset(#[from] PresetError),
    /// The field `link` is no link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The field `drill` is no drill.
    #[error(transparent)]
    Drill(#[from] DrillError),
    /// A field has a value it cannot have.
    #[error("`{field}` is {value}; {wanted}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What it can be.
        wanted: &'static str,
    },
}

/// Which update rule is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// Adam with decoupled weight decay.
    AdamW,
    /// Adam.
    Adam,
    /// Stochastic gradient descent.
    Sgd,
}

/// Whether a plan may change the bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bits {
    /// No: the same bits for every plan.
    Strict,
    /// Yes, where a cut does not follow the leaves of a sum.
    Free,
}

/// What is looked for in every step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Debug {
    /// Where numbers stop being finite.
    Nan,
}

/// A training run. Every field has a default: the embedded data and a model that learns it in a minute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Model family: gpt2 or llama.
    pub model: String,
    /// Preset that gives the sizes not set below.
    pub size: String,
    /// Transformer blocks.
    pub layers: Option<usize>,
    /// Attention heads.
    pub heads: Option<usize>,
    /// Heads of keys and values (llama).
    pub kv_heads: Option<usize>,
    /// Width of the residual stream.
    pub width: Option<usize>,
    /// Tokens in a sequence.
    pub context: Option<usize>,
    /// Probability of dropping an element.
    pub dropout: f32,
    /// Steps to train.
    pub steps: u64,
    /// Sequences in a step.
    pub batch: usize,
    /// Parts into which the batch is cut to save memory; the bits stay the same for powers of two up to 8.
    pub accumulate: usize,
    /// Update rule.
    pub optimizer: OptimizerKind,
    /// Highest learning rate.
    pub lr: f32,
    /// Learning rate of the last step, as a share of the highest.
    pub lr_floor: f32,
    /// Steps of linear warm-up.
    pub warmup: u64,
    /// Decay of the first moment (adam, adamw).
    pub beta1: f32,
    /// Decay of the second moment (adam, adamw).
    pub beta2: f32,
    /// Added to the root of the second moment (adam, adamw).
    pub eps: f32,
    /// Momentum (sgd).
    pub momentum: f32,
    /// Nesterov's look-ahead (sgd).
    pub nesterov: bool,
    /// Weight decay of matrices.
    pub weight_decay: f32,
    /// Largest gradient norm let through; 0 for no clipping.
    pub clip: f32,
    /// Seed of initialization, data order and dropout.
    pub seed: u64,
    /// Preset or file that says how tensors lie on devices; one device if absent.
    pub plan: Option<String>,
    /// How many devices; what the plan says if absent.
    pub devices: Option<usize>,
    /// Cores to use; 0 for all of this machine.
    pub cores: usize,
    /// Cores of each device; 0 for an even share of `cores`.
    pub cores_per_device: usize,
    /// `strict`: a plan that would change the bits is refused; `free`: it is not.
    pub bits: Bits,
    /// Whether every operation goes through the runtime's immediate mode: the same bits, slower.
    pub immediate: bool,
    /// Seed of a random legal order in which one thread steps through all operations: the same bits, slower.
    pub stepped: Option<u64>,
    /// Latency and bandwidth of a link that transfers between devices are held back to, like `1ms,1Gbit`.
    pub link: Option<String>,
    /// Whether transfers run beside computing: `auto` with a link, `on`, `off`.
    pub overlap: Overlap,
    /// The most memory a device may need, like `2GiB`; any amount if absent.
    pub memory: Option<String>,
    /// Which activations are computed again instead of kept: `none`, `full`, or `auto`: as few as make `memory` suffice.
    pub recompute: Recompute,
    /// Whether element-wise tasks are joined where that spares bytes: `auto` or `off`.
    pub fusion: Fusion,
    /// What is checked while a step runs: `none`, or `kernels`: that each accesses only what it may. The same bits, slower.
    pub check: Check,
    /// File of measured times of kernels, by which transfers are scheduled; what it lacks is measured and added when a run
    /// or `plan` needs it. Estimates if absent or `modelled`.
    pub costs: Option<PathBuf>,
    /// Leaves of sums over rows.
    pub leaves_batch: usize,
    /// Leaves of sums over features.
    pub leaves_feature: usize,
    /// Leaves of sums over time inside the batch.
    pub leaves_sequence: usize,
    /// Text file or directory to train on; the embedded grammar if absent.
    pub data: Option<PathBuf>,
    /// A Hugging Face tokenizer.json; bytes if absent.
    pub tokenizer: Option<PathBuf>,
    /// Directory to write the trained model to.
    pub save: Option<PathBuf>,
    /// Devices of each rank of a job; an even share of the plan's if absent.
    pub devices_per_rank: Option<usize>,
    /// Whether threads are kept on cores: those of a rank on its share of the host's, and each on a core of its own if
    /// together they need all; `auto` or `off`.
    pub pin: Pin,
    /// Seconds after which a job in which no operation is completed is ended.
    pub stall_seconds: u64,
    /// What fails on purpose: a rank at a step, `panic@1:3`, or a call that writes a checkpoint, `enospc@save:7`.
    pub drill: Option<String>,
    /// Directory in which every process writes a log, and the first one an event file for TensorBoard.
    pub log_dir: Option<PathBuf>,
    /// Steps after each of which the loss on held-back data is computed; never if absent.
    pub eval_every: Option<u64>,
    /// Share of the data held back for it; nothing is held back without `eval_every`.
    pub eval_share: f64,
    /// Batches of it that are evaluated, the same ones every time.
    pub eval_batches: u64,
    /// Steps after each of which weights and optimizer state are hashed; never if absent.
    pub hash_every: Option<u64>,
    /// The loss at which the run stops: that of evaluations if there are any, else that of steps.
    pub stop_at_loss: Option<f32>,
    /// What is looked for in every step: `nan` for where numbers stop being finite, at the price of a copy of the state
    /// before each step.
    pub debug: Option<Debug>,
    /// Directory to write checkpoints to; all ranks of a job see it.
    pub checkpoint: Option<PathBuf>,
    /// Steps between two checkpoints.
    pub every: Option<u64>,
    /// Minutes between two checkpoints; 10 if neither this nor `every` is said.
    pub every_minutes: Option<f64>,
    /// Checkpoints to keep.
    pub keep: usize,
    /// Whether a checkpoint that cannot be written ends the run.
    pub strict: bool,
    /// Whether training waits until a checkpoint is written.
    pub sync_checkpoints: bool,
    /// Whether to go on from the newest checkpoint.
    pub resume: bool,
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
            model: "gpt2".into(),
            size: "nano".into(),
            layers: None,
            heads: None,
            kv_heads: None,
            width: None,
            context: None,
            dropout: 0.0,
            steps: 400,
            batch: 16,
            accumulate: 1,
            optimizer: OptimizerKind::AdamW,
            lr: 3e-3,
            lr_floor: 0.1,
            warmup: 20,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            momentum: 0.9,
            nesterov: false,
            weight_decay: 0.1,
            clip: 1.0,
            seed: 0,
            plan: None,
            devices: None,
            cores: 0,
            cores_per_device: 0,
            bits: Bits::Strict,
            immediate: false,
            stepped: None,
            link: None,
            overlap: Overlap::Auto,
            memory: None,
            recompute: Recompute::Auto,
            fusion: Fusion::Auto,
            check: Check::None,
            costs: None,
            leaves_batch: DEFAULT_LEAVES.batch,
            leaves_feature: DEFAULT_LEAVES.feature,
            leaves_sequence: DEFAULT_LEAVES.sequence,
            data: None,
            tokenizer: None,
            save: None,
            devices_per_rank: None,
            pin: Pin::Auto,
            stall_seconds: 60,
            drill: None,
            log_dir: None,
            eval_every: None,
            eval_share: 0.05,
            eval_batches: 8,
            hash_every: None,
            stop_at_loss: None,
            debug: None,
            checkpoint: None,
            every: None,
            every_minutes: None,
            keep: 3,
            strict: false,
            sync_checkpoints: false,
            resume: false,
        }
    }
}

/// Most hidden layers of an mlp: as many as other models may have.
const MAX_MLP_LAYERS: usize = 16384;

impl TrainConfig {
    /// Reads a TOML file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_path_buf(), source })?;
        toml::from_str(&text).map_err(|source| ConfigError::Parse { path: path.to_path_buf(), source })
    }

    /// The model for a vocabulary.
    pub fn model(&self, vocab: usize) -> Result<ModelConfig, ConfigError> {
        self.check()?;
        let mut model = ModelConfig::preset(&self.model, &self.size)?.with_vocab(vocab);
        match &mut model {
            ModelConfig::Gpt2(model) => {
                if let Some(kv_heads) = self.kv_heads {
                    return self.field(
                        "kv_heads",
                        &kv_heads,
                        "only llama has them: leave it out or use model llama",
                    );
                }
                set(&mut model.layers, self.layers);
                set(&mut model.heads, self.heads);
                if let Some(width) = self.width {
                    (model.width, model.hidden) = (width, width.saturating_mul(4));
                }
                model.dropout = self.dropout;
            }
            ModelConfig::Llama(model) => {
                let grouped = model.heads / model.kv_heads.max(1);
                set(&mut model.layers, self.layers);
                set(&mut model.heads, self.heads);
                model.kv_heads = self.kv_heads.unwrap_or_else(|| (model.heads / grouped).max(1));
                if let Some(width) = self.width {
                    (model.hidden, model.width) = (model.hidden.saturating_mul(width) / model.width, width);
                }
                model.head_dim = model.width / model.heads.max(1);
                model.dropout = self.dropout;
            }
            ModelConfig::Mlp(model) => {
                self.check_mlp()?;
                let width = self.width.or(model.hidden.first().copied()).unwrap_or(model.inputs);
                model.hidden = vec![width; self.layers.unwrap_or(model.hidden.len())];
            }
        }
        Ok(match self.context {
            Some(context) => model.with_context(context),
            None => model,
        })
    }

    /// What only a model of text has is not set.
    fn check_mlp(&self) -> Result<(), ConfigError> {
        let set = [("heads", self.heads), ("kv_heads", self.kv_heads), ("context", self.context)];
        for (name, value) in set {
            if let Some(value) = value {
                return self.field(name, &value, "an mlp has none: leave it out or use gpt2 or llama");
            }
        }
        if let Some(layers) = self.layers.filter(|&layers| layers > MAX_MLP_LAYERS) {
            return self.field("layers", &layers, "use at most 16384");
        }
        if self.dropout > 0.0 {
            return self.field(
                "dropout",
                &self.dropout,
                "an mlp has none: leave it out or use gpt2 or llama",
            );
        }
        Ok(())
    }

    /// The model of text for a vocabulary.
    pub fn language_model(&self, vocab: usize) -> Result<ModelConfig, ConfigError> {
        let model = self.model(vocab)?;
        match model.vocab() {
            Some(_) => Ok(model),
            None => self.field(
                "model",
                &self.model,
                "it reads no text: use gpt2 or llama (train an mlp with the library)",
            ),
        }
    }

    /// The sequence length for a model.
    pub fn context_of(&self, model: &ModelConfig) -> usize {
        self.context.or(model.context()).unwrap_or(1)
    }

    /// How sums are cut.
    pub fn leaves(&self) -> Leaves {
        Leaves { batch: self.leaves_batch, feature: self.leaves_feature, sequence: self.leaves_sequence }
    }

    /// How `model` is compiled.
    pub fn settings(&self, model: &Graph) -> Result<Settings, Error> {
        let choice = PlanChoice {
            plan: self.plan.clone(),
            devices: self.devices,
            microbatches: (self.accumulate > 1).then_some(self.accumulate),
        };
        let plan = choice.resolve(model)?;
        let mut settings = Settings {
            leaves: self.leaves(),
            seed: self.seed,
            cores: self.device_cores(plan.mesh.devices()),
            free_bits: self.bits == Bits::Free,
            execution: self.execution()?,
            link: self.link()?,
            overlap: self.overlap,
            memory: self.memory()?,
            recompute: self.recompute,
            snapshot: self.checkpoint.is_some(),
            fusion: self.fusion,
            pin: self.pin,
            check: self.check,
            runs: Some(self.steps),
            plan,
            ..Settings::new(Goal::Train(self.optimizer()?))
        };
        if let Some(path) = self.costs_file().filter(|path| settings.needs_costs() && path.exists()) {
            settings.book = Some(Arc::new(Book::read(path)?));
        }
        Ok(settings)
    }

    /// The same, with times of kernels from the file `costs`, where they are of use: what it lacks is measured and added.
    /// `progress` is told how many kernels are done, of how many, and which is next.
    pub fn measured_settings(
        &self,
        model: &Graph,
        progress: &mut dyn FnMut(usize, usize, &str),
    ) -> Result<Settings, Error> {
        let mut settings = self.settings(model)?;
        self.measure(model, &mut settings, progress)?;
        Ok(settings)
    }

    /// Gives `settings` the times of kernels from the file `costs`, where they are of use.
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

    /// Who fails on purpose.
    pub fn drill(&self) -> Result<Option<Drill>, ConfigError> {
        Ok(self.drill.as_deref().map(str::parse).transpose()?)
    }

    /// What a job of so many ranks takes where nothing is said: data parallel, a device on each rank.
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

    fn costs_file(&self) -> Option<&Path> {
        self.costs.as_deref().filter(|path| *path != Path::new("modelled"))
    }

    fn link(&self) -> Result<Option<Link>, ConfigError> {
        self.link.as_deref().map(str::parse).transpose().map_err(ConfigError::Link)
    }

    fn memory(&self) -> Result<Option<u64>, ConfigError> {
        let Some(text) = &self.memory else { return Ok(None) };
        match bytes(text) {
            Some(bytes) => Ok(Some(bytes)),
            None => self.field("memory", text, "it must be a size above 0 like 512MiB, 2GiB or 1.5GB"),
        }
    }

    fn execution(&self) -> Result<ExecutionMode, ConfigError> {
        match self.stepped {
            Some(seed) if self.immediate => {
                self.field("stepped", &seed, "it goes without `immediate`: take one of them out")
            }
            Some(seed) => Ok(ExecutionMode::Stepped(seed)),
            None if self.immediate => Ok(ExecutionMode::Immediate),
            None => Ok(ExecutionMode::Replay),
        }
    }

    /// Cores of each of so many devices.
    pub fn device_cores(&self, devices: usize) -> usize {
        match self.cores_per_device {
            0 => (self.cores() / devices.max(1)).max(1),
            cores => cores,
        }
    }

    /// The cores to use.
    pub fn cores(&self) -> usize {
        match self.cores {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            cores => cores,
        }
    }

    /// The learning rate over the run.
    pub fn learning_rate(&self) -> LearningRate {
        let (peak, floor) = (self.lr, self.lr * self.lr_floor);
        LearningRate { peak, floor, warmup: self.warmup, steps: self.steps }
    }

    /// The optimizer.
    pub fn optimizer(&self) -> Result<Optimizer, ConfigError> {
        let Self { beta1, beta2, eps, momentum, nesterov, .. } = *self;
        let rule = match self.optimizer {
            OptimizerKind::AdamW => UpdateRule::Adam { beta1, beta2, eps, decoupled: true },
            OptimizerKind::Adam => UpdateRule::Adam { beta1, beta2, eps, decoupled: false },
            OptimizerKind::Sgd => UpdateRule::Sgd { momentum, nesterov },
        };
        let clip = (self.clip > 0.0).then_some(self.clip);
        Ok(Optimizer {
            rule,
            decay: self.weight_decay,
            decays: Decays::Matrices,
            clip,
            keep_gradients: false,
        })
    }
}

/// A size like `2GiB`.
fn bytes(text: &str) -> Option<u64> {
    const UNITS: [(&str, f64); 7] = [
        ("B", 1.0),
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
        ("KB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
    ];
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(at);
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let bytes = number.trim().parse::<f64>().ok()? * factor;
    (1.0..1e18).contains(&bytes).then_some(bytes as u64)
}

fn set(size: &mut usize, given: Option<usize>) {
    if let Some(given) = given {
        *size = given;
    }
}
