//! `phalanx generate`: text from a trained model.

use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use phalanx::generate::{Request, Sampling, generate};
use serde_json::json;

use crate::failure::Failure;
use crate::flags::{Cores, Options};
use crate::output;
use crate::step::rate;

/// Write text with a trained model.
///
/// The text ends after --tokens or where the model ends it. The same seed gives the same text on any number of cores;
/// temperature 0 takes the likeliest token every time.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  phalanx generate --hf out --prompt 'Max '
  phalanx generate --hf gpt2 --prompt 'Once upon a time' --top-p 0.95 --seed 7
  phalanx generate --hf gpt2 --temperature 0 --prompt - < prompt.txt"
)]
pub struct Args {
    /// Hugging Face directory, for example one that `train --save` wrote
    #[arg(long, value_name = "DIR")]
    hf: PathBuf,
    /// How the text begins, `-` to read it from standard input; the tail of a prompt longer than the context
    #[arg(long, value_name = "TEXT|-")]
    prompt: String,
    /// The most tokens to add
    #[arg(long, value_name = "N", default_value_t = 100)]
    tokens: usize,
    /// 0 is greedy, 1 is the model's distribution
    #[arg(long, value_name = "F", default_value_t = Sampling::default().temperature, value_parser = rate)]
    temperature: f32,
    /// Draw from this number of likeliest tokens only; 0 for all
    #[arg(long, value_name = "N", default_value_t = Sampling::default().top_k)]
    top_k: usize,
    /// Draw from the smallest set of likeliest tokens with at least this probability; 1 for all
    #[arg(long, value_name = "F", default_value_t = Sampling::default().top_p)]
    top_p: f32,
    /// Make tokens that occurred before less likely: scores are divided by this; 1 for no penalty
    #[arg(long, value_name = "F", default_value_t = Sampling::default().repetition_penalty)]
    repetition_penalty: f32,
    /// Go on past a token that ends the text
    #[arg(long)]
    ignore_end: bool,
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
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        repetition_penalty: args.repetition_penalty,
    };
    let request = Request::new(args.hf, prompt(args.prompt)?)
        .tokenizer(args.tokenizer)
        .tokens(args.tokens)
        .sampling(sampling)
        .ignore_end(args.ignore_end)
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
        "ended": outcome.ended,
        "tokens_per_s": tokens_per_s,
    }))?;
    Ok(ExitCode::SUCCESS)
}

/// The text itself, or all of standard input for `-`.
fn prompt(given: String) -> Result<String, Failure> {
    if given != "-" {
        return Ok(given);
    }
    let mut text = String::new();
    io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| Failure::Input(format!("cannot read the prompt from standard input: {error}")))?;
    Ok(text)
}
