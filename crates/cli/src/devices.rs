//! `phalanx devices`: what there is to compute on, and whether it computes the bits of the CPU.

use std::process::ExitCode;

use phalanx::internals::kernels::isa::Isa;
use phalanx::internals::opencl::{
    Arithmetic, ClDevice, OpenCl, OpenClError, ProbeReport, ProbeRow, ProbedOperation, probe,
};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output;

/// List the devices of this machine and probe their arithmetic.
///
/// Training runs on the CPU's cores. OpenCL devices are listed with what a probe says of their arithmetic: every operation
/// that kernels are made of, on 4096 numbers of each kind, compared with the CPU bit by bit. `phalanx doctor --device` shows
/// all of it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx devices
  phalanx devices --json
  phalanx doctor --device opencl:0.0")]
pub struct Args {
    /// Print a line of JSON for each device
    #[arg(long)]
    json: bool,
}

/// Lists them.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let isa = Isa::current().name();
    match args.json {
        true => output::json(&json!({ "device": "cpu", "cores": cores, "isa": isa }))?,
        false => output::line(format!("cpu         {}, {isa}", output::count(cores, "core")))?,
    }
    match OpenCl::load().and_then(|library| library.devices()) {
        Ok(devices) => devices.iter().try_for_each(|device| list(device, args.json))?,
        Err(error) if args.json => output::json(&json!({ "opencl": null, "why": error.to_string() }))?,
        Err(error) => output::line(format!("opencl      none: {error}"))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list(device: &ClDevice, json: bool) -> Result<(), Failure> {
    let probed = probe(device);
    if json {
        return output::json(&described(device, &probed));
    }
    let ClDevice { name, kind, units, memory, version, .. } = device;
    output::line(format!(
        "{:11} {name}: {kind}, {}, {} of memory, {version}",
        device.address(),
        output::count(*units as usize, "unit"),
        output::bytes(*memory),
    ))?;
    let says = probed.map_or_else(|error| error.to_string(), |report| report.arithmetic().to_string());
    output::line(format!("            {says}"))
}

fn described(device: &ClDevice, probed: &Result<ProbeReport, OpenClError>) -> Value {
    json!({
        "device": device.address(), "name": device.name, "platform": device.platform, "version": device.version,
        "kind": device.kind.to_string(), "units": device.units, "memory": device.memory,
        "largest_buffer": device.largest_buffer, "f64": device.has_f64,
        "exact": matches!(probed, Ok(report) if report.arithmetic() == Arithmetic::Exact),
        "arithmetic": probed.as_ref().map_or_else(ToString::to_string, |report| report.arithmetic().to_string()),
    })
}

/// Probes one device and shows what came of every operation; the exit code is 1 if kernels cannot have the CPU's bits on it.
pub fn probe_one(wanted: &str, json: bool) -> Result<ExitCode, Failure> {
    let failure = |error: OpenClError| match error {
        OpenClError::NoDevice { .. } => Failure::Input(error.to_string()),
        error => Failure::Run(error.to_string()),
    };
    let device = OpenCl::load().and_then(|library| library.device(wanted)).map_err(failure)?;
    let report = probe(&device).map_err(failure)?;
    let arithmetic = report.arithmetic();
    let code =
        if matches!(arithmetic, Arithmetic::Different(_)) { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if json {
        let rows: Vec<_> = report.rows.iter().map(row).collect();
        let mut all = described(&device, &Ok(report));
        all["rows"] = rows.into();
        return output::json(&all).map(|()| code);
    }
    output::line(format!("{device}, {}", device.version))?;
    table(&report.rows).iter().try_for_each(output::line)?;
    output::line(arithmetic.to_string())?;
    Ok(code)
}

fn row(row: &ProbeRow) -> Value {
    let first = row
        .first
        .as_ref()
        .map(|first| json!({ "operands": first.operands, "found": first.found, "wanted": first.wanted }));
    json!({
        "operation": row.operation.to_string(), "numbers": row.class.to_string(),
        "compared": row.count, "different": row.different, "first": first,
    })
}

/// A line for each operation: of how many results, how many were different.
fn table(rows: &[ProbeRow]) -> Vec<String> {
    let mut operations: Vec<ProbedOperation> = Vec::new();
    rows.iter().map(|row| row.operation).for_each(|operation| {
        if !operations.contains(&operation) {
            operations.push(operation);
        }
    });
    let line = |operation: ProbedOperation| {
        let rows = || rows.iter().filter(move |row| row.operation == operation);
        let (count, different) = (rows().map(|row| row.count).sum(), rows().map(|row| row.different).sum());
        let classes: Vec<_> = rows()
            .filter(|row| row.different > 0)
            .map(|row| format!("{} {}", row.different, row.class))
            .collect();
        let which = if classes.is_empty() { String::new() } else { format!(" ({})", classes.join(", ")) };
        let [count, different] = [count, different].map(|number: usize| output::grouped(number as u64));
        format!("  {operation:20} {count:>6} compared, {different:>6} different{which}")
    };
    operations.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use phalanx::internals::opencl::{OperandClass, ProbeDifference};

    use super::*;

    #[test]
    fn a_table_counts_by_operation_and_names_the_numbers_that_differ() {
        let row = |class, different| ProbeRow {
            operation: ProbedOperation::Fused,
            class,
            count: 4096,
            different,
            first: None,
        };
        let rows = [row(OperandClass::Normal, 0), row(OperandClass::Subnormal, 4096)];
        assert_eq!(
            table(&rows),
            ["  fma(a, b, c)          8 192 compared,  4 096 different (4096 subnormal)"]
        );
        let first = ProbeDifference {
            operands: ["1e0", "2e0", "3e0"].map(String::from),
            found: "0e0".into(),
            wanted: "5e0".into(),
        };
        let different = Arithmetic::Different(Box::new(ProbeRow { first: Some(first), ..rows[1].clone() }));
        assert_eq!(
            different.to_string(),
            "different: fma(a, b, c) on subnormal numbers, 0e0 instead of 5e0 for a = 1e0, b = 2e0, c = 3e0"
        );
    }
}
