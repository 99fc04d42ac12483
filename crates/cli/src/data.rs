//! `phalanx data`: what a run would train on, and text made into tokens once.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use phalanx::data::{DataSource, Dataset, cache_dir};
use serde_json::json;

use crate::failure::Failure;
use crate::flags::{FileMask, Options};
use crate::{output, starting};

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
    /// others are UTF-8 text. Several are separated by `;`, each with its weight or none: 'a.txt=0.7;b.jsonl=0.3'
    path: PathBuf,
    /// A Hugging Face tokenizer.json; bytes if absent
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// The field of a .jsonl line that has the text
    #[arg(long, value_name = "NAME", default_value = "text")]
    field: String,
    /// How conversations become text: chatml, llama3, plain or a Jinja file; the tokenizer's own if absent
    #[arg(long, value_name = "NAME|FILE")]
    chat_template: Option<String>,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Write the tokens of text to a file
///
/// The file is as llm.c reads it; `train --data` takes it without encoding anything. A token that ends a text stands
/// after each document, if the tokenizer has one. Files beside it, .docs and .prompts, tell where documents end and which
/// tokens are prompts, if there is more to tell than one text.
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
    #[command(flatten)]
    mask: Options<FileMask>,
}

/// Show how much there is to train on, and how it begins
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx data show book.txt
  phalanx data show book.bin --tokenizer tokenizer.json --head 50
  phalanx data show chats.jsonl --tokenizer tokenizer.json --chat-template chatml")]
pub struct Show {
    #[command(flatten)]
    source: Source,
    /// Tokens to show from the start
    #[arg(long, value_name = "N", default_value_t = 32)]
    head: usize,
}

impl Source {
    fn source<'a>(&'a self, cache: Option<&'a Path>) -> DataSource<'a> {
        let (tokenizer, chat_template) = (self.tokenizer.as_deref(), self.chat_template.as_deref());
        DataSource { tokenizer, field: &self.field, chat_template, cache, ..DataSource::new(&self.path) }
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

fn tokenize(Tokenize { source, out, mask }: &Tokenize) -> Result<(), Failure> {
    mask.config(None)?;
    let tokens = starting::tokenizing(|progress| source.source(None).tokenize(out, progress))
        .map_err(phalanx::Error::from)?;
    if source.json {
        return output::json(&json!({ "out": out, "tokens": tokens }));
    }
    output::line(format!("{}: {} tokens", out.display(), output::grouped(tokens as u64)))
}

fn show(Show { source, head }: &Show) -> Result<(), Failure> {
    let cache = cache_dir();
    let open =
        |progress: &mut dyn FnMut(u64, u64)| Dataset::open(&source.source(cache.as_deref()), 0, progress);
    let data = starting::tokenizing(open).map_err(phalanx::Error::from)?;
    let first = data.head(*head);
    let text = data.tokenizer().decode(&first).ok();
    let (tokens, prompts) = (data.tokens(), data.prompt_tokens());
    let mixed = data.mixed(0);
    if source.json {
        let sources: Vec<_> = mixed
            .iter()
            .map(|one| json!({ "data": one.name, "tokens": one.tokens, "share": one.share }))
            .collect();
        return output::json(&json!({
            "data": data.name(),
            "documents": data.documents(),
            "tokens": tokens,
            "prompt_tokens": prompts,
            "vocabulary": data.vocab(),
            "sources": sources,
            "head": first,
            "text": text,
        }));
    }
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    output::line(format!("data        {}", data.name()))?;
    for one in mixed.iter().filter(|_| mixed.len() > 1) {
        let (share, tokens) = (percent(one.share), output::grouped(one.tokens as u64));
        output::line(format!("  {share:>7}   {}: {tokens} tokens", one.name))?;
    }
    output::line(format!("documents   {}", output::grouped(data.documents() as u64)))?;
    output::line(format!("tokens      {}", output::grouped(tokens as u64)))?;
    if prompts > 0 {
        let share = percent(prompts as f64 / tokens as f64);
        output::line(format!("prompts     {share} of the tokens, left out with --mask-prompt"))?;
    }
    output::line(format!("vocabulary  {}", output::grouped(data.vocab() as u64)))?;
    output::line(format!("begins      {}", text.map_or(format!("{first:?}"), |text| format!("{text:?}"))))
}
