//! What a line of a JSON-lines file holds: a text, a prompt with its completion, or a conversation.

use std::ops::Range;

use serde::Deserialize;
use serde_json::Value;

use super::chat::{ChatError, ChatMessage, ChatTemplate};

/// The field that has the text if no other is named; only then are lines without it looked at further.
pub(super) const TEXT_FIELD: &str = "text";

/// How documents are taken from lines.
pub(super) struct Records<'a> {
    /// The field that has the text or the messages.
    pub(super) field: &'a str,
    /// How conversations become text; texts need none.
    pub(super) template: &'a Result<ChatTemplate, ChatError>,
}

/// A text that a model learns from.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Document {
    pub(super) text: String,
    /// The bytes that are given, not answered; ascending. Nothing is known of a plain text.
    pub(super) prompts: Option<Vec<Range<usize>>>,
    /// Whether the text has its own end: no token that ends a text is put behind it.
    pub(super) is_closed: bool,
}

impl Records<'_> {
    /// Everything that documents depend on beside the lines.
    pub(super) fn identity(&self) -> String {
        let template = self.template.as_ref().map(ChatTemplate::identity).unwrap_or_default();
        format!("{}\0{template}", self.field)
    }

    /// The document of a line; the error says why it has none.
    pub(super) fn read(&self, line: &str) -> Result<Document, String> {
        let mut value: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let field = self.field;
        match value.get_mut(field).map(Value::take) {
            Some(Value::String(text)) => Ok(Document { text, ..Document::default() }),
            Some(messages @ Value::Array(_)) => self.conversation(field, messages),
            Some(other) => Err(format!("`{field}` is {other}; it must be a string or a list of messages")),
            None if field == TEXT_FIELD => self.read_known(value),
            None => Err(format!("there is no field `{field}`; name the one that has the text")),
        }
    }

    /// A line that has no field `text`.
    fn read_known(&self, mut value: Value) -> Result<Document, String> {
        if let Some(messages) = value.get_mut("messages").map(Value::take) {
            return self.conversation("messages", messages);
        }
        if let (Some(prompt), Some(completion)) = (string(&value, "prompt")?, string(&value, "completion")?) {
            let prompts = Some(Vec::from_iter((!prompt.is_empty()).then_some(0..prompt.len())));
            return Ok(Document { text: format!("{prompt}{completion}"), prompts, is_closed: false });
        }
        if let (Some(instruction), Some(output)) = (string(&value, "instruction")?, string(&value, "output")?)
        {
            let input = string(&value, "input")?.filter(|input| !input.is_empty());
            let asked = input.map_or(instruction.into(), |input| format!("{instruction}\n\n{input}"));
            return self.rendered(&[ChatMessage::new("user", asked), ChatMessage::new("assistant", output)]);
        }
        Err(format!(
            "there is no field `{TEXT_FIELD}`, nor `messages`, `prompt` with `completion`, or `instruction` with `output`; \
             name the one that has the text"
        ))
    }

    fn conversation(&self, field: &str, messages: Value) -> Result<Document, String> {
        let messages = Vec::<ChatMessage>::deserialize(messages);
        self.rendered(&messages.map_err(|error| format!("`{field}` is no list of messages: {error}"))?)
    }

    fn rendered(&self, messages: &[ChatMessage]) -> Result<Document, String> {
        let template = self.template.as_ref().map_err(ToString::to_string)?;
        let conversation = template.conversation(messages).map_err(|error| error.to_string())?;
        let (mut prompts, mut at) = (Vec::new(), 0);
        for answer in &conversation.answers {
            prompts.push(at..answer.start);
            at = answer.end;
        }
        prompts.push(at..conversation.text.len());
        prompts.retain(|prompt| !prompt.is_empty());
        Ok(Document { text: conversation.text, prompts: Some(prompts), is_closed: true })
    }
}

/// A field that must be a string where it is present.
fn string<'a>(value: &'a Value, field: &str) -> Result<Option<&'a str>, String> {
    match value.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(format!("`{field}` is {other}; it must be a string")),
    }
}
