//! `phalanx train --dry-run`: what a run will take, with no step and no file written.

use std::process::ExitCode;

use phalanx::train::{CheckpointForecast, Forecast, PlannedWrite, Run, TrainConfig};

use super::Args;
use crate::failure::Failure;
use crate::log::Log;
use crate::{flags, job, output, overlap, save, starting};

/// Prints what the run will take; of several ranks the first one does.
pub fn run(args: &Args, config: TrainConfig) -> Result<ExitCode, Failure> {
    let (rank, ranks) = job::launched().map_or((0, 1), |launched| (launched.rank, launched.size));
    if rank > 0 {
        return Ok(ExitCode::SUCCESS);
    }
    Log::refuse_other(&config, rank)?;
    if let Some(dir) = &config.save {
        save::refuse_other(&config, dir)?;
    }
    if !args.json {
        flags::warn(&config);
    }
    let mut forecast = starting::measuring(|progress| Run::forecast(config, ranks, progress))?;
    let drawings = [("trace", &args.drawings.trace), ("report", &args.drawings.report)];
    let certificate = [("certificate", &args.certificate.certificate)];
    for (what, path) in drawings.into_iter().chain(certificate) {
        forecast.writes.extend(path.iter().map(|path| PlannedWrite { what, path: path.clone() }));
    }
    match args.json {
        true => output::json(&forecast)?,
        false => lines(&forecast)
            .into_iter()
            .try_for_each(|(name, value)| output::line(format!("{name:14}{value}")))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn lines(forecast: &Forecast) -> Vec<(&'static str, String)> {
    let Forecast { steps, steps_before, step_seconds, seconds, .. } = *forecast;
    let time = |seconds: f64| overlap::time((1e9 * seconds) as u64);
    let resumed = match steps_before {
        0 => String::new(),
        before => format!(", {before} of them done before"),
    };
    let mut lines = vec![
        ("parameters", output::grouped(forecast.parameters)),
        ("steps", format!("{steps}{resumed}; {} tokens", output::grouped(forecast.tokens))),
        ("epochs", format!("{:.2}", forecast.epochs)),
        ("time", format!("{} a step, {} in all, predicted", time(step_seconds), time(seconds))),
        ("memory", devices(&forecast.device_bytes)),
    ];
    if !forecast.eval_device_bytes.is_empty() {
        lines.push(("evaluating", devices(&forecast.eval_device_bytes)));
    }
    if let Some(CheckpointForecast { count, kept, bytes }) = forecast.checkpoints {
        let (size, all) = (output::bytes(bytes), output::bytes(kept * bytes));
        lines.push(("checkpoints", format!("{count} of {size}, {kept} of them kept: {all}")));
    }
    lines.extend(forecast.left_whole.iter().map(|whole| ("whole", whole.to_string())));
    let writes: Vec<_> =
        forecast.writes.iter().map(|write| format!("{} in {}", write.what, write.path.display())).collect();
    let writes = if writes.is_empty() { "nothing".into() } else { writes.join(", ") };
    lines.push(("would write", writes));
    lines
}

/// The memory of each device; equal ones together.
fn devices(bytes: &[u64]) -> String {
    let sizes: Vec<String> = bytes.iter().map(|&bytes| output::bytes(bytes)).collect();
    let is_alike = bytes.windows(2).all(|pair| pair[0] == pair[1]);
    match sizes.as_slice() {
        [one] => one.clone(),
        [first, ..] if is_alike => format!("{first} on each of {} devices", sizes.len()),
        _ => {
            let all = sizes.iter().enumerate().map(|(device, size)| format!("dev{device} {size}"));
            all.collect::<Vec<_>>().join(", ")
        }
    }
}
