//! Which precision of products is fast on this machine, and whether its instructions do what is defined.
//!
//! Instructions are tried in a child process: where a processor or a hypervisor promises one that it lacks, only the child
//! ends.

use std::process::Command;

use phalanx::Pin;
use phalanx::internals::kernels::bf16::NumberClass;
use phalanx::internals::kernels::isa::Isa;
use phalanx::internals::kernels::matmul::compare_dot;
use phalanx::internals::roofline::fma_peak;
use phalanx::ir::Precision;
use phalanx_bench::{GemmBench, GemmShape, gemm};
use serde_json::json;

use crate::failure::Failure;
use crate::output;

/// The hidden flag by which this command starts its child.
pub const CHILD: &str = "--try-instructions";

/// Rounds of a comparison; each has 16 results.
const ROUNDS: u64 = 1 << 16;

/// Rows, columns and depth of the product whose speed is told; without vectors the order of `bf16` takes long.
fn size() -> usize {
    if Isa::current() == Isa::Portable { 32 } else { 768 }
}

/// In the child: compares the instruction for pairs with its definition; false if any result differs.
pub fn child() -> bool {
    NumberClass::ALL.into_iter().all(|class| match compare_dot(class, ROUNDS) {
        Some(found) if found.differences > 0 => {
            eprintln!("{} of {} results differ ({})", found.differences, found.results, class.name());
            false
        }
        _ => true,
    })
}

/// Prints the speed of every precision and what became of the child; false if an instruction is not what it should be.
pub fn report(json: bool) -> Result<bool, Failure> {
    let problem = try_instructions()?;
    let speeds: Vec<(Precision, f64)> =
        Precision::ALL.iter().map(|&precision| (precision, speed(precision))).collect();
    let pairs = match (&problem, compare_dot(NumberClass::Normal, 1).is_some()) {
        (Some(problem), _) => problem.as_str(),
        (None, true) => "as defined",
        (None, false) => "not on this machine",
    };
    if json {
        let speeds: serde_json::Map<_, _> =
            speeds.iter().map(|(precision, speed)| (precision.to_string(), json!(speed))).collect();
        output::json(&json!({ "precisions": { "gflops_of_a_core": speeds, "vdpbf16ps": pairs } }))?;
        return Ok(problem.is_none());
    }
    let single = speeds[0].1;
    let told =
        speeds.iter().map(|(precision, speed)| format!("{precision} {speed:.0} ({:.2})", speed / single));
    let told: Vec<_> = told.collect();
    output::line(format!("products of one core in GFLOP/s, relative to f32: {}", told.join(", ")))?;
    output::line(format!("instruction for pairs of bf16: {pairs}"))?;
    Ok(problem.is_none())
}

/// What is wrong with the instructions, if anything is.
fn try_instructions() -> Result<Option<String>, Failure> {
    let failed = |error| Failure::Input(format!("cannot start this program again: {error}"));
    let program = std::env::current_exe().map_err(failed)?;
    let child = Command::new(program).args(["doctor", CHILD]).output().map_err(failed)?;
    let told = String::from_utf8_lossy(&child.stderr);
    Ok((!child.status.success()).then(|| format!("{} {}", child.status, told.trim()).trim().to_owned()))
}

/// The rate of a product on one core, in GFLOP/s.
fn speed(precision: Precision) -> f64 {
    let team = &Pin::Auto.teams(1, 1)[0];
    let shape = GemmShape {
        role: "cube",
        m: size(),
        n: size(),
        k: size(),
        trans_a: false,
        trans_b: false,
        leaves: 1,
        precision,
    };
    gemm(&GemmBench { team, blas: None, rounds: 3, peak: fma_peak(1) }, &shape).gflops
}
