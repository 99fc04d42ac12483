//! `phalanx train`: the main job.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use phalanx::job::Connection;
use phalanx::train::{Report, Run, Summary, TrainConfig};
use serde::Serialize;

use crate::failure::Failure;
use crate::flags::{AllOptions, Options};
use crate::job::CertificateFlag;
use crate::log::Log;
use crate::overlap::Drawings;
use crate::{job, output, plot, save, stop};

/// Train a language model from scratch.
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
  phalanx train --plan dp2-tp2 --devices 4  # four devices in this process, the same bits
  phalanx launch -n 4 -- train --plan dp2-tp2   # four processes, the same bits
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
    /// Print one line of JSON a step and a last one with the summary
    #[arg(long)]
    json: bool,
}

/// The summary of the library and what only the process knows.
#[derive(Serialize)]
struct Ending<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
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
    job::run(config.stall_seconds, |connection| train(args, config, connection))
}

fn train(args: &Args, config: TrainConfig, connection: Option<&Connection>) -> Result<ExitCode, Failure> {
    let rank = connection.map_or(0, |connection| connection.network.rank());
    Log::check(&config, rank)?;
    if let Some(dir) = config.save.as_ref().filter(|_| rank == 0) {
        save::check(&config, dir)?;
    }
    if let Some(every) = config.hash_every.filter(|_| rank == 0 && !args.json && config.log_dir.is_none()) {
        return Err(Failure::Input(format!(
            "`hash_every` is {every}, but hashes go to lines of JSON: add --log-dir or --json"
        )));
    }
    args.drawings.check()?;
    let mut run = job::start(config, connection)?;
    let mut log = Log::open(run.config(), rank)?;
    stop::listen()?;
    args.certificate.write(&run)?;
    let json = args.json;
    if rank == 0 && !json {
        output::line(opening(&run))?;
        job::describe(&run, connection)?;
        watched(&run).into_iter().try_for_each(output::line)?;
        let logs = log.dir().map(|dir| format!("logs in {}", dir.display()));
        logs.into_iter().try_for_each(output::line)?;
    }
    let audience = if rank > 0 {
        Audience::None
    } else if json {
        Audience::Program
    } else {
        Audience::People
    };
    let trained = steps(&mut run, audience, &mut log);
    // A reader that closed the pipe has seen enough of the lines, but still wants the model.
    if let Err(Failure::Input(_) | Failure::Run(_) | Failure::Broken(_)) = trained {
        return trained.map(|()| ExitCode::FAILURE);
    }
    // All ranks bring their parts, one writes.
    let saved_step = match &run.config().save {
        Some(dir) if rank == 0 => Some(save::write(run.config(), dir, |dir| Ok(run.save(dir)?))?),
        Some(dir) => Some(run.save(dir)?),
        None => None,
    };
    trained?;
    if args.drawings.any() && rank == 0 {
        args.drawings.write(&run.report()?)?;
    }
    finish(&run, saved_step, audience, &mut log)
}

/// What standard output is made for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Audience {
    /// People: a progress bar and a summary.
    People,
    /// Programs: lines of JSON.
    Program,
    /// Nothing is printed: this is not the first rank.
    None,
}

fn opening(run: &Run) -> String {
    let (model, config) = (run.model(), run.config());
    let (parameters, steps) =
        (output::grouped(model.parameters()), output::count(config.steps as usize, "step"));
    let (batch, context, cores) =
        (config.batch, config.context_of(model), output::count(config.core_count(), "core"));
    let (family, data) = (model.family(), run.data().name());
    let tokens = run.data().tokens();
    let epochs = (config.steps as f64 * batch as f64) / run.data().windows(context) as f64;
    let devices = output::count(run.devices(), "device");
    let layout = config.plan.as_ref().map_or(devices.clone(), |plan| format!("plan {plan} on {devices}"));
    format!(
        "{family}, {parameters} parameters, on {data}: {steps} of {batch} x {context} tokens, {cores}\n\
         {} tokens of data, {epochs:.2} epochs; {layout}, f32",
        output::grouped(tokens as u64)
    )
}

/// What a run does beside its steps.
fn watched(run: &Run) -> Vec<String> {
    let config = run.config();
    let (data, context) = (run.data(), config.context_of(run.model()));
    let (held, trained) = (data.held_windows(context), data.windows(context));
    let evaluation = config.eval_every.map(|every| {
        let (held, trained) = (output::grouped(held as u64), output::grouped(trained as u64));
        format!("evaluating after every {every} steps on {held} held-back windows; {trained} are trained on")
    });
    let debug = config.debug.map(|_| {
        "debug nan: weights and optimizer state are copied before each step, which is slower".to_string()
    });
    let hashes = config
        .hash_every
        .map(|every| format!("hashing weights and optimizer state after every {every} steps"));
    evaluation.into_iter().chain(hashes).chain(debug).collect()
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
fn steps(run: &mut Run, audience: Audience, log: &mut Log) -> Result<(), Failure> {
    let bar = if audience == Audience::People { bar(run) } else { ProgressBar::hidden() };
    let mut lines = Lines::new(run);
    let rank = run.trainer().session().rank();
    print_notices(run, rank, &bar);
    let mut step = || {
        if run.is_done() {
            return Ok(true);
        }
        if stop::is_asked() {
            run.stop();
        }
        let stepped = run.step();
        print_notices(run, rank, &bar);
        let report = stepped?;
        bar.set_position(report.step);
        log.step(run, &report)?;
        match audience {
            Audience::Program => output::json(&report)?,
            Audience::People => {
                let message = message(run, &report);
                if lines.is_due(&report) {
                    let steps = run.config().steps;
                    bar.suspend(|| output::line(format!("step {}/{steps}  {message}", report.step)))?;
                }
                bar.set_message(message);
            }
            Audience::None => {}
        }
        Ok(run.is_done())
    };
    let result = loop {
        match step() {
            Ok(false) => {}
            Ok(true) => break Ok(()),
            Err(failure) => break Err(failure),
        }
    };
    bar.finish_and_clear();
    result
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

fn finish(
    run: &Run,
    saved_step: Option<u64>,
    audience: Audience,
    log: &mut Log,
) -> Result<ExitCode, Failure> {
    let summary = run.summary()?;
    let ending = Ending {
        above_entropy_percent: summary.entropy.map(|best| 100.0 * (f64::from(summary.loss) / best - 1.0)),
        summary: &summary,
        peak_resident_bytes: output::peak_resident_bytes(),
        saved: run.config().save.as_deref(),
        saved_step,
        interrupted: summary.steps < run.config().steps
            && summary.stopped_at_loss.is_none()
            && summary.stopped_by_patience.is_none(),
    };
    let line = LastLine { summary: &ending };
    log.line(&line)?;
    match audience {
        Audience::Program => output::json(&line)?,
        Audience::People => print(run, &ending)?,
        Audience::None => {}
    }
    Ok(if ending.interrupted { ExitCode::from(stop::STOPPED) } else { ExitCode::SUCCESS })
}

/// What a run needs, for people.
fn memory(ending: &Ending<'_>) -> String {
    let Summary { peak_bytes, snapshot_bytes, eval_peak_bytes, .. } = *ending.summary;
    let bytes = |bytes: usize| output::bytes(bytes as u64);
    let mut text = format!("arena {}", bytes(peak_bytes - snapshot_bytes));
    if let Some(eval) = eval_peak_bytes {
        text += &format!(", of evaluating {}", bytes(eval));
    }
    if snapshot_bytes > 0 {
        text += &format!(", snapshot {}", bytes(snapshot_bytes));
    }
    if let Some(resident) = ending.peak_resident_bytes {
        text += &format!(", process {}", output::bytes(resident));
    }
    text
}

fn print(run: &Run, ending: &Ending<'_>) -> Result<(), Failure> {
    let Ending { summary, .. } = ending;
    if !run.losses().is_empty() {
        plot::curve(run.losses(), summary.entropy, 64, 8).into_iter().try_for_each(output::line)?;
    }
    let mut lines = vec![("loss", format!("{:.4} nats per token, mean of the last tenth", summary.loss))];
    if let (Some(best), Some(above)) = (summary.entropy, ending.above_entropy_percent) {
        lines.push(("best possible", format!("{best:.4} (dotted): the loss is {above:.1} % above")));
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
        here if here < summary.steps => format!(", {here} of them"),
        _ => String::new(),
    };
    lines.push(("steps", format!("{}{asked}{here} in {:.1} s", summary.steps, summary.seconds)));
    lines.push(("speed", format!("{} tokens/s", output::grouped(summary.tokens_per_s as u64))));
    lines.push(("memory", memory(ending)));
    lines.push(("in matmul", format!("{:.0} % of the time", 100.0 * summary.matmul_share)));
    lines.push(("weights hash", summary.weights_hash.clone()));
    if let Some(dir) = ending.saved {
        let try_it = format!("try: phalanx generate --hf {} --prompt 'Max '", dir.display());
        let earlier = match ending.saved_step.filter(|&step| step < summary.steps) {
            Some(step) => format!(", weights after step {step}"),
            None => String::new(),
        };
        lines.push(("saved", format!("{}{earlier} ({try_it})", dir.display())));
    }
    lines.into_iter().try_for_each(|(name, value)| output::line(format!("{name:14}{value}")))
}
