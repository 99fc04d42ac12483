//! What a training run is made of: every option of it, once, with its default.

mod check;
mod model;
mod read;
mod settings;
mod tuned;
mod zoo;

use std::path::PathBuf;

use phalanx_ir::Precision;
use phalanx_plan::MOST_DEVICES;
use serde::{Deserialize, Serialize};

use super::options::Mark::{AffectsBits, Excludes, InJob, Needs, OnlyWith, PerRank, SeveralDevices};
use super::options::{OptionGroup, OptionSpec, OptionValue, shown, train_options};
use crate::Pin;
use crate::hf::SaveDtype;
use crate::pipeline::{DEFAULT_LEAVES, Fusion, MOST_RUN, Overlap};
use crate::{Check, LrSchedule, Recompute};
pub use check::ConfigError;
pub(crate) use settings::bytes;

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
    /// Yes, where a cut does not follow the reduction blocks of a sum.
    Free,
}

/// What is looked for in every step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Debug {
    /// The first number that is not finite.
    Nan,
}

/// The permissions that a mask like `077` takes away.
fn parse_umask(text: &str) -> Option<u32> {
    let is_octal = (1..=4).contains(&text.len()) && text.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
    u32::from_str_radix(text, 8).ok().filter(|&mask| is_octal && mask <= 0o777)
}

/// Update rules with moments.
const ADAM: &[&str] = &["adamw", "adam"];
/// What is written of a model with adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoraSave {
    /// The model, with the adapters added into its weights.
    Merged,
    /// The adapters alone, as PEFT reads them.
    Separate,
}

/// The most cores a device can have.
pub const MOST_CORES: usize = 1024;

train_options! {
    /// A training run. Every option has a default: the embedded data and a model that learns it in a minute.
    ///
    /// Options are set as fields or by the methods of the same names.
    ///
    /// ```
    /// use phalanx::train::TrainConfig;
    ///
    /// let config = TrainConfig::default().steps(20).plan(Some("dp2".into()));
    /// assert_eq!(config.steps, 20);
    /// ```
    Model {
        /// Family: gpt2, llama, mistral, qwen2, qwen3, phi3, olmo2, gemma, gpt_neox or mixtral; or a model with data of its own:
        /// alexnet, bert, candle-uno, convnext, dlrm, inception, lstm, mobilenet, resnet, resnext, roberta, t5, unet, vit, xdl.
        model: String = "gpt2".into(), "FAMILY";
        /// Preset that gives the sizes not set otherwise: nano, tiny, small, medium, large, xl.
        size: String = "nano".into(), "SIZE";
        /// Sizes of a model with data of its own, such as {"image": 64, "classes": 10}, for those that have no flag.
        sizes: Option<String> = None, "JSON";
        /// Transformer blocks.
        layers: Option<usize> = None, "N";
        /// Attention heads; they divide the width.
        heads: Option<usize> = None, "N";
        /// Heads of keys and values (not gpt2); they divide the heads.
        kv_heads: Option<usize> = None, "N";
        /// Features of the residual stream.
        width: Option<usize> = None, "N";
        /// Tokens in a sequence.
        context: Option<usize> = None, "N";
        /// The most tokens the model can see at once: rows of the position table (gpt2); the context if absent.
        positions: Option<usize> = None, "N";
        /// Tokens the model knows; those of the data if absent.
        vocab: Option<usize> = None, "N";
        /// Features inside the feed-forward part; 4 times the width (gpt2) or as many times as in the preset if absent.
        hidden: Option<usize> = None, "N";
        /// Features of a head (not gpt2); the width divided by the heads, or as in the preset, if absent.
        head_dim: Option<usize> = None, "N";
        /// Applied inside the feed-forward part, by its name in transformers: gelu_new, gelu, relu, silu, ...; what the
        /// family has if absent.
        activation: Option<String> = None, "NAME";
        /// Added to variances or mean squares by norms; 1e-5 if absent.
        norm_eps: Option<f32> = None, "F" where |x| x.is_finite() && *x > 0.0, "finite and above 0";
        /// Base of the rotary frequencies (not gpt2); as in the preset if absent.
        rope_theta: Option<f32> = None, "F" where |x| x.is_finite() && *x > 0.0, "finite and above 0";
        /// What becomes of the rotary frequencies (not gpt2), with the numbers of transformers: linear:FACTOR,
        /// dynamic:FACTOR or llama3:FACTOR,LOW,HIGH,POSITIONS; none if absent.
        rope_scaling: Option<String> = None, "KIND";
        /// Features of a head that positions turn, the first ones (phi3, gpt_neox); as in the preset if absent.
        rotary_dim: Option<usize> = None, "N";
        /// Tokens that attention sees, and the first layer where this is so (mistral, qwen2, qwen3, phi3, mixtral); the
        /// context may not be longer. All tokens if absent.
        window: Option<String> = None, "SIZE[,LAYER]";
        /// Experts in each layer, how many of them a token goes through, and the factor of the loss that balances them
        /// (mixtral).
        experts: Option<String> = None, "COUNT,PER_TOKEN[,BALANCE]";
        /// Whether both parts of a block read the same stream (gpt_neox).
        parallel_residual: Option<bool> = None, "true|false";
        /// A token whose embedding gets no gradient (not gpt2 and gpt_neox); none if absent.
        padding: Option<usize> = None, "TOKEN";
        /// Whether the attention projections have biases (llama, qwen3, olmo2, gemma, gpt_neox).
        attention_bias: Option<bool> = None, "true|false";
        /// Whether the feed-forward projections have biases (llama).
        mlp_bias: Option<bool> = None, "true|false";
        /// Whether the output head is the token embedding; as in the preset if absent.
        tied: Option<bool> = None, "true|false";
        /// Probability of dropping an element.
        dropout: f32 = 0.0, "F" [AffectsBits] where |x| (0.0..1.0).contains(x), "at least 0 and below 1";
    }
    Step {
        /// Sequences in a step.
        batch: usize = 16, "N" [AffectsBits] where |n| *n >= 1, "at least 1";
        /// Parts into which the batch is cut to save memory; powers of two up to 8 leave all bits the same.
        accumulate: usize = 1, "N" where |n| *n >= 1, "at least 1";
        /// Update rule.
        optimizer: OptimizerKind = OptimizerKind::AdamW, "RULE" [AffectsBits];
        /// Decay of the first moment (adam, adamw).
        beta1: f32 = 0.9, "F" [AffectsBits, OnlyWith("optimizer", ADAM)]
            where |x| (0.0..1.0).contains(x), "at least 0 and below 1";
        /// Decay of the second moment (adam, adamw).
        beta2: f32 = 0.95, "F" [AffectsBits, OnlyWith("optimizer", ADAM)]
            where |x| (0.0..1.0).contains(x), "at least 0 and below 1";
        /// Added to the root of the second moment (adam, adamw).
        eps: f32 = 1e-8, "F" [AffectsBits, OnlyWith("optimizer", ADAM)]
            where |x| x.is_finite() && *x >= 0.0, "finite and not below 0";
        /// Momentum (sgd).
        momentum: f32 = 0.9, "F" [AffectsBits, OnlyWith("optimizer", &["sgd"])]
            where |x| (0.0..1.0).contains(x), "at least 0 and below 1";
        /// Look ahead along the momentum, as Nesterov does (sgd).
        nesterov: bool = false, "" [AffectsBits, OnlyWith("optimizer", &["sgd"])];
        /// Weight decay of matrices.
        weight_decay: f32 = 0.1, "F" [AffectsBits] where |x| x.is_finite() && *x >= 0.0, "finite and not below 0";
        /// Largest gradient norm let through; 0 for no clipping.
        clip: f32 = 1.0, "F" [AffectsBits] where |x| x.is_finite() && *x >= 0.0, "finite and not below 0";
        /// Parameters that stay as they are, by patterns for their names with commas between: '*wte*,*.h.0.*'. A pattern
        /// after ! means parameters that are trained, and if the first one does, all others are frozen: '!*.h.11.*'.
        freeze: Option<String> = None, "PATTERNS" [AffectsBits, Excludes("lora")];
        /// Train low-rank adapters of linear layers, and nothing else: their rank, alpha (the rank if absent) and patterns
        /// for names of layers, or their last parts, such as 8,16,q_proj,v_proj. What PEFT adapts if there are none: q_proj
        /// and v_proj, or the three projections where files hold them as one (gpt2, gpt_neox).
        lora: Option<String> = None, "RANK[,ALPHA[,PATTERNS]]" [AffectsBits, Excludes("freeze")];
        /// Seed of initialization, data order and dropout.
        seed: u64 = 0, "N" [AffectsBits, PerRank];
    }
    Devices {
        /// How tensors lie on devices: a preset (dp, fsdp, zero1, tp, sp, pp, products such as dp2-tp2) or a file; one
        /// device if absent.
        plan: Option<String> = None, "FILE|PRESET" [PerRank];
        /// Devices to run on, in this process; the plan's number if absent.
        devices: Option<usize> = None, "N" where |n| (1..=MOST_DEVICES).contains(n), "from 1 to 131072";
        /// Cores to use; 0 for all. The bits do not depend on it.
        cores: usize = 0, "N" [PerRank] where |n| *n <= MOST_CORES, "at most 1024, or 0 for all";
        /// Cores of each device; 0 for an even share of all.
        cores_per_device: usize = 0, "N" [PerRank] where |n| *n <= MOST_CORES, "at most 1024, or 0 for an even share";
        /// Whether a plan may change the bits: strict refuses one that would.
        bits: Bits = Bits::Strict, "MODE" [AffectsBits];
        /// Hold transfers between devices back to a link, to try a network on one machine: latency,bandwidth like
        /// 1ms,1Gbit.
        link: Option<String> = None, "LATENCY,BANDWIDTH" [SeveralDevices(&[])];
        /// A file that says how devices are connected, how much memory and how many cores each has, and how fast it is.
        /// Transfers are held back to it like to a link; see `phalanx cluster`.
        cluster: Option<PathBuf> = None, "FILE" [Excludes("link"), SeveralDevices(&[])];
        /// Whether transfers run beside computing; auto: with a link or a cluster. The bits do not depend on it.
        overlap: Overlap = Overlap::Auto, "MODE" [SeveralDevices(&["auto", "off"])];
        /// The most memory a device may need, like 2GiB; a plan that needs more is refused before the first step.
        memory: Option<String> = None, "SIZE";
        /// Which activations are computed again instead of kept: none, full, or auto: as few as make --memory suffice.
        /// The bits do not depend on it.
        recompute: Recompute = Recompute::Auto, "MODE";
        /// Whether element-wise tasks are joined where that spares bytes. The bits do not depend on it.
        fusion: Fusion = Fusion::Auto, "MODE";
        /// Reduction blocks of sums over rows: the equal blocks of the summed axis whose partial sums are added as a
        /// balanced binary tree.
        blocks_batch was "leaves_batch": usize = DEFAULT_LEAVES.batch, "N" [AffectsBits]
            where |n| n.is_power_of_two() && *n <= 1024, "a power of two up to 1024";
        /// Reduction blocks of sums over features.
        blocks_feature was "leaves_feature": usize = DEFAULT_LEAVES.feature, "N" [AffectsBits]
            where |n| n.is_power_of_two() && *n <= 1024, "a power of two up to 1024";
        /// Reduction blocks of sums over time inside the batch.
        blocks_sequence was "leaves_sequence": usize = DEFAULT_LEAVES.sequence, "N" [AffectsBits]
            where |n| n.is_power_of_two() && *n <= 1024, "a power of two up to 1024";
        /// What matrix products are computed in: f32, or operands rounded to bf16 and sums in f32, in the order of tile
        /// multiplications (bf16) or of dot products of pairs (bf16-pair). Each has the same bits on every machine.
        precision: Precision = Precision::F32, "NAME" [AffectsBits];
    }
    Costs {
        /// Times of kernels by which transfers are scheduled: a file, to which what it lacks is added after measuring it,
        /// or `modelled` for estimates. Commands take this machine's own file if absent, in $XDG_CACHE_HOME or ~/.cache;
        /// the library takes estimates.
        costs: Option<PathBuf> = None, "FILE|modelled" [PerRank];
    }
    Run {
        /// Start from a Hugging Face directory: sizes, weights and, with --data, the tokenizer come from it. For a model with
        /// data of its own also a .safetensors file, or a directory without config.json: then --size tells the sizes.
        hf: Option<PathBuf> = None, "DIR";
        /// Steps to train.
        steps: u64 = 400, "N" [AffectsBits] where |n| *n >= 1, "at least 1";
        /// Highest learning rate.
        lr: f32 = 3e-3, "F" [AffectsBits] where |x| x.is_finite() && *x >= 0.0, "finite and not below 0";
        /// Learning rate of the last step, as a share of the highest.
        lr_floor: f32 = 0.1, "F" [AffectsBits, OnlyWith("lr_schedule", &["cosine", "linear", "wsd"])]
            where |x| (0.0..=1.0).contains(x), "at least 0 and at most 1";
        /// Steps of linear warm-up.
        warmup: u64 = 20, "N" [AffectsBits];
        /// How the learning rate falls after the warm-up; wsd keeps it until the last steps.
        lr_schedule: LrSchedule = LrSchedule::Cosine, "KIND" [AffectsBits];
        /// Share of the steps, the last ones, in which it falls (wsd).
        lr_decay: f32 = 0.2, "F" [AffectsBits, OnlyWith("lr_schedule", &["wsd"])]
            where |x| (0.0..=1.0).contains(x), "at least 0 and at most 1";
        /// What to train on: a file, a directory, or a pattern such as 'texts/*.txt'. Files called .jsonl have a JSON
        /// object on each line, .parquet a column of text (in builds with the feature `parquet`), .bin tokens of llm.c or
        /// nanoGPT (`phalanx data tokenize` writes them), all others are UTF-8 text; the embedded grammar if absent. Several are mixed by weight: 'texts/*.txt=0.7;code.jsonl=0.3'.
        data: Option<PathBuf> = None, "PATH[=WEIGHT;...]" [AffectsBits];
        /// The field of a .jsonl line that has the text, or a list of messages; the column of a .parquet file. Lines without `text` may have `messages`,
        /// `prompt` with `completion`, or `instruction` with `output`.
        data_field: String = "text".into(), "NAME" [AffectsBits];
        /// How conversations become text: chatml, llama3, plain, or a file with a Jinja template as transformers has it;
        /// the one beside the tokenizer if absent, else the one whose special tokens the tokenizer has, else plain.
        chat_template: Option<String> = None, "NAME|FILE" [AffectsBits, Needs("data")];
        /// Train on answers only: messages of the assistant, completions, outputs. The loss is the mean over their tokens.
        mask_prompt: bool = false, "" [AffectsBits, Needs("data")];
        /// Directory in which the tokens of text are kept for the next run; in $XDG_CACHE_HOME or ~/.cache if absent.
        data_cache: Option<PathBuf> = None, "DIR" [PerRank, Needs("data")];
        /// A Hugging Face tokenizer.json for the data; bytes if absent.
        tokenizer: Option<PathBuf> = None, "FILE" [AffectsBits, Needs("data")];
        /// Directory to write the trained model to, as transformers reads it.
        save: Option<PathBuf> = None, "DIR" [PerRank];
        /// What --save writes of a run with adapters: the model with the adapters added into its weights, or the adapters
        /// alone, as PEFT reads them.
        lora_save: LoraSave = LoraSave::Merged, "FORM" [PerRank, Needs("lora"), Needs("hf")];
        /// Type of the weights that --save writes; trained ones are f32. Those of 16 bits are the nearest ones; a weight that
        /// f16 cannot hold is refused.
        save_dtype: SaveDtype = SaveDtype::F32, "TYPE" [PerRank, Needs("save"), OnlyWith("lora_save", &["merged"])];
        /// Directory in which every process writes a log of its steps, rank-0.jsonl, rank-1.jsonl, ..., and the first
        /// one an event file for TensorBoard; a directory for each run.
        log_dir: Option<PathBuf> = None, "DIR" [PerRank];
        /// Permissions that the files and directories of this run do not have, in octal like those of the shell's `umask`,
        /// which counts if absent: with 077 no other user reads weights, checkpoints and logs.
        umask: Option<String> = None, "OCTAL" [PerRank]
            where |mask| parse_umask(mask).is_some(), "octal digits up to 777, such as 077";
        /// Neither read nor write compiled programs and tokens in $XDG_CACHE_HOME or ~/.cache: compile and encode anew.
        no_cache: bool = false, "" [PerRank];
        /// Let --save write the weights with the lowest loss on held-back data instead of the last ones. Each evaluation that
        /// is lower than all before it saves a checkpoint.
        save_best: bool = false, "" [Needs("save"), Needs("checkpoint"), Needs("eval_every")];
        /// Replace the log in --log-dir and the model in --save if they are of another run.
        overwrite: bool = false, "" [PerRank];
        /// Print a line of progress after every so many steps; if absent, every 10 s where there is no terminal.
        log_every: Option<u64> = None, "STEPS" [PerRank] where |n| *n >= 1, "at least 1";
        /// Stop after the step whose loss is at most this; with --eval-every the loss on held-back data counts.
        stop_at_loss: Option<f32> = None, "LOSS" where |x| x.is_finite(), "finite";
    }
    Watching {
        /// Compute the loss on held-back data after every so many steps, with memory of its own for it. The last documents
        /// of the data, or the last windows if no document begins about there, are then never trained on, which changes the
        /// order of the others; the embedded grammar gives other sentences, and training stays the same.
        eval_every: Option<u64> = None, "STEPS" where |n| *n >= 1, "at least 1";
        /// Share of the data that is held back.
        eval_share: f64 = 0.05, "F" [Needs("eval_every")] where |x| *x > 0.0 && *x < 1.0, "above 0 and below 1";
        /// Batches that are evaluated, the same ones every time.
        eval_batches: u64 = 8, "N" [Needs("eval_every")] where |n| *n >= 1, "at least 1";
        /// Stop when the loss on held-back data has not fallen below its lowest value in so many evaluations.
        patience: Option<u64> = None, "N" [Needs("eval_every")] where |n| *n >= 1, "at least 1";
        /// Hash all weights and optimizer states after every so many steps. Lines of --json get one hash over all, the log
        /// of --log-dir also one of each tensor; plan, devices and ranks do not matter. `phalanx diff` compares them.
        hash_every: Option<u64> = None, "STEPS" where |n| *n >= 1, "at least 1";
        /// nan: name the first operation that writes a number that is not finite. Keeps a copy of weights and optimizer
        /// state before each step and runs one step at a time: slower. Not in a job of several processes: take --devices.
        debug: Option<Debug> = None, "WHAT";
    }
    Checkpoints {
        /// Directory to write checkpoints to, step-00000020 and so on; all ranks of a job must see it.
        checkpoint: Option<PathBuf> = None, "DIR";
        /// Steps between two checkpoints.
        every: Option<u64> = None, "N" [Needs("checkpoint"), Excludes("every_minutes")]
            where |n| *n >= 1, "at least 1";
        /// Minutes between two checkpoints; 10 if neither this nor --every is given. A run that ends or is stopped saves,
        /// too.
        every_minutes: Option<f64> = None, "M" [Needs("checkpoint"), Excludes("every")]
            where |x| (0.0..1e6).contains(x), "at least 0 and below a million";
        /// Checkpoints to keep: the newest ones, and with --eval-every also the one with the lowest loss on held-back data.
        keep: usize = 3, "K" [Needs("checkpoint")] where |n| *n >= 1, "at least 1";
        /// Stop if a checkpoint, a log or standard output cannot be written, instead of a warning.
        strict: bool = false, "";
        /// Wait until each checkpoint is written, instead of writing it while training goes on.
        sync_checkpoints: bool = false, "" [Needs("checkpoint")];
        /// Let rank 0 write the checkpoints of all ranks, for hosts that share no file system. Training waits while they
        /// are sent; a run that is resumed gets them from there.
        gather_checkpoints: bool = false, "" [Needs("checkpoint"), InJob];
        /// Go on from the newest checkpoint that is whole, on any devices, with the same bits; from the start if there is
        /// none.
        resume: bool = false, "" [Needs("checkpoint")];
        /// Go on with --resume although the data is other than before.
        accept_data_change: bool = false, "" [Needs("resume")];
        /// Go on with --resume although products were computed in another precision before.
        change_precision: bool = false, "" [Needs("resume")];
    }
    Ranks {
        /// Devices of each rank; an even share of the plan's if absent.
        devices_per_rank: Option<usize> = None, "N" [InJob] where |n| (1..=MOST_RUN).contains(n), "from 1 to 4096";
        /// Whether threads are kept on cores. Auto keeps those of a rank on its share of the host's cores, and each on one
        /// of its own if together they need all.
        pin: Pin = Pin::Auto, "MODE";
        /// Seconds after which a job in which no operation is completed reports which rank waits for which, and ends; outside
        /// of steps, one with a rank that does not answer.
        stall_seconds: u64 = 60, "N" [InJob] where |n| *n >= 1, "at least 1";
        /// A fire drill, to see how the job ends: a rank fails at a step, KIND is panic, nan, hang, stop or kill; stop and
        /// kill also before the first step, 0, after the last one, end, and when ranks leave the job, leave; or the N-th call
        /// that writes checkpoints fails, with KIND@save:N, where KIND is kill, stop, enospc, eio, short, sync or rename. When
        /// `phalanx launch --max-restarts` starts the job again there is none,
        /// but with KIND@RANK:+N the rank fails at its N-th step after every start.
        drill: Option<String> = None, "KIND@RANK:STEP";
    }
    Debugging {
        /// Run every operation through the runtime's immediate mode: the same bits, slower, for comparison and debugging.
        immediate: bool = false, "" [Excludes("stepped")];
        /// Run every operation on one thread, in a random order that the plan allows: the same bits, or the compiler is
        /// wrong.
        stepped: Option<u64> = None, "SEED" [Excludes("immediate")];
        /// Check while it runs that no kernel reads or writes what it must not; the first that does is named and ends the
        /// run. The same bits, about 6 times slower.
        check: Check = Check::None, "WHAT";
    }
}

#[cfg(test)]
mod tests;
