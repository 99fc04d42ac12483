//! Conversations as text: the chat template of a model, and which parts of the text are answers.
//!
//! A template is a Jinja text as transformers has it, with the same variables. It comes from the directory of the
//! tokenizer, or it is one of three with names. Rendering depends on nothing else: a template that asks for the time of
//! day does not get it.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Tokenizer;
use crate::files;

/// Why a conversation has no text.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message explains the fields")]
pub enum ChatError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file is not what it should be.
    #[error("{} is wrong: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    /// No template has this name.
    #[error("`{name}` is no chat template; use chatml, llama3, plain or a file")]
    Unknown { name: String },
    /// The template does not work.
    #[error("the chat template of {name} fails: {reason}")]
    Template { name: String, reason: String },
    /// The text of a message depends on messages that come after it.
    #[error(
        "the chat template of {name} changes what stands before message {message}, so it is unknown which part is the answer; choose another with --chat-template"
    )]
    Changes { name: String, message: usize },
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user` or `assistant`, whose messages are answers.
    pub role: String,
    /// What it says.
    pub content: String,
    /// Further keys, which a template may know.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl ChatMessage {
    /// A message without further keys.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> ChatMessage {
        ChatMessage { role: role.into(), content: content.into(), rest: Map::new() }
    }
}

/// The text of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// All messages.
    pub text: String,
    /// Which bytes of it are answers, with what ends them; ascending.
    pub answers: Vec<Range<usize>>,
}

/// How conversations become text.
#[derive(Debug)]
pub struct ChatTemplate {
    name: String,
    source: String,
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

const CHATML: &str = "\
{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

const LLAMA3: &str = "\
{{- '<|begin_of_text|>' }}
{%- for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

const PLAIN: &str = "\
{%- for message in messages %}{{ message['role'] | capitalize + ': ' + message['content'] }}
{%- if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}";

/// Instructions of a template after which it is taken to run for ever.
const MOST_WORK: u64 = 10_000_000;

/// Templates with names.
const NAMED: [(&str, &str); 3] = [("chatml", CHATML), ("llama3", LLAMA3), ("plain", PLAIN)];

/// Tokens by which a tokenizer tells the template it was trained with.
const MARKERS: [(&str, &str); 2] = [("<|im_start|>", "chatml"), ("<|start_header_id|>", "llama3")];

impl ChatTemplate {
    /// The template of a name or file, else the one beside the file of the tokenizer, else the one whose markers the
    /// tokenizer has, else `plain`.
    pub fn choose(
        choice: Option<&str>,
        tokenizer_file: Option<&Path>,
        tokenizer: &Tokenizer,
    ) -> Result<ChatTemplate, ChatError> {
        let beside = Beside::read(tokenizer_file)?;
        let (name, source) = match (choice, beside.template) {
            (Some(name), _) => (name.to_string(), ChatTemplate::source_of(name)?),
            (None, Some((path, source))) => (path.display().to_string(), source),
            (None, None) => {
                let marked = MARKERS.iter().find(|(token, _)| tokenizer.token(token).is_some());
                let name = marked.map_or("plain", |marked| marked.1);
                (name.into(), ChatTemplate::source_of(name)?)
            }
        };
        let end = || tokenizer.end_of_text().and_then(|end| tokenizer.decode(&[i64::from(end)]).ok());
        let eos_token = beside.eos_token.or_else(end).unwrap_or_default();
        ChatTemplate::new(name, source, beside.bos_token.unwrap_or_default(), eos_token)
    }

    /// The Jinja text of a name or file.
    pub fn source_of(choice: &str) -> Result<String, ChatError> {
        match NAMED.iter().find(|named| named.0 == choice) {
            Some((_, source)) => Ok(source.to_string()),
            None if Path::new(choice).is_file() => read(Path::new(choice)),
            None => Err(ChatError::Unknown { name: choice.into() }),
        }
    }

    fn new(
        name: String,
        source: String,
        bos_token: String,
        eos_token: String,
    ) -> Result<ChatTemplate, ChatError> {
        let failed = |name: &str, error: minijinja::Error| ChatError::Template {
            name: name.into(),
            reason: explain(&error),
        };
        let mut environment = Environment::new();
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.set_fuel(Some(MOST_WORK));
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| failed(&name, error))?);
        environment.add_function("raise_exception", |text: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, text))
        });
        environment
            .add_template_owned(TEMPLATE, without_generation_tags(&source))
            .map_err(|error| failed(&name, error))?;
        Ok(ChatTemplate { name, source, environment, bos_token, eos_token })
    }

    /// The template's name, or where it is from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Everything that its texts depend on.
    pub(super) fn identity(&self) -> String {
        [&*self.source, &*self.bos_token, &*self.eos_token].join("\0")
    }

    /// The text of messages; with `add_generation_prompt` an answer can follow it.
    pub fn render(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<String, ChatError> {
        let (bos_token, eos_token) = (self.bos_token.as_str(), self.eos_token.as_str());
        let messages = minijinja::Value::from(minijinja::value::Serde(messages));
        let render = || {
            let template = self.environment.get_template(TEMPLATE)?;
            template.render(context! { messages, add_generation_prompt, bos_token, eos_token })
        };
        render().map_err(|error| ChatError::Template { name: self.name.clone(), reason: explain(&error) })
    }

    /// Texts that end an answer: what the template puts behind one, and how the user's next message begins.
    pub fn answer_ends(&self) -> Result<Vec<String>, ChatError> {
        const MARK: &str = "\u{1}";
        let talk = ["user", "assistant", "user"].map(|role| ChatMessage::new(role, MARK));
        let behind = |messages: &[ChatMessage]| {
            let text = self.render(messages, false)?;
            Ok::<_, ChatError>(text.split(MARK).nth(2).unwrap_or_default().to_string())
        };
        let ends = [behind(&talk[..2])?.trim().to_string(), behind(&talk)?.trim_end().to_string()];
        Ok(ends.into_iter().filter(|end| !end.is_empty()).collect())
    }

    /// The text of a conversation and its answers: what follows the text of the messages before, up to where the next
    /// message begins.
    pub fn conversation(&self, messages: &[ChatMessage]) -> Result<Conversation, ChatError> {
        let text = self.render(messages, false)?;
        let mut answers = Vec::new();
        for (index, message) in messages.iter().enumerate().filter(|(_, message)| message.role == "assistant")
        {
            let prompt = self.render(&messages[..index], true)?;
            let answered = self.render(&messages[..=index], false)?;
            let end =
                if text.starts_with(&prompt) { answer_end(&text, &prompt, &answered, message) } else { None };
            let end =
                end.ok_or_else(|| ChatError::Changes { name: self.name.clone(), message: index + 1 })?;
            answers.push(prompt.len()..end);
        }
        Ok(Conversation { text, answers })
    }
}

/// Where the answer behind `prompt` ends in `text`; `answered` is the text of all messages up to it. Some templates write
/// the last answer in another way than those before: then the answer ends with what stands behind it in `answered`.
fn answer_end(text: &str, prompt: &str, answered: &str, message: &ChatMessage) -> Option<usize> {
    if text.starts_with(answered) && answered.starts_with(prompt) {
        return Some(answered.len());
    }
    let content = message.content.trim();
    let (_, tail) = answered.rsplit_once(content)?;
    let at = prompt.len() + text[prompt.len()..].find(content)? + content.len();
    text[at..].starts_with(tail).then_some(at + tail.len())
}

/// The name under which an environment knows its only template.
const TEMPLATE: &str = "chat template";

/// Takes out the tags by which some templates mark answers for transformers.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.split_once("{%") {
        text.push_str(before);
        let (inside, after) = tag.split_once("%}").unwrap_or((tag, ""));
        let word = inside.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        let inside = match word {
            "generation" => inside.replace("generation", "if true"),
            "endgeneration" => inside.replace("endgeneration", "endif"),
            _ => inside.into(),
        };
        text.push_str("{%");
        text.push_str(&inside);
        if tag.contains("%}") {
            text.push_str("%}");
        }
        rest = after;
    }
    text + rest
}

fn explain(error: &minijinja::Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), String::from);
    error.line().map_or(detail.clone(), |line| format!("line {line}: {detail}"))
}

/// What lies beside the file of a tokenizer.
#[derive(Default)]
struct Beside {
    template: Option<(PathBuf, String)>,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

impl Beside {
    fn read(tokenizer_file: Option<&Path>) -> Result<Beside, ChatError> {
        let Some(dir) = tokenizer_file.and_then(Path::parent) else { return Ok(Beside::default()) };
        let (template, config) = (dir.join("chat_template.jinja"), dir.join("tokenizer_config.json"));
        let mut beside = Beside::default();
        if config.is_file() {
            let wrong = |reason: String| ChatError::File { path: config.clone(), reason };
            let value: Value =
                serde_json::from_str(&read(&config)?).map_err(|error| wrong(error.to_string()))?;
            beside.template =
                default_template(&value["chat_template"]).map(|source| (config.clone(), source));
            beside.bos_token = special_token(&value["bos_token"]);
            beside.eos_token = special_token(&value["eos_token"]);
        }
        if template.is_file() {
            beside.template = Some((template.clone(), read(&template)?));
        }
        Ok(beside)
    }
}

/// The template of a `tokenizer_config.json`: a text, or the one called `default` of several.
fn default_template(value: &Value) -> Option<String> {
    let named = |one: &&Value| one["name"] == "default";
    let value = value.as_array().map_or(Some(value), |all| Some(&all.iter().find(named)?["template"]))?;
    value.as_str().map(String::from)
}

/// A special token: a text, or an object with its content.
fn special_token(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value["content"].as_str()).map(String::from)
}

fn read(path: &Path) -> Result<String, ChatError> {
    files::read_text(path).map_err(|source| ChatError::Read { path: path.into(), source })
}

#[cfg(test)]
mod tests;
