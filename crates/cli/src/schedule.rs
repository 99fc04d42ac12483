//! `phalanx schedule`: overlap passes on lists of compute, collectives and waits.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use phalanx_inductor::cases::{CaseError, Keys, answer};
use phalanx_inductor::mode::PassMode;
use serde_json::Value;

use crate::failure::Failure;
use crate::output;

/// Run overlap passes on cases, one JSON object a line, and print one answer a line in the same order.
///
/// A case is a list of nodes with times and bytes (type `schedule`), estimates of ranks (`align`), a traced FSDP step
/// (`fsdp_ordering`), a graph of values (`fx_overlap`), or a collective whose cost is asked for (`collective` and `bytes`, no type). An answer has the
/// case's id and what every pass makes of it; of a list and a graph also `search`, our own order, with no more bytes than
/// the best of theirs. Keys that no pass knows are ignored. A line that is no case is an error on
/// standard error that names line and field; the other lines are answered all the same, and the exit code is 2. So it is
/// if there is no case at all.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx schedule cases.jsonl > answers.jsonl
  phalanx schedule --passes sink_waits,raise_comms < cases.jsonl
  phalanx schedule --mode reference cases.jsonl      # PyTorch 2.11 with its defects
  echo '{\"collective\": \"all_reduce\", \"bytes\": 1048576, \"group_size\": 8, \"gpu\": \"hopper\"}' | phalanx schedule")]
pub struct Args {
    /// File of cases; standard input if absent or -
    file: Option<PathBuf>,
    /// Keys to answer, separated by commas; all is every key that cases expect
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "all")]
    passes: Vec<String>,
    /// What defects of PyTorch's passes are kept: those of 2.11, those of 2.15, none
    #[arg(long, value_name = "MODE", default_value = "fixed", value_parser = ["reference", "newer", "fixed"])]
    mode: String,
}

/// Answers all lines.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let keys = Keys::named(&args.passes).map_err(|error| Failure::Input(format!("--passes: {error}")))?;
    let mode = match args.mode.as_str() {
        "reference" => PassMode::Reference,
        "newer" => PassMode::Newer,
        _ => PassMode::Fixed,
    };
    let lines = Mutex::new(Lines { input: open(args.file.as_deref())?, number: 0 });
    let printer = Mutex::new(Printer::default());
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    thread::scope(|scope| -> Result<(), Failure> {
        let work = || {
            loop {
                let next = lock(&lines).next()?;
                let Some((number, line)) = next else { return Ok(()) };
                let answer = (!line.trim_ascii().is_empty()).then(|| answer(&line, &keys, mode));
                lock(&printer).put(number, answer)?;
            }
        };
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    match *lock(&printer) {
        Printer { n_cases: 0, .. } => {
            let from = args.file.map_or("standard input".into(), |path| path.display().to_string());
            Err(Failure::Input(format!("{from} has no cases: give one JSON object a line")))
        }
        Printer { is_wrong: true, .. } => Ok(ExitCode::from(2)),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn open(file: Option<&Path>) -> Result<Box<dyn BufRead + Send>, Failure> {
    match file.filter(|path| *path != Path::new("-")) {
        None => Ok(Box::new(BufReader::new(io::stdin()))),
        Some(path) => match File::open(path) {
            Ok(file) => Ok(Box::new(BufReader::new(file))),
            Err(error) => Err(Failure::Input(format!("cannot read {}: {error}", path.display()))),
        },
    }
}

/// What a worker that panicked leaves is whole: it changes nothing before it can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Lines {
    input: Box<dyn BufRead + Send>,
    number: usize,
}

impl Lines {
    /// The next line and its number, from 1.
    fn next(&mut self) -> Result<Option<(usize, Vec<u8>)>, Failure> {
        let mut line = Vec::new();
        match self.input.read_until(b'\n', &mut line) {
            Ok(0) => Ok(None),
            Ok(_) => {
                self.number += 1;
                Ok(Some((self.number, line)))
            }
            Err(error) => Err(Failure::Input(format!("cannot read line {}: {error}", self.number + 1))),
        }
    }
}

/// An answer; none for an empty line.
type Answer = Option<Result<Value, CaseError>>;

/// Prints answers in the order of their lines.
#[derive(Default)]
struct Printer {
    printed: usize,
    /// Answers to later lines than the next one.
    waiting: BTreeMap<usize, Answer>,
    /// How many lines were not empty.
    n_cases: usize,
    is_wrong: bool,
}

impl Printer {
    fn put(&mut self, number: usize, answer: Answer) -> Result<(), Failure> {
        self.waiting.insert(number, answer);
        while let Some(answer) = self.waiting.remove(&(self.printed + 1)) {
            self.printed += 1;
            self.n_cases += usize::from(answer.is_some());
            match answer {
                None => {}
                Some(Ok(answer)) => output::json(&answer)?,
                Some(Err(error)) => {
                    self.is_wrong = true;
                    eprintln!("error: line {}: {error}", self.printed);
                }
            }
        }
        Ok(())
    }
}
