//! `phalanx data`: what a run would train on, and text made into tokens once.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use phalanx::data::{DataSource, Dataset, cache_dir};
use serde_json::json;

use crate::failure::Failure;
use crate::output;

/// Look at data, and make text into tokens
#[derive(clap::Subcommand)]
pub enum Command {
    Tokenize(Tokenize),
    Show(Show),
}

/// Files and their tokenizer.
#[derive(clap::Args)]
struct Source {
    /// A file, a directory or a pattern: .jsonl has a JSON object on each line, .bin tokens of llm.c or nanoGPT, all
    /// others are UTF-8 text
    path: PathBuf,
    /// A Hugging Face tokenizer.json; bytes if absent
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// The field of a .jsonl line that has the text
    #[arg(long, value_name = "NAME", default_value = "text")]
    field: String,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Write the tokens of text to a file
///
/// The file is as llm.c reads it; `train --data` takes it without encoding anything. A token that ends a text stands
/// after each document, if the tokenizer has one.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx data tokenize book.txt --tokenizer tokenizer.json --out book.bin
  phalanx data tokenize 'texts/*.jsonl' --field body --tokenizer tokenizer.json --out texts.bin")]
pub struct Tokenize {
    #[command(flatten)]
    source: Source,
    /// The file to write
    #[arg(long, value_name = "FILE.bin")]
    out: PathBuf,
}

/// Show how much there is to train on, and how it begins
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx data show book.txt
  phalanx data show book.bin --tokenizer tokenizer.json --head 50")]
pub struct Show {
    #[command(flatten)]
    source: Source,
    /// Tokens to show from the start
    #[arg(long, value_name = "N", default_value_t = 32)]
    head: usize,
}

impl Source {
    fn source<'a>(&'a self, cache: Option<&'a Path>) -> DataSource<'a> {
        let (path, tokenizer, field) = (&self.path, self.tokenizer.as_deref(), self.field.as_str());
        DataSource { path, tokenizer, field, cache }
    }
}

/// Runs the command.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Tokenize(args) => tokenize(&args)?,
        Command::Show(args) => show(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn tokenize(Tokenize { source, out }: &Tokenize) -> Result<(), Failure> {
    let tokens =
        with_bar(|progress| source.source(None).tokenize(out, progress)).map_err(phalanx::Error::from)?;
    if source.json {
        return output::json(&json!({ "out": out, "tokens": tokens }));
    }
    output::line(format!("{}: {} tokens", out.display(), output::grouped(tokens as u64)))
}

fn show(Show { source, head }: &Show) -> Result<(), Failure> {
    let cache = cache_dir();
    let open =
        |progress: &mut dyn FnMut(u64, u64)| Dataset::open(&source.source(cache.as_deref()), 0, progress);
    let data = with_bar(open).map_err(phalanx::Error::from)?;
    let first = data.head(*head);
    let text = data.tokenizer().decode(&first).ok();
    if source.json {
        return output::json(&json!({
            "data": data.name(),
            "tokens": data.tokens(),
            "vocabulary": data.vocab(),
            "head": first,
            "text": text,
        }));
    }
    output::line(format!("data        {}", data.name()))?;
    output::line(format!("tokens      {}", output::grouped(data.tokens() as u64)))?;
    output::line(format!("vocabulary  {}", output::grouped(data.vocab() as u64)))?;
    output::line(format!("begins      {}", text.map_or(format!("{first:?}"), |text| format!("{text:?}"))))
}

/// Shows on a terminal how much text has been encoded.
pub fn with_bar<T>(encode: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T) -> T {
    let style =
        ProgressStyle::with_template("tokenizing {bytes}/{total_bytes} {bar:24} {binary_bytes_per_sec}");
    let bar = ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let encoded = encode(&mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    encoded
}
