//! `phalanx generate`: text from a trained model, and conversations with it.

use std::io::{self, BufRead, IsTerminal, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use phalanx::data::{ChatMessage, ChatTemplate};
use phalanx::generate::{Outcome, Request, Sampling, TextWriter, generate};
use phalanx::job::Launched;
use serde_json::json;

use crate::failure::Failure;
use crate::flags::{self, Inference, Options};
use crate::step::rate;
use crate::{job, output};

/// Write text with a trained model.
///
/// The text ends after --tokens or where the model ends it. The same seed gives the same text on any number of cores;
/// temperature 0 takes the likeliest token every time. With --chat it reads one line after the other and answers each;
/// `/reset` forgets the conversation, `/quit` or the end of the input ends it.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  phalanx generate --hf out --prompt 'Max '
  phalanx generate --hf gpt2 --prompt 'Once upon a time' --top-p 0.95 --seed 7
  phalanx generate --hf gpt2 --temperature 0 --prompt - < prompt.txt
  phalanx generate --hf out --chat"
)]
pub struct Args {
    /// Hugging Face directory, for example one that `train --save` wrote
    #[arg(long, value_name = "DIR")]
    hf: PathBuf,
    /// How the text begins, `-` to read it from standard input; the tail of a prompt longer than the context
    #[arg(long, value_name = "TEXT|-", required_unless_present = "chat")]
    prompt: Option<String>,
    /// Answer lines of standard input, as the assistant of a conversation
    #[arg(long, conflicts_with = "prompt")]
    chat: bool,
    /// How a conversation becomes text: chatml, llama3, plain, or a file with a Jinja template; the one beside the model if
    /// absent, else the one whose special tokens the tokenizer has, else plain
    #[arg(long, value_name = "NAME|FILE", requires = "chat")]
    chat_template: Option<String>,
    /// The most tokens to add; with --chat to each answer
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
    options: Options<Inference>,
    /// Print one line of JSON at the end; with --chat one for each answer
    #[arg(long)]
    json: bool,
}

/// Writes the text.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    if let Some(Launched { rank, size: size @ 2.., .. }) = job::launched() {
        // One rank says it for all.
        return match rank {
            0 => Err(Failure::Input(format!(
                "`generate` runs in one process, but the launcher has started {size}: leave it out, or start one"
            ))),
            _ => Ok(ExitCode::SUCCESS),
        };
    }
    let sampling = Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        repetition_penalty: args.repetition_penalty,
    };
    let config = args.options.config(None)?;
    flags::warn(&config);
    let prompt = args.prompt.map_or_else(|| Ok(String::new()), prompt)?;
    let request = Request::new(args.hf, prompt)
        .tokenizer(args.tokenizer)
        .tokens(args.tokens)
        .sampling(sampling)
        .ignore_end(args.ignore_end)
        .seed(args.seed)
        .cores(config.core_count())
        .precision(config.precision);
    match args.chat {
        true => chat(&request, args.chat_template.as_deref(), args.json)?,
        false => write(&request, args.json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write(request: &Request, json: bool) -> Result<(), Failure> {
    // A closed pipe is noticed at the end: text is short.
    let mut printed = Ok(());
    let outcome = generate(request, |piece| {
        if !json && printed.is_ok() {
            printed = output::part(piece);
        }
    })?;
    printed?;
    if json {
        return output::json(&json!({
            "prompt": request.prompt,
            "text": outcome.text,
            "prompt_tokens": outcome.prompt,
            "tokens": outcome.tokens,
            "ended": outcome.ended,
            "precision": request.precision,
            "tokens_per_s": rate_of(&outcome),
            "prompt_seconds": outcome.prompt_seconds,
        }));
    }
    output::line("")?;
    eprintln!("{}", speed(&outcome));
    Ok(())
}

/// The most tokens of a conversation that the model looks back at, if its context has as many.
const CONVERSATION: usize = 4096;

/// Answers lines of standard input until it ends.
fn chat(request: &Request, template: Option<&str>, json: bool) -> Result<(), Failure> {
    let mut writer = TextWriter::open(request, Some(CONVERSATION))?;
    let template = writer.converse(template)?;
    let is_terminal = io::stdin().is_terminal();
    let mut messages = Vec::new();
    loop {
        if is_terminal {
            eprint!("> ");
        }
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line);
        if read.map_err(|error| Failure::Input(format!("cannot read from standard input: {error}")))? == 0 {
            return Ok(());
        }
        match line.trim() {
            "" => {}
            "/quit" => return Ok(()),
            "/reset" => messages.clear(),
            text => {
                messages.push(ChatMessage::new("user", text));
                let answer = answer(&mut writer, &template, &messages, json)?;
                messages.push(ChatMessage::new("assistant", answer));
            }
        }
    }
}

/// Prints the answer to a conversation while it is drawn.
fn answer(
    writer: &mut TextWriter,
    template: &ChatTemplate,
    messages: &[ChatMessage],
    json: bool,
) -> Result<String, Failure> {
    let text = template.render(messages, true).map_err(|error| Failure::Input(error.to_string()))?;
    let (mut printed, mut begun) = (Ok(()), false);
    let outcome = writer.continue_text(&text, |piece| {
        let piece = if begun { piece } else { piece.trim_start() };
        begun |= !piece.is_empty();
        if !json && printed.is_ok() {
            printed = output::part(piece);
        }
    })?;
    printed?;
    let answer = outcome.continuation.trim().to_string();
    match json {
        true => output::json(&json!({
            "answer": answer,
            "ended": outcome.ended,
            "tokens": outcome.tokens.len(),
            "tokens_per_s": rate_of(&outcome),
        }))?,
        false => output::line("")?,
    }
    Ok(answer)
}

fn rate_of(outcome: &Outcome) -> f64 {
    outcome.tokens.len() as f64 / outcome.seconds.max(f64::MIN_POSITIVE)
}

/// How long it took, for people.
fn speed(outcome: &Outcome) -> String {
    let (tokens, prompt) = (outcome.tokens.len(), output::count(outcome.prompt.len(), "token"));
    let (tokens, rate) = (output::count(tokens, "token"), rate_of(outcome));
    let Outcome { seconds, prompt_seconds, .. } = outcome;
    format!(
        "{tokens} in {seconds:.2} s, {rate:.1} tokens/s; the prompt, {prompt}, took {prompt_seconds:.2} s of it"
    )
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
