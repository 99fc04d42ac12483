//! Why an exchange file cannot be taken.

use std::fmt;

/// Why an exchange file cannot be taken.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum ImportError {
    /// Not JSON of this format.
    #[error(
        "the graph file is not what `phalanx.aten/1` describes: at `{place}`: {reason}; export the module again"
    )]
    Format { place: String, reason: String },
    /// Another version of the format.
    #[error(
        "the graph file has version `{found}`, this program reads `{known}`: export the module with the same version of phalanx"
    )]
    Version { found: String, known: &'static str },
    /// Not a safetensors file.
    #[error("the tensors beside the graph file cannot be read: {0}; export the module again")]
    Tensors(String),
    /// A tensor that the graph needs is not there, or is another one.
    #[error("tensor `{name}`: {problem}; export the module again, and keep both files together")]
    Tensor { name: String, problem: String },
    /// A node that contradicts itself or the others.
    #[error("node `{node}` ({op}){}: {problem}", place(.line))]
    Node { node: String, op: String, line: String, problem: String },
    /// Operators without counterpart.
    #[error("{}", list(.0))]
    Unsupported(Vec<UnsupportedOperator>),
}

/// An operator that has no counterpart, and where it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedOperator {
    /// The operator, such as `aten.fft_rfft`.
    pub operator: String,
    /// How often it is used.
    pub count: usize,
    /// The user's line that uses it first, such as `model.py:41`.
    pub source: String,
    /// What that line says.
    pub code: String,
    /// The path of the module that uses it first.
    pub module: String,
    /// What is in the way, and a way around it.
    pub hint: String,
}

impl fmt::Display for UnsupportedOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<24} {} x", self.operator, self.count)?;
        if !self.source.is_empty() {
            write!(f, "  {}", self.source)?;
        }
        if !self.code.is_empty() {
            write!(f, " `{}`", self.code)?;
        }
        if !self.module.is_empty() {
            write!(f, "  in {}", self.module)?;
        }
        if self.count > 1 {
            write!(f, " (and {} more)", self.count - 1)?;
        }
        write!(f, "\n     {}", self.hint)
    }
}

fn place(source: &str) -> String {
    if source.is_empty() { String::new() } else { format!(" at {source}") }
}

fn list(operators: &[UnsupportedOperator]) -> String {
    let head = match operators.len() {
        1 => "1 operator has no counterpart:".to_string(),
        count => format!("{count} operators have no counterpart:"),
    };
    operators.iter().fold(head, |text, operator| format!("{text}\n  {operator}"))
}
