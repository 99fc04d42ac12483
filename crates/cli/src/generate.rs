//! `phalanx generate`: text from a trained model.

use std::path::PathBuf;
use std::process::ExitCode;

use phalanx::generate::{Request, generate};
use serde_json::json;

use crate::failure::Failure;
use crate::flags::{Cores, Options};
use crate::output;
use crate::step::rate;

/// Write text with a trained model.
///
/// Temperature 0 takes the likeliest token every time. The same seed gives the same text on any number of cores.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  phalanx generate --hf out --prompt 'the cat '
  phalanx generate --hf gpt2 --prompt 'Once upon a time' --temperature 0.8 --seed 7"
)]
pub struct Args {
    /// Hugging Face directory, for example one that `train --save` wrote
    #[arg(long, value_name = "DIR")]
    hf: PathBuf,
    /// How the text begins; the tail of a prompt longer than the context
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    /// How many tokens to add
    #[arg(long, value_name = "N", default_value_t = 100)]
    tokens: usize,
    /// 0 is greedy, 1 is the model's distribution
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = rate)]
    temperature: f32,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// A tokenizer.json; the one in the directory if absent, bytes if there is none
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    cores: Options<Cores>,
    /// Print one line of JSON at the end
    #[arg(long)]
    json: bool,
}

/// Writes the text.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let request = Request::new(args.hf, args.prompt)
        .tokenizer(args.tokenizer)
        .tokens(args.tokens)
        .temperature(args.temperature)
        .seed(args.seed)
        .cores(args.cores.count()?);
    // A closed pipe is noticed at the end: text is short.
    let mut printed = Ok(());
    let outcome = generate(&request, |piece| {
        if !args.json && printed.is_ok() {
            printed = output::part(piece);
        }
    })?;
    printed?;
    if !args.json {
        output::line("")?;
        return Ok(ExitCode::SUCCESS);
    }
    let tokens_per_s = outcome.tokens.len() as f64 / outcome.seconds.max(f64::MIN_POSITIVE);
    output::json(&json!({
        "prompt": request.prompt,
        "text": outcome.text,
        "prompt_tokens": outcome.prompt,
        "tokens": outcome.tokens,
        "tokens_per_s": tokens_per_s,
    }))?;
    Ok(ExitCode::SUCCESS)
}
