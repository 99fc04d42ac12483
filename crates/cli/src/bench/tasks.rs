//! `phalanx bench tasks`: what a task costs our executor, and how short it may be.

use phalanx::train::MOST_CORES;
use phalanx_bench::tasks::{
    self, FlowKind, FlowResult, ModeCost, Pattern, PatternShape, Spread, TaskParts, TasksBench,
};
use phalanx_bench::tasks::{GraphResult, TasksError};
use serde_json::json;

use crate::failure::Failure;
use crate::output;
use crate::step::at_least_one;

/// Time graphs of small tasks, replayed and spawned one by one.
///
/// A graph is rows of tasks; patterns, those of Task Bench, say which tasks of the row before a task reads. Per graph:
/// the time of a run with empty bodies divided by its tasks, and METG, the shortest body with which half or three
/// quarters of the time are spent in bodies. With two processors even one that does everything alone comes close to
/// half; three quarters need both. Then what the parts of the executor cost by themselves.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx bench tasks --patterns stencil_1d,fft --widths 2 --processors 1,2 --json
  phalanx bench tasks --compile --operations 100000")]
pub struct TasksArgs {
    /// Patterns: trivial, no_comm, tree, stencil_1d, fft, random_nearest, spread, all_to_all [default: all]
    #[arg(long, alias = "pattern", value_name = "P,..", value_delimiter = ',')]
    patterns: Vec<Pattern>,
    /// Tasks in a row
    #[arg(long, alias = "width", value_name = "N,..", value_delimiter = ',', default_value = "2,8",
        value_parser = width)]
    widths: Vec<usize>,
    /// Rows
    #[arg(long, value_name = "N", default_value = "1000", value_parser = steps)]
    steps: usize,
    /// Processors of the runtime, a thread each
    #[arg(long, alias = "workers", value_name = "N,..", value_delimiter = ',', default_value = "2",
        value_parser = processors)]
    processors: Vec<u32>,
    /// How often a graph is timed, at most; long runs less often
    #[arg(long, value_name = "N", default_value = "49", value_parser = at_least_one)]
    repeat: usize,
    /// Replay one graph with bodies of --grain iterations and print the median as one line of JSON; other systems
    /// are asked for the same
    #[arg(long)]
    point: bool,
    /// Iterations of each body
    #[arg(long, value_name = "N", default_value_t = 0, requires = "point")]
    grain: u64,
    /// Time how flows are checked and frozen instead
    #[arg(long, conflicts_with_all = ["point", "patterns", "widths", "steps", "processors", "repeat"])]
    compile: bool,
    /// Operations of those flows
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1000,10000,100000,1000000",
        value_parser = operations, requires = "compile")]
    operations: Vec<usize>,
    /// Print lines of JSON: one a graph, then one for the parts of each number of processors; with --compile one a flow
    #[arg(long)]
    json: bool,
}

fn width(text: &str) -> Result<usize, String> {
    up_to(text, 4096)
}

fn steps(text: &str) -> Result<usize, String> {
    up_to(text, 100_000)
}

fn operations(text: &str) -> Result<usize, String> {
    up_to(text, 100_000_000)
}

/// Edges that this machine's memory can be expected to bear.
const MOST_EDGES: usize = 100_000_000;

/// A number that this machine's memory can be expected to bear.
fn up_to(text: &str, most: usize) -> Result<usize, String> {
    match at_least_one(text)? {
        count if count <= most => Ok(count),
        count => Err(format!("it must be at most {most}, not {count}")),
    }
}

fn processors(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(count) if (1..=MOST_CORES as u32).contains(&count) => Ok(count),
        _ => Err(format!("it must be a whole number from 1 to {MOST_CORES}")),
    }
}

impl From<TasksError> for Failure {
    fn from(error: TasksError) -> Self {
        Failure::Run(error.to_string())
    }
}

/// Runs the measurement that is asked for.
pub fn run(args: &TasksArgs) -> Result<(), Failure> {
    let widest = args.widths.iter().copied().max().unwrap_or(1);
    // Where everything depends on everything, a row has as many edges as its width squared.
    if widest * widest * args.steps > MOST_EDGES {
        let (steps, most) = (args.steps, MOST_EDGES);
        let why = format!(
            "{steps} rows of {widest} tasks may have more than {most} edges; use fewer --steps or --widths"
        );
        return Err(Failure::Input(why));
    }
    let patterns = if args.patterns.is_empty() { &Pattern::ALL[..] } else { &args.patterns };
    let bench = |&processors: &u32| TasksBench { processors, repeat: args.repeat };
    let benches: Vec<_> = args.processors.iter().map(bench).collect();
    match (args.point, args.compile) {
        (true, _) => point(args, patterns, &benches),
        (_, true) => compile(args),
        _ => graphs(args, patterns, &benches),
    }
}

fn point(args: &TasksArgs, patterns: &[Pattern], benches: &[TasksBench]) -> Result<(), Failure> {
    let (&[pattern], &[width], [bench]) = (patterns, &args.widths[..], benches) else {
        return Err(Failure::Input(format!(
            "--point is about one graph, not {}, {} and {} of processors; give one of each",
            output::count(patterns.len(), "pattern"),
            output::count(args.widths.len(), "width"),
            output::count(benches.len(), "number")
        )));
    };
    output::json(&bench.point(PatternShape { pattern, width, steps: args.steps }, args.grain)?)
}

fn graphs(args: &TasksArgs, patterns: &[Pattern], benches: &[TasksBench]) -> Result<(), Failure> {
    let iteration_seconds = tasks::calibrate();
    if !args.json {
        output::line(head(args.steps, args.repeat, iteration_seconds))?;
    }
    for bench in benches {
        for &pattern in patterns {
            for &width in &args.widths {
                let shape = PatternShape { pattern, width, steps: args.steps };
                let result = bench.graph(shape, iteration_seconds)?;
                match args.json {
                    true => output::json(&graph_json(bench, shape, &result))?,
                    false => output::line(graph_row(bench, shape, &result))?,
                }
            }
        }
    }
    for bench in benches {
        let parts = bench.parts()?;
        match args.json {
            true => output::json(&json!({ "processors": bench.processors, "parts": parts }))?,
            false => output::line(parts_text(bench, &parts))?,
        }
    }
    Ok(())
}

fn head(steps: usize, repeat: usize, iteration_seconds: f64) -> String {
    let about = format!(
        "{}, {:.2} ns an iteration; medians of up to {} (best in brackets), METG in us",
        output::count(steps, "step"),
        iteration_seconds * 1e9,
        output::count(repeat, "run")
    );
    let [half, most] = tasks::SHARES.map(|share| format!("METG({:.0} %)", 100.0 * share));
    let mode = format!("{:>20}{half:>12}{most:>12}", "ns per empty task");
    let modes = format!("{:34}{:>44}{:>44}", "", "replayed", "spawned one by one");
    format!("{about}\n{modes}\n{:16}{:>6}{:>12}{mode}{mode}", "pattern", "width", "processors")
}

fn graph_row(bench: &TasksBench, shape: PatternShape, result: &GraphResult) -> String {
    let metg = |us: Option<f64>| us.map_or("-".into(), |us| format!("{us:.3}"));
    let mode = |cost: &ModeCost| {
        let (half, most) = (metg(cost.metg50_us), metg(cost.metg75_us));
        format!("{:>20}{half:>12}{most:>12}", spread(cost.empty_ns))
    };
    let (replay, immediate) = (mode(&result.replay), mode(&result.immediate));
    let (pattern, width, processors) = (shape.pattern.name(), shape.width, bench.processors);
    format!("{pattern:16}{width:>6}{processors:>12}{replay}{immediate}")
}

fn graph_json(bench: &TasksBench, shape: PatternShape, result: &GraphResult) -> serde_json::Value {
    json!({
        "pattern": shape.pattern.name(), "width": shape.width, "steps": shape.steps,
        "processors": bench.processors, "replay": result.replay, "immediate": result.immediate,
    })
}

fn spread(Spread { median, best }: Spread) -> String {
    format!("{median:.1} ({best:.1})")
}

fn parts_text(bench: &TasksBench, parts: &TaskParts) -> String {
    let rows = [
        ("a task of a chain of 1024 replayed in a row", parts.chain_ns, "ns"),
        ("the same, chains fused", parts.fused_chain_ns, "ns"),
        ("launch of an empty graph until its end", parts.empty_graph_us, "us"),
        ("launch of a graph of one task until its end", parts.one_task_graph_us, "us"),
        ("a spawned task that waits for nothing", parts.spawn_ns, "ns"),
        ("an event: create, trigger, look", parts.event_ns, "ns"),
    ];
    let rows = rows.map(|(text, part, unit)| format!("\n{text:46}{:>20} {unit}", spread(part)));
    format!("\non {}:{}", output::count(bench.processors as usize, "processor"), rows.concat())
}

fn compile(args: &TasksArgs) -> Result<(), Failure> {
    if !args.json {
        output::line(flow_head())?;
    }
    for flow in FlowKind::ALL {
        for &operations in &args.operations {
            let result = tasks::freeze(flow, operations)?;
            if args.json {
                output::json(&result)?;
                continue;
            }
            output::line(flow_row(&result))?;
        }
    }
    Ok(())
}

fn flow_head() -> String {
    format!("{:10}{:>12}{:>12}{:>22}{:>18}", "flow", "operations", "segments", "ms (best)", "ns an operation")
}

fn flow_row(result: &FlowResult) -> String {
    let &FlowResult { flow, operations, segments, ms: Spread { median, best }, ns_per_operation } = result;
    let ms = format!("{median:.3} ({best:.3})");
    format!("{:10}{operations:>12}{segments:>12}{ms:>22}{ns_per_operation:>18.1}", flow.name())
}

#[cfg(test)]
mod tests;
