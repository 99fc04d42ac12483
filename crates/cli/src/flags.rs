//! Flags that set the fields of a training configuration: a flag wins over the file, the file over the default.

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use phalanx::job::Pin;
use phalanx::pipeline::{Fusion, Overlap};
use phalanx::train::{Bits, Debug, OptimizerKind, TrainConfig};
use phalanx::{Check, Recompute};

use crate::costs;
use crate::failure::Failure;

/// The most cores a device can have.
pub const MOST_CORES: usize = 1024;

/// Which model.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct ModelFlags {
    /// Family: gpt2 or llama
    #[arg(long, value_name = "FAMILY")]
    model: Option<String>,
    /// Preset that gives the sizes not set otherwise: nano, tiny, small, medium, large, xl
    #[arg(long)]
    size: Option<String>,
    /// Transformer blocks
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Attention heads; they divide the width
    #[arg(long, value_name = "N")]
    heads: Option<usize>,
    /// Heads of keys and values (llama); they divide the heads
    #[arg(long, value_name = "N")]
    kv_heads: Option<usize>,
    /// Features of the residual stream
    #[arg(long, value_name = "N")]
    width: Option<usize>,
    /// Tokens in a sequence
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Probability of dropping an element, below 1
    #[arg(long, value_name = "F")]
    dropout: Option<f32>,
}

/// What a step is made of.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Step")]
pub struct StepFlags {
    /// Sequences in a step
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Parts into which the batch is cut to save memory; powers of two up to 8 leave all bits the same
    #[arg(long, value_name = "N")]
    accumulate: Option<usize>,
    /// Update rule
    #[arg(long, value_name = "RULE", value_parser = rules())]
    optimizer: Option<OptimizerKind>,
    /// Decay of the first moment (adam, adamw)
    #[arg(long, value_name = "F")]
    beta1: Option<f32>,
    /// Decay of the second moment (adam, adamw)
    #[arg(long, value_name = "F")]
    beta2: Option<f32>,
    /// Added to the root of the second moment (adam, adamw)
    #[arg(long, value_name = "F")]
    eps: Option<f32>,
    /// Momentum (sgd)
    #[arg(long, value_name = "F")]
    momentum: Option<f32>,
    /// Look ahead along the momentum (sgd)
    #[arg(long)]
    nesterov: bool,
    /// Weight decay of matrices
    #[arg(long, value_name = "F")]
    weight_decay: Option<f32>,
    /// Largest gradient norm let through; 0 for no clipping
    #[arg(long, value_name = "F")]
    clip: Option<f32>,
    /// Seed of initialization, data order and dropout
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Where and how exactly a step runs.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Devices")]
pub struct PlanFlags {
    /// How tensors lie on devices: a preset (dp, fsdp, zero1, tp, sp, pp, products such as dp2-tp2) or a file
    #[arg(long, value_name = "FILE|PRESET")]
    plan: Option<String>,
    /// Devices to run on, in this process; the plan's number if absent
    #[arg(long, value_name = "N", value_parser = devices)]
    devices: Option<usize>,
    /// Cores to use; 0 for all. The bits do not depend on it
    #[arg(long, value_name = "N")]
    cores: Option<usize>,
    /// Cores of each device; 0 for an even share of all
    #[arg(long, value_name = "N")]
    cores_per_device: Option<usize>,
    /// Whether a plan may change the bits: strict refuses one that would
    #[arg(long, value_name = "MODE", value_parser = bits())]
    bits: Option<Bits>,
    /// Hold transfers between devices back to a link, to try a network on one machine: latency,bandwidth like 1ms,1Gbit
    #[arg(long, value_name = "LATENCY,BANDWIDTH")]
    link: Option<String>,
    /// Whether transfers run beside computing; auto: with a link. The bits do not depend on it
    #[arg(long, value_name = "MODE", value_parser = overlap())]
    overlap: Option<Overlap>,
    /// The most memory a device may need, like 2GiB; a plan that needs more is refused before the first step
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Which activations are computed again instead of kept: none, full, or auto: as few as make --memory suffice. The
    /// bits do not depend on it
    #[arg(long, value_name = "MODE")]
    recompute: Option<Recompute>,
    /// Whether element-wise tasks are joined where that spares bytes: auto or off. The bits do not depend on it
    #[arg(long, value_name = "MODE", value_parser = fusion())]
    fusion: Option<Fusion>,
    /// Leaves of the trees that sum over rows: a power of two
    #[arg(long, value_name = "N")]
    leaves_batch: Option<usize>,
    /// Leaves of the trees that sum over features: a power of two
    #[arg(long, value_name = "N")]
    leaves_feature: Option<usize>,
    /// Leaves of the trees that sum over time inside the batch: a power of two
    #[arg(long, value_name = "N")]
    leaves_sequence: Option<usize>,
}

/// How a job of several processes runs.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Ranks (under phalanx launch, mpirun or srun)")]
pub struct RankFlags {
    /// Devices of each rank; an even share of the plan's if absent
    #[arg(long, value_name = "N", value_parser = devices)]
    devices_per_rank: Option<usize>,
    /// Whether threads are kept on cores: auto or off. Auto keeps those of a rank on its share of the host's cores, and
    /// each on one of its own if together they need all
    #[arg(long, value_name = "MODE", value_parser = pins())]
    pin: Option<Pin>,
    /// Seconds after which a job in which no operation is completed says who waits for whom, and ends
    #[arg(long, value_name = "N")]
    stall_seconds: Option<u64>,
    /// Write the proof that the ranks cannot deadlock; `phalanx verify` checks it
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// A fire drill, to see how the job ends: a rank fails at a step, KIND is panic, nan, hang, stop or kill; or the N-th
    /// call that writes checkpoints fails, with KIND@save:N, where KIND is kill, enospc, eio, short, sync or rename. When
    /// `phalanx launch --max-restarts` starts the job again there is none, but with KIND@RANK:+N the rank fails at its N-th
    /// step after every start
    #[arg(long, value_name = "KIND@RANK:STEP")]
    drill: Option<String>,
}

/// By what transfers are scheduled.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Devices")]
pub struct CostFlags {
    /// Times of kernels by which transfers are scheduled: a file, to which what it lacks is added after measuring it, or
    /// `modelled` for estimates; this machine's own file if absent, in $XDG_CACHE_HOME or ~/.cache
    #[arg(long, value_name = "FILE|modelled")]
    costs: Option<PathBuf>,
}

impl CostFlags {
    /// Sets the field, where nothing is said to this machine's own times; estimates if there is no place for these.
    pub fn apply(&self, config: &mut TrainConfig) {
        let given = self.costs.clone().or(config.costs.take());
        config.costs = given.or_else(|| costs::cache_file().ok());
    }
}

/// What a run is made of.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Run")]
pub struct RunFlags {
    /// Steps to train
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Highest learning rate
    #[arg(long, value_name = "F")]
    lr: Option<f32>,
    /// Learning rate of the last step, as a share of the highest
    #[arg(long, value_name = "F")]
    lr_floor: Option<f32>,
    /// Steps of linear warm-up
    #[arg(long, value_name = "N")]
    warmup: Option<u64>,
    /// UTF-8 text file, or a directory of them; the embedded grammar if absent
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// A Hugging Face tokenizer.json for the data; bytes if absent
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Directory to write the trained model to, as transformers reads it
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Directory in which every process writes a log of its steps, rank-0.jsonl, rank-1.jsonl, ..., and the first one an
    /// event file for TensorBoard; a directory for each run
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// Stop after the step whose loss is at most this; with --eval-every the loss on held-back data counts
    #[arg(long, value_name = "LOSS")]
    stop_at_loss: Option<f32>,
}

/// What is looked at beside the steps.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Watching")]
pub struct WatchFlags {
    /// Compute the loss on held-back data after every so many steps, with memory of its own for it. The last windows of
    /// the data are then never trained on, which changes the order of the others; the embedded grammar gives other
    /// sentences, and training stays the same
    #[arg(long, value_name = "STEPS")]
    eval_every: Option<u64>,
    /// Share of the data that is held back [default: 0.05]
    #[arg(long, value_name = "F")]
    eval_share: Option<f64>,
    /// Batches that are evaluated, the same ones every time [default: 8]
    #[arg(long, value_name = "N")]
    eval_batches: Option<u64>,
    /// Hash all weights and optimizer states after every so many steps. Lines of --json get one hash over all, the log of
    /// --log-dir also one of each tensor; plan, devices and ranks do not matter. `phalanx diff` compares them
    #[arg(long, value_name = "STEPS")]
    hash_every: Option<u64>,
    /// nan: name the first operation that writes a number that is not finite. Keeps a copy of weights and optimizer state
    /// before each step and runs one step at a time: slower. Not in a job of several processes: take --devices
    #[arg(long, value_name = "WHAT", value_parser = debugs())]
    debug: Option<Debug>,
}

/// The most devices a plan can have.
const MOST_DEVICES: usize = 4096;

fn devices(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(devices) if (1..=MOST_DEVICES).contains(&devices) => Ok(devices),
        _ => Err(format!("it must be a whole number from 1 to {MOST_DEVICES}")),
    }
}

fn bits() -> impl TypedValueParser<Value = Bits> {
    PossibleValuesParser::new(["strict", "free"]).map(|name| match name.as_str() {
        "free" => Bits::Free,
        _ => Bits::Strict,
    })
}

fn overlap() -> impl TypedValueParser<Value = Overlap> {
    PossibleValuesParser::new(["auto", "on", "off"]).map(|name| match name.as_str() {
        "on" => Overlap::On,
        "off" => Overlap::Off,
        _ => Overlap::Auto,
    })
}

/// The values of `--fusion`.
pub fn fusion() -> impl TypedValueParser<Value = Fusion> {
    PossibleValuesParser::new(["auto", "off"]).map(|name| match name.as_str() {
        "off" => Fusion::Off,
        _ => Fusion::Auto,
    })
}

/// What `--check` can check.
pub fn checks() -> impl TypedValueParser<Value = Check> {
    PossibleValuesParser::new(["none", "kernels"]).map(|name| match name.as_str() {
        "kernels" => Check::Kernels,
        _ => Check::None,
    })
}

fn pins() -> impl TypedValueParser<Value = Pin> {
    PossibleValuesParser::new(["auto", "off"]).map(|name| match name.as_str() {
        "off" => Pin::Off,
        _ => Pin::Auto,
    })
}

fn debugs() -> impl TypedValueParser<Value = Debug> {
    PossibleValuesParser::new(["nan"]).map(|_| Debug::Nan)
}

fn rules() -> impl TypedValueParser<Value = OptimizerKind> {
    PossibleValuesParser::new(["adamw", "adam", "sgd"]).map(|name| match name.as_str() {
        "adam" => OptimizerKind::Adam,
        "sgd" => OptimizerKind::Sgd,
        _ => OptimizerKind::AdamW,
    })
}

/// Sets the fields whose flags are given.
macro_rules! set {
    ($flags:ident, $config:ident: $($field:ident)*) => {
        $(if let Some(value) = &$flags.$field {
            $config.$field = value.clone().into();
        })*
    };
}

/// The configuration of a file, or the default.
pub fn read(path: Option<&PathBuf>) -> Result<TrainConfig, Failure> {
    match path {
        Some(path) => TrainConfig::read(path).map_err(|error| Failure::from(phalanx::Error::from(error))),
        None => Ok(TrainConfig::default()),
    }
}

impl ModelFlags {
    /// Sets the given fields.
    pub fn apply(&self, config: &mut TrainConfig) {
        set!(self, config: model size layers heads kv_heads width context dropout);
    }

    /// Whether any flag but the context is given.
    pub fn has_size(&self) -> bool {
        let mut config = TrainConfig::default();
        ModelFlags { context: None, ..self.clone() }.apply(&mut config);
        config != TrainConfig::default()
    }
}

impl StepFlags {
    /// Sets the given fields.
    pub fn apply(&self, config: &mut TrainConfig) {
        set!(self, config: batch accumulate optimizer beta1 beta2 eps momentum weight_decay clip seed);
        config.nesterov |= self.nesterov;
    }
}

impl PlanFlags {
    /// Sets the given fields.
    pub fn apply(&self, config: &mut TrainConfig) -> Result<(), Failure> {
        set!(self, config: cores cores_per_device bits recompute fusion overlap leaves_batch leaves_feature leaves_sequence);
        for (flag, field) in [(&self.link, &mut config.link), (&self.memory, &mut config.memory)] {
            if flag.is_some() {
                field.clone_from(flag);
            }
        }
        if self.plan.is_some() {
            config.plan = self.plan.clone();
        }
        config.devices = self.devices.or(config.devices);
        check_cores("cores_per_device", config.cores_per_device)?;
        check_cores("cores", config.cores)
    }
}

impl RankFlags {
    /// Sets the given fields.
    pub fn apply(&self, config: &mut TrainConfig) {
        set!(self, config: pin stall_seconds);
        config.devices_per_rank = self.devices_per_rank.or(config.devices_per_rank);
        if self.drill.is_some() {
            config.drill.clone_from(&self.drill);
        }
    }

    /// Where the proof goes.
    pub fn certificate(&self) -> Option<&Path> {
        self.certificate.as_deref()
    }
}

impl RunFlags {
    /// Sets the given fields.
    pub fn apply(&self, config: &mut TrainConfig) {
        set!(self, config: steps lr lr_floor warmup data tokenizer save log_dir stop_at_loss);
    }
}

impl WatchFlags {
    /// Sets the given fields.
    pub fn apply(&self, config: &mut TrainConfig) {
        set!(self, config: eval_every eval_share eval_batches hash_every debug);
    }
}

/// The number of cores to use: 0 is all of this machine.
pub fn cores(given: usize) -> Result<usize, Failure> {
    check_cores("cores", given)?;
    Ok(TrainConfig { cores: given, ..TrainConfig::default() }.cores())
}

fn check_cores(field: &str, cores: usize) -> Result<(), Failure> {
    match cores <= MOST_CORES {
        true => Ok(()),
        false => Err(Failure::Input(format!(
            "`{field}` is {cores}; a device has at most {MOST_CORES}, use 0 for all"
        ))),
    }
}
