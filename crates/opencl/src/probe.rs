//! Whether a device computes the bits that the CPU does.
//!
//! Each operation that kernels are made of runs on numbers of every class, and each result is compared with the host's.
//! NaNs count as equal. The operations of IEEE 754 have one right result; a device may still be used if division and square
//! roots differ, which kernels can do with whole numbers, or if it has no double precision.

use std::fmt;

use crate::numbers::{COUNT, Number, OperandClass, operands};
use crate::session::{Compiled, Session};
use crate::{ClDevice, OpenClError};

const SOURCE: &str = include_str!("probe.cl");

/// Division and square roots are rounded correctly only if that is asked for.
const ROUNDED: &str = "-cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt";

/// For devices that refuse to be asked.
const PLAIN: &str = "-cl-std=CL1.2";

/// An operation that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbedOperation {
    /// `fma(a, b, c)`.
    Fused,
    /// `a * b + c` in one expression, which rounds twice.
    Expression,
    /// The same in two statements.
    Statements,
    /// `a / b`.
    Division,
    /// `sqrt(a)`.
    Root,
    /// Whole numbers to floats.
    Rounding,
    /// Floats to whole numbers.
    Truncation,
    /// `fma(a, b, c)` in double precision.
    FusedDouble,
    /// `a * b + c` in double precision.
    ExpressionDouble,
}

use ProbedOperation::*;

/// An operation, its kernel, and what the host computes.
type Probed<T> = (ProbedOperation, &'static str, fn([T; 3]) -> T);

/// In single precision.
const SINGLE: [Probed<f32>; 7] = [
    (Fused, "fused", |[a, b, c]| a.mul_add(b, c)),
    (Expression, "expression", |[a, b, c]| a * b + c),
    (Statements, "statements", |[a, b, c]| a * b + c),
    (Division, "divided", |[a, b, _]| a / b),
    (Root, "root", |[a, ..]| a.sqrt()),
    (Rounding, "rounded", |[a, ..]| a.to_bits().cast_signed() as f32),
    (Truncation, "truncated", |[a, ..]| {
        let number = (a.to_bits().cast_signed() >> 8) as f32 * 0.125;
        f32::from_bits((number as i32).cast_unsigned())
    }),
];

/// In double precision.
const DOUBLE: [Probed<f64>; 2] = [
    (FusedDouble, "fused_double", |[a, b, c]| a.mul_add(b, c)),
    (ExpressionDouble, "expression_double", |[a, b, c]| a * b + c),
];

impl fmt::Display for ProbedOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Fused => "fma(a, b, c)",
            Expression => "a * b + c",
            Statements => "t = a * b; t + c",
            Division => "a / b",
            Root => "sqrt(a)",
            Rounding => "(float)int",
            Truncation => "(int)float",
            FusedDouble => "fma of doubles",
            ExpressionDouble => "a * b + c of doubles",
        })
    }
}

/// One operation on one class of numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeRow {
    /// The operation.
    pub operation: ProbedOperation,
    /// The kind of its operands.
    pub class: OperandClass,
    /// How many results were compared.
    pub count: usize,
    /// How many were different.
    pub different: usize,
    /// The first of them.
    pub first: Option<ProbeDifference>,
}

/// A result that is not the host's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeDifference {
    /// The operands.
    pub operands: [String; 3],
    /// What the device computed.
    pub found: String,
    /// What the host computed.
    pub wanted: String,
}

/// What came of probing a device.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeReport {
    /// Every operation on every class.
    pub rows: Vec<ProbeRow>,
    /// Whether it was asked to round divisions correctly; some devices refuse the option.
    pub takes_option: bool,
    /// Whether it computes in double precision.
    pub has_f64: bool,
}

/// What the arithmetic of a device is good for.
#[derive(Clone, Debug, PartialEq)]
pub enum Arithmetic {
    /// All results are those of the CPU.
    Exact,
    /// All are but those of some operations, for which there are ways around.
    ExactExcept {
        /// Divisions and square roots must be done with whole numbers.
        division: bool,
        /// There is no double precision.
        double: bool,
    },
    /// Results differ: the first operation of which they do.
    Different(Box<ProbeRow>),
}

impl ProbeReport {
    /// What the results add up to.
    pub fn arithmetic(&self) -> Arithmetic {
        let different = |row: &&ProbeRow| row.different > 0;
        let is_division = |row: &ProbeRow| matches!(row.operation, Division | Root);
        match self.rows.iter().filter(different).find(|row| !is_division(row)) {
            Some(row) => Arithmetic::Different(Box::new(row.clone())),
            None => match (self.rows.iter().any(|row| different(&row)), !self.has_f64) {
                (false, false) => Arithmetic::Exact,
                (division, double) => Arithmetic::ExactExcept { division, double },
            },
        }
    }
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arithmetic::Exact => write!(f, "exact: the bits of the CPU"),
            Arithmetic::ExactExcept { division, double } => {
                let names = [
                    (*division, "divisions and square roots"),
                    (*double, "double precision, which it lacks"),
                ];
                let names: Vec<_> = names.into_iter().filter_map(|(is, name)| is.then_some(name)).collect();
                write!(f, "exact except for {}", names.join(" and "))
            }
            Arithmetic::Different(row) => {
                write!(f, "different: {} on {} numbers", row.operation, row.class)?;
                match &row.first {
                    Some(ProbeDifference { operands: [a, b, c], found, wanted }) => {
                        write!(f, ", {found} instead of {wanted} for a = {a}, b = {b}, c = {c}")
                    }
                    None => Ok(()),
                }
            }
        }
    }
}

/// Probes a device: less than a second, most of it in its compiler.
pub fn probe(device: &ClDevice) -> Result<ProbeReport, OpenClError> {
    probe_with(device, SOURCE)
}

fn probe_with(device: &ClDevice, source: &str) -> Result<ProbeReport, OpenClError> {
    let session = Session::new(device)?;
    let has_f64 = device.has_f64;
    let double = if has_f64 { " -DWITH_F64" } else { "" };
    let (compiled, takes_option) = match session.compile(source, &format!("{ROUNDED}{double}")) {
        Ok(compiled) => (compiled, true),
        Err(_) => (session.compile(source, &format!("{PLAIN}{double}"))?, false),
    };
    let mut rows = Vec::new();
    for class in OperandClass::ALL {
        let numbers = operands::<f32>(class);
        for probed in SINGLE {
            rows.push(row(&session, &compiled, class, probed, &numbers)?);
        }
        let numbers = operands::<f64>(class);
        for probed in DOUBLE.into_iter().filter(|_| has_f64) {
            rows.push(row(&session, &compiled, class, probed, &numbers)?);
        }
    }
    Ok(ProbeReport { rows, takes_option, has_f64 })
}

fn row<T: Number>(
    session: &Session,
    compiled: &Compiled,
    class: OperandClass,
    (operation, entry, host): Probed<T>,
    numbers: &[Vec<T>; 3],
) -> Result<ProbeRow, OpenClError> {
    let reads = numbers.each_ref().map(|list| bytemuck::cast_slice(list));
    let bytes = session.run(compiled, entry, &reads, COUNT * size_of::<T>(), COUNT)?;
    let results = bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned::<T>);
    let (mut different, mut first) = (0, None);
    for (index, found) in results.enumerate() {
        let triple = [0, 1, 2].map(|operand| numbers[operand][index]);
        let wanted = host(triple);
        if found.bits() != wanted.bits() {
            different += 1;
            first.get_or_insert_with(|| ProbeDifference {
                operands: triple.map(|number| format!("{number:e}")),
                found: format!("{found:e}"),
                wanted: format!("{wanted:e}"),
            });
        }
    }
    Ok(ProbeRow { operation, class, count: COUNT, different, first })
}

#[cfg(test)]
mod tests;
