//! `phalanx train`: the main job.

mod dry_run;
pub mod zoo;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use phalanx::ckpt;
use phalanx::data::MixedCorpus;
use phalanx::job::Connection;
use phalanx::train::{CommittedCheckpoint, LoraSave, Report, Run, Summary, TrainConfig};
use serde::Serialize;

use crate::failure::Failure;
use crate::flags::{AllOptions, Options};
use crate::job::CertificateFlag;
use crate::log::Log;
use crate::overlap::Drawings;
use crate::sinks::{Audience, Sinks};
use crate::{job, output, plot, save, stop};

/// Train a language model from scratch, or fine-tune one with --hf; or train a model of the zoo with --model.
///
/// Without arguments it trains a small GPT-2 on sentences of an embedded grammar whose entropy is known, so that the
/// loss can be shown next to the best possible one. Flags win over the file, the file over the defaults.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  phalanx train
  phalanx train --model llama --size tiny --steps 1000 --data book.txt --save out
  phalanx train run.toml --lr 1e-3          # flags win over the file
  phalanx train --hf gpt2 --data book.txt --lora 8,16 --lr 1e-3 --save tuned
  phalanx train --plan dp2-tp2 --devices 4  # four devices in this process, the same bits
  phalanx launch -n 4 -- train --plan dp2-tp2   # four processes, the same bits
  phalanx train --model vit --plan dp2      # a model that brings its own data
  phalanx train --log-dir runs/a --eval-every 50   # then: tensorboard --logdir runs
  phalanx train --log-dir runs/b --hash-every 50   # then: phalanx diff runs/b runs/c
A file has the flags' names with underscores, one a line:
  model = \"gpt2\"
  kv_heads = 2
  weight_decay = 0.05"
)]
pub struct Args {
    /// Configuration file
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options<AllOptions>,
    #[command(flatten)]
    certificate: CertificateFlag,
    #[command(flatten)]
    drawings: Drawings,
    /// Tell time, memory, tokens and checkpoints of the run, and what it would write; then end, with nothing written
    #[arg(long)]
    dry_run: bool,
    /// Print one line of JSON a step and a last one with the summary
    #[arg(long)]
    json: bool,
    /// Graph file exported from PyTorch to train; its tensors lie beside it, model.safetensors for model.json
    #[arg(long, value_name = "FILE.json")]
    graph: Option<PathBuf>,
    /// What a graph file is fed with: a tensor for each input, any number of batches long, taken in order again and again
    #[arg(long, value_name = "FILE.safetensors", requires = "graph")]
    feeds: Option<PathBuf>,
}

/// The summary of the library and what only the process knows.
#[derive(Serialize)]
struct Ending<'a> {
    #[serde(flatten)]
    summary: Summary,
    /// How far the loss is above the entropy.
    above_entropy_percent: Option<f64>,
    peak_resident_bytes: Option<u64>,
    saved: Option<&'a Path>,
    /// The step after which the model had the weights that are saved.
    saved_step: Option<u64>,
    interrupted: bool,
}

/// The last line of JSON.
#[derive(Serialize)]
struct LastLine<'a> {
    summary: &'a Ending<'a>,
}

impl Args {
    /// The configuration: flags win over the file.
    pub fn config(&self) -> Result<TrainConfig, Failure> {
        self.options.config(self.config.as_ref())
    }

    /// Whether a program reads what is printed.
    pub fn is_json(&self) -> bool {
        self.json
    }
}

/// Trains, saves and prints the summary: alone, or as one rank of a job.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let config = args.config()?;
    let given: Vec<_> = args.options.given().collect();
    if let Some(path) = &args.graph {
        return zoo::run_graph(args, config, path);
    }
    if args.feeds.is_some() {
        return Err(Failure::Input(
            "--feeds is for graph files: add --graph FILE.json, or use --data".into(),
        ));
    }
    let config = config.with_zoo_directory()?;
    if let Some(model) = config.zoo_model().map_err(phalanx::Error::from)? {
        return zoo::run(args, config, model);
    }
    if args.dry_run {
        return dry_run::run(args, config);
    }
    job::run(&config, &given, |connection| train(args, config.clone(), connection))
}

fn train(args: &Args, config: TrainConfig, connection: Option<&Connection>) -> Result<ExitCode, Failure> {
    let shown = Shown { json: args.json, certificate: &args.certificate, drawings: Some(&args.drawings) };
    drive(config, connection, &shown, |config| job::start(config, connection, None))
}

/// What a run prints and draws.
pub struct Shown<'a> {
    /// Lines of JSON instead of text.
    pub json: bool,
    /// Where the proof goes.
    pub certificate: &'a CertificateFlag,
    /// Pictures of the last step, where there are any.
    pub drawings: Option<&'a Drawings>,
}

/// Does all steps of the run that `start` makes of a configuration, saves and prints the summary.
pub fn drive(
    config: TrainConfig,
    connection: Option<&Connection>,
    shown: &Shown<'_>,
    start: impl FnOnce(TrainConfig) -> Result<Run, Failure>,
) -> Result<ExitCode, Failure> {
    let rank = connection.map_or(0, |connection| connection.network.rank());
    check(&config, rank, shown)?;
    let mut run = start(config)?;
    let log = Log::open(run.config(), rank)?;
    stop::listen()?;
    shown.certificate.write(&run)?;
    let audience = match (rank, shown.json) {
        (0, false) => Audience::People,
        (0, true) => Audience::Program,
        _ => Audience::None,
    };
    let mut sinks = Sinks::new(audience, log, run.config().strict);
    let logs = sinks.log().and_then(Log::dir).map(|dir| format!("logs in {}", dir.display()));
    let opening = [opening(&run)].into_iter().chain(job::description(&run, connection));
    sinks.people(opening.chain(watched(&run)).chain(logs));
    steps(&mut run, &mut sinks)?;
    connection.iter().for_each(|connection| connection.phases.enter("ending the run"));
    let mut ending = Ending::new(&run)?;
    let unfinished = ending.unfinished(&run);
    // All ranks bring their parts, one writes.
    ending.saved_step = match &run.config().save {
        Some(dir) if rank == 0 => Some(save::write(run.config(), dir, unfinished, |dir| Ok(run.save(dir)?))?),
        Some(dir) => Some(run.save(dir)?),
        None => None,
    };
    if let Some(drawings) = shown.drawings
        && let Some(report) = run.report(drawings.any())?
    {
        drawings.write(&report)?;
    }
    finish(&run, &ending, sinks, rank)
}

/// Refuses outputs that cannot be written, before anything takes time.
fn check(config: &TrainConfig, rank: u32, shown: &Shown<'_>) -> Result<(), Failure> {
    Log::check(config, rank)?;
    if let Some(dir) = config.save.as_ref().filter(|_| rank == 0) {
        save::check(config, dir)?;
    }
    if let Some(every) = config.hash_every.filter(|_| rank == 0 && !shown.json && config.log_dir.is_none()) {
        return Err(Failure::Input(format!(
            "`hash_every` is {every}, but hashes go to lines of JSON: add --log-dir or --json"
        )));
    }
    if let Some(drawings) = shown.drawings.filter(|_| rank == 0) {
        drawings.check()?;
    }
    match config.log_every.filter(|_| shown.json) {
        Some(every) => Err(Failure::Input(format!(
            "`log_every` is {every}, but with --json every step is a line: leave one of them out"
        ))),
        None => Ok(()),
    }
}

fn opening(run: &Run) -> String {
    let (model, config) = (run.model(), run.config());
    let (parameters, steps) =
        (output::grouped(model.parameters()), output::count(config.steps as usize, "step"));
    let (batch, context, cores) =
        (config.batch, config.context_of(model), output::count(config.core_count(), "core"));
    let (family, data) = (model.family(), run.data().name());
    let tokens = run.data().tokens();
    // Of a mixture each part has its own.
    let epochs = match run.data().mixed(context)[..] {
        [one] => format!(", {:.2} epochs", (config.steps as f64 * batch as f64) / one.windows as f64),
        _ => String::new(),
    };
    let devices = output::count(run.devices(), "device");
    let layout = config.plan.as_ref().map_or(devices.clone(), |plan| format!("plan {plan} on {devices}"));
    format!(
        "{family}, {parameters} parameters, on {data}: {steps} of {batch} x {context} tokens, {cores}\n\
         {} tokens of data{epochs}; {layout}, {}",
        output::grouped(tokens as u64),
        config.precision
    )
}

/// What a run does beside its steps.
fn watched(run: &Run) -> Vec<String> {
    let config = run.config();
    let (data, context) = (run.data(), config.context_of(run.model()));
    let (held, trained) = (data.held_windows(context), data.windows(context));
    let evaluation = config.eval_every.map(|every| {
        let (held, trained) = (output::grouped(held as u64), output::grouped(trained as u64));
        let what = if data.holds_documents(context) {
            "windows of held-back documents"
        } else {
            "held-back windows"
        };
        format!("evaluating after every {every} steps on {held} {what}; {trained} are trained on")
    });
    let masked = config.mask_prompt.then(|| {
        let share = 100.0 * data.prompt_tokens() as f64 / data.tokens() as f64;
        format!("training on answers only: {share:.1} % of the tokens are prompts")
    });
    let debug = config.debug.map(|_| {
        "debug nan: weights and optimizer state are copied before each step, which is slower".to_string()
    });
    let hashes = config
        .hash_every
        .map(|every| format!("hashing weights and optimizer state after every {every} steps"));
    mixture(run).into_iter().chain(evaluation).chain(masked).chain(hashes).chain(debug).collect()
}

/// What the data is mixed of, if it is.
fn mixture(run: &Run) -> Vec<String> {
    let (config, context) = (run.config(), run.config().context_of(run.model()));
    let mixed = run.data().mixed(context);
    let describe = |one: &MixedCorpus<'_>| {
        let epochs = config.steps as f64 * config.batch as f64 * one.share / one.windows as f64;
        let tokens = output::grouped(one.tokens as u64);
        format!(
            "{:.1} % of the samples from {}: {tokens} tokens, {epochs:.2} epochs",
            100.0 * one.share,
            one.name
        )
    };
    mixed.iter().filter(|_| mixed.len() > 1).map(describe).collect()
}

/// How often a line of progress is printed where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Decides after which steps a line of progress is printed.
struct Lines {
    every: Option<u64>,
    /// Where there is no terminal, and so no bar: the time of the last line.
    last: Option<Instant>,
}

impl Lines {
    fn new(run: &Run) -> Lines {
        let last = (!io::stderr().is_terminal()).then(Instant::now);
        Lines { every: run.config().log_every, last }
    }

    fn is_due(&mut self, report: &Report) -> bool {
        let now = Instant::now();
        let is_due = match (self.every, self.last) {
            (Some(every), _) => report.step.is_multiple_of(every) || report.eval_loss.is_some(),
            (None, Some(last)) => now.duration_since(last) >= LINE_EVERY || report.eval_loss.is_some(),
            (None, None) => false,
        };
        if is_due && self.last.is_some() {
            self.last = Some(now);
        }
        is_due
    }
}

/// Steps until done or asked to stop, and reports each; a run that is resumed may be done already.
fn steps(run: &mut Run, sinks: &mut Sinks) -> Result<(), Failure> {
    let bar = if sinks.audience() == Audience::People { bar(run) } else { ProgressBar::hidden() };
    let mut lines = Lines::new(run);
    let rank = run.trainer().session().rank();
    print_notices(run, rank, &bar);
    while !run.is_done() {
        if stop::is_asked() {
            run.stop();
        }
        let stepped = run.step();
        print_notices(run, rank, &bar);
        let report = stepped?;
        bar.set_position(report.step);
        sinks.write_log(|log| log.step(run, &report));
        sinks.program(&report);
        let message = message(run, &report);
        let committed = report.checkpoints.iter().map(committed_line);
        bar.suspend(|| sinks.people(committed));
        if lines.is_due(&report) {
            let steps = run.config().steps;
            bar.suspend(|| sinks.people([format!("step {}/{steps}  {message}", report.step)]));
        }
        bar.set_message(message);
    }
    bar.finish_and_clear();
    Ok(())
}

/// A checkpoint that was committed, for people.
fn committed_line(checkpoint: &CommittedCheckpoint) -> String {
    let CommittedCheckpoint { step, bytes, seconds } = checkpoint;
    format!("checkpoint {} written, {} in {seconds:.1} s", ckpt::name_of(*step), output::bytes(*bytes))
}

/// Prints the messages of a run beside its progress; only the first rank of a job does.
fn print_notices(run: &mut Run, rank: u32, bar: &ProgressBar) {
    let notices = run.take_notices();
    if rank == 0 && !notices.is_empty() {
        bar.suspend(|| notices.iter().for_each(|notice| eprintln!("{notice}")));
    }
}

fn bar(run: &Run) -> ProgressBar {
    let style = ProgressStyle::with_template("step {pos}/{len} {bar:24} {msg}, {eta} left");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(run.config().steps).with_style(style)
}

fn message(run: &Run, report: &Report) -> String {
    let best = run.data().entropy().map_or(String::new(), |best| format!(" (best possible {best:.3})"));
    let eval = run.eval_losses().map_or(String::new(), |last| {
        format!(", eval loss {:.3} (perplexity {})", last.loss, perplexity(last.perplexity()))
    });
    let speed = output::grouped(report.tokens_per_s as u64);
    format!("loss {:.3}{best}{eval}, {speed} tokens/s", report.loss)
}

/// A perplexity for people.
fn perplexity(perplexity: f64) -> String {
    if perplexity < 1000.0 { format!("{perplexity:.2}") } else { format!("{perplexity:.3e}") }
}

impl<'a> Ending<'a> {
    fn new(run: &'a Run) -> Result<Self, Failure> {
        let summary = run.summary()?;
        Ok(Ending {
            above_entropy_percent: summary.entropy.map(|best| 100.0 * (f64::from(summary.loss) / best - 1.0)),
            peak_resident_bytes: output::peak_resident_bytes(),
            saved: run.config().save.as_deref(),
            saved_step: None,
            interrupted: summary.steps < run.config().steps
                && summary.stopped_at_loss.is_none()
                && summary.stopped_by_patience.is_none(),
            summary,
        })
    }

    /// Steps done and steps asked for, of a run that was stopped.
    fn unfinished(&self, run: &Run) -> Option<(u64, u64)> {
        self.interrupted.then(|| (self.summary.steps, run.config().steps))
    }
}

/// Reports how the run ended; what is not as the user asked for is in the exit code.
fn finish(run: &Run, ending: &Ending<'_>, mut sinks: Sinks, rank: u32) -> Result<ExitCode, Failure> {
    let line = LastLine { summary: ending };
    sinks.write_log(|log| log.line(&line));
    sinks.program(&line);
    sinks.people(summary_lines(run, ending));
    sinks.check()?;
    if let Some(problem) = ending.summary.checkpoint_problem.as_ref().filter(|_| rank == 0) {
        let last = match ending.summary.checkpoint {
            Some(step) => format!("the last checkpoint is of step {step}"),
            None => "there is no checkpoint".into(),
        };
        return Err(Failure::Run(format!("{problem}; {last}")));
    }
    Ok(if ending.interrupted { ExitCode::from(stop::STOPPED) } else { ExitCode::SUCCESS })
}

/// What a run needs, for people: all ranks together, and this process.
fn memory(run: &Run, ending: &Ending<'_>) -> String {
    let Summary { peak_bytes, snapshot_bytes, eval_peak_bytes, .. } = ending.summary;
    let bytes = |bytes: usize| output::bytes(bytes as u64);
    let mut text = format!("arena {}", bytes(peak_bytes - snapshot_bytes));
    if let Some(eval) = eval_peak_bytes {
        text += &format!(", of evaluating {}", bytes(eval));
    }
    if snapshot_bytes > 0 {
        text += &format!(", snapshot {}", bytes(snapshot_bytes));
    }
    if run.topology().is_some() {
        let own = run.trainer().session().device_bytes().iter().sum();
        text += &format!(" on all ranks; arena {} on rank 0", bytes(own));
    }
    if let Some(resident) = ending.peak_resident_bytes {
        text += &format!(", process {}", output::bytes(resident));
    }
    text
}

/// A prompt as a flag: a name of the embedded grammar, or the first word of other data; none if that begins otherwise.
fn prompt(run: &Run) -> String {
    if run.config().data.is_none() {
        return " --prompt 'Max '".into();
    }
    let text = run.data().tokenizer().decode(&run.data().head(32)).unwrap_or_default();
    // The last word may be cut.
    let words: Vec<&str> = text.split_whitespace().take(2).collect();
    match words[..] {
        [word, _] if word.chars().all(char::is_alphanumeric) => format!(" --prompt '{word}'"),
        _ => String::new(),
    }
}

/// The summary for people, below the curve of the losses.
fn summary_lines(run: &Run, ending: &Ending<'_>) -> Vec<String> {
    let Ending { summary, .. } = ending;
    let is_new = !run.losses().is_empty();
    let curve = match run.losses() {
        [] => Vec::new(),
        losses => plot::curve(losses, summary.entropy, 64, 8),
    };
    let loss = if is_new { "mean of the last tenth" } else { "of the last step before" };
    let mut lines = vec![("loss", format!("{:.4} nats per token, {loss}", summary.loss))];
    if let (Some(best), Some(above)) = (summary.entropy, ending.above_entropy_percent) {
        let dotted = if is_new { " (dotted)" } else { "" };
        lines.push(("best possible", format!("{best:.4}{dotted}: the loss is {above:.1} % above")));
    }
    if let (Some(loss), Some(undecided)) = (summary.eval_loss, summary.eval_perplexity) {
        let undecided = perplexity(undecided);
        let text =
            format!("{loss:.4} nats per token on held-back data, the last one; perplexity {undecided}");
        lines.push(("eval loss", text));
    }
    if let (Some(loss), Some(step)) = (summary.best_eval_loss, summary.best_eval_step) {
        lines.push(("best eval", format!("{loss:.4} after step {step}")));
    }
    let asked = match (summary.stopped_at_loss, summary.stopped_by_patience) {
        (Some(loss), _) => format!(" of {}, stopped at a loss of {loss} or less", run.config().steps),
        (None, Some(patience)) => {
            let evaluations = output::count(patience as usize, "evaluation");
            format!(" of {}, stopped after {evaluations} without a lower loss", run.config().steps)
        }
        (None, None) if ending.interrupted => format!(" of {}, stopped", run.config().steps),
        (None, None) => String::new(),
    };
    let here = match run.losses().len() as u64 {
        0 => ", all of them before: there was nothing left to do".to_string(),
        here if here < summary.steps => format!(", {here} of them in {:.1} s", summary.seconds),
        _ => format!(" in {:.1} s", summary.seconds),
    };
    lines.push(("steps", format!("{}{asked}{here}", summary.steps)));
    if is_new {
        lines.push(("speed", format!("{} tokens/s", output::grouped(summary.tokens_per_s as u64))));
    }
    lines.push(("memory", memory(run, ending)));
    if is_new {
        lines.push(("in matmul", format!("{:.0} % of the time", 100.0 * summary.matmul_share)));
    }
    lines.push(("weights hash", output::hash(&summary.weights_hash, summary.precision)));
    if let Some(dir) = ending.saved {
        let try_it = match run.config().lora_save {
            LoraSave::Merged => format!("try: phalanx generate --hf {}{}", dir.display(), prompt(run)),
            LoraSave::Separate => "adapters alone, for PEFT".into(),
        };
        let unfinished = if ending.interrupted { ", unfinished" } else { "" };
        let earlier = match ending.saved_step.filter(|&step| step < summary.steps) {
            Some(step) => format!(", weights after step {step}"),
            None => String::new(),
        };
        lines.push(("saved", format!("{}{unfinished}{earlier} ({try_it})", dir.display())));
    }
    curve.into_iter().chain(lines.into_iter().map(|(name, value)| format!("{name:14}{value}"))).collect()
}
