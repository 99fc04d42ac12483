//! The text form shared by all levels: tokens, attributes, and errors that point at a line.
//!
//! A line reads `results = operator key=value … operands : types`. What differs between levels (operands, types,
//! placements) is parsed by the levels themselves with the [`Cursor`] of this file.

use std::fmt;
use std::str::FromStr;

use crate::{DType, MAX_ELEMENTS, Shape, TensorType};

/// A parse error: where, and what was wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// The line, from 1.
    pub line: usize,
    /// What was found and what was wanted.
    pub message: String,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    /// A word or number, as written.
    Word(String),
    /// A list of extents or axes.
    List(Vec<usize>),
    /// A list of words of which not all are extents.
    Words(Vec<String>),
}

/// The attributes of one operator in text order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attrs(Vec<(String, Attr)>);

impl Attrs {
    /// No attributes.
    pub fn new() -> Self {
        Attrs::default()
    }

    /// Adds `key=value`.
    pub fn with(mut self, key: &str, value: impl fmt::Display) -> Self {
        self.0.push((key.to_string(), Attr::Word(value.to_string())));
        self
    }

    /// Adds `key=value` unless the value is the default.
    pub fn with_unless<T: fmt::Display + PartialEq>(self, default: T, key: &str, value: T) -> Self {
        if value == default { self } else { self.with(key, value) }
    }

    /// Adds `key=[…]`.
    pub fn with_list(mut self, key: &str, value: &[usize]) -> Self {
        self.0.push((key.to_string(), Attr::List(value.to_vec())));
        self
    }

    /// Adds `key=[…]` with words.
    pub fn with_words(mut self, key: &str, words: Vec<String>) -> Self {
        self.0.push((key.to_string(), list_of(words)));
        self
    }

    /// Attribute `key`, which stays.
    pub fn get<T: crate::Attribute>(&self, key: &str) -> Result<T, String> {
        T::take(key, &mut self.clone())
    }

    /// Whether truth value `key` is there and set.
    pub fn is(&self, key: &str) -> bool {
        self.0.iter().any(|(name, value)| name == key && matches!(value, Attr::Word(word) if word == "true"))
    }

    /// Whether there is an attribute `key`.
    pub fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(name, _)| name == key)
    }

    /// Takes attribute `key` as a `T`.
    pub fn take<T: FromStr>(&mut self, key: &str) -> Result<T, String> {
        match self.remove(key) {
            Some(Attr::Word(word)) => {
                word.parse().map_err(|_| format!("attribute `{key}` cannot be `{word}`"))
            }
            Some(Attr::List(_) | Attr::Words(_)) => {
                Err(format!("attribute `{key}` must be one value, not a list"))
            }
            None => Err(format!("attribute `{key}=…` is missing")),
        }
    }

    /// Takes attribute `key` as a `T`, if it is there.
    pub fn take_if<T: FromStr>(&mut self, key: &str) -> Result<Option<T>, String> {
        self.has(key).then(|| self.take(key)).transpose()
    }

    /// Takes attribute `key` as a `T`, or the default if it is absent.
    pub fn take_or<T: FromStr>(&mut self, key: &str, default: T) -> Result<T, String> {
        Ok(self.take_if(key)?.unwrap_or(default))
    }

    /// Takes attribute `key` as a list.
    pub fn take_list(&mut self, key: &str) -> Result<Vec<usize>, String> {
        match self.remove(key) {
            Some(Attr::List(list)) => Ok(list),
            Some(Attr::Words(words)) => {
                let other = words.iter().find(|word| word.parse::<usize>().is_err());
                Err(format!("`{}` is not a size", other.map_or("", |word| word)))
            }
            Some(Attr::Word(word)) => Err(format!("attribute `{key}` must be a list, not `{word}`")),
            None => Err(format!("attribute `{key}=[…]` is missing")),
        }
    }

    /// Takes attribute `key` as a list of words.
    pub fn take_words(&mut self, key: &str) -> Result<Vec<String>, String> {
        match self.remove(key) {
            Some(Attr::Words(words)) => Ok(words),
            Some(Attr::List(list)) => Ok(list.iter().map(usize::to_string).collect()),
            Some(Attr::Word(word)) => Err(format!("attribute `{key}` must be a list, not `{word}`")),
            None => Err(format!("attribute `{key}=[…]` is missing")),
        }
    }

    /// An error if an attribute was not taken.
    pub fn finish(self) -> Result<(), String> {
        match self.0.first() {
            Some((key, _)) => Err(format!("unknown attribute `{key}`")),
            None => Ok(()),
        }
    }

    fn remove(&mut self, key: &str) -> Option<Attr> {
        let position = self.0.iter().position(|(name, _)| name == key)?;
        Some(self.0.remove(position).1)
    }
}

impl fmt::Display for Attrs {
    /// Each attribute with a space before it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, value) in &self.0 {
            match value {
                Attr::Word(word) => write!(f, " {key}={word}")?,
                Attr::List(list) => write!(f, " {key}={}", Shape::new(list.clone()))?,
                Attr::Words(words) => write!(f, " {key}=[{}]", words.join(", "))?,
            }
        }
        Ok(())
    }
}

/// A list of extents if all words are, written as extents are.
fn list_of(words: Vec<String>) -> Attr {
    let extent = |word: &String| word.parse::<usize>().ok().filter(|extent| extent.to_string() == *word);
    match words.iter().map(extent).collect() {
        Some(extents) => Attr::List(extents),
        None => Attr::Words(words),
    }
}

/// Reads one line from left to right.
#[derive(Clone)]
pub struct Cursor<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Cursor<'a> {
    /// Starts at the beginning of `text`, which is line `line` of its file.
    pub fn new(text: &'a str, line: usize) -> Self {
        Cursor { rest: text.trim(), line }
    }

    /// An error at this line.
    pub fn error<T>(&self, message: impl Into<String>) -> Result<T, ParseError> {
        Err(ParseError { line: self.line, message: message.into() })
    }

    /// What comes next, for errors.
    fn ahead(&self) -> String {
        if self.at_end() { "the end of the line".into() } else { format!("`{}`", self.rest) }
    }

    /// Whether nothing is left.
    pub fn at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Whether `token` comes next.
    pub fn peek(&self, token: &str) -> bool {
        self.rest.starts_with(token)
    }

    /// Takes `token` if it comes next.
    pub fn eat(&mut self, token: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(token) else { return false };
        self.rest = rest.trim_start();
        true
    }

    /// Takes `token` or fails.
    pub fn expect(&mut self, token: &str) -> Result<(), ParseError> {
        if self.eat(token) {
            Ok(())
        } else {
            self.error(format!("expected `{token}` before {}", self.ahead()))
        }
    }

    /// Takes a word: letters, digits, `_`, `.`, `-`, `+`, `(`, `)`, `/`.
    pub fn word(&mut self) -> Result<&'a str, ParseError> {
        let is_part = |c: char| c.is_alphanumeric() || "_.-+()/".contains(c);
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        if end == 0 {
            return self.error(format!("expected a name or number before {}", self.ahead()));
        }
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        Ok(word)
    }

    /// Takes a word and reads it as a `T`; `what` names it in the error.
    pub fn parse<T: FromStr>(&mut self, what: &str) -> Result<T, ParseError> {
        let word = self.word()?;
        word.parse().or_else(|_| self.error(format!("`{word}` is not {what}")))
    }

    /// Takes a quoted string without escapes.
    pub fn quoted(&mut self) -> Result<&'a str, ParseError> {
        self.expect("\"")?;
        let Some((text, rest)) = self.rest.split_once('"') else {
            return self.error("a quoted name has no closing `\"`");
        };
        self.rest = rest.trim_start();
        Ok(text)
    }

    /// Takes items separated by commas up to something else.
    pub fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, ParseError>,
    ) -> Result<Vec<T>, ParseError> {
        let mut items = vec![item(self)?];
        while self.eat(",") {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Takes `[a, b, …]`.
    pub fn extents(&mut self) -> Result<Vec<usize>, ParseError> {
        self.expect("[")?;
        if self.eat("]") {
            return Ok(Vec::new());
        }
        let extents = self.list(|c| c.parse("a size"))?;
        self.expect("]")?;
        Ok(extents)
    }

    /// Takes `[a, b, …]` with any words.
    fn words(&mut self) -> Result<Vec<String>, ParseError> {
        self.expect("[")?;
        if self.eat("]") {
            return Ok(Vec::new());
        }
        let words = self.list(|c| c.word().map(str::to_string))?;
        self.expect("]")?;
        Ok(words)
    }

    /// Takes a tensor type such as `f32[2, 3]`.
    pub fn tensor_type(&mut self) -> Result<TensorType, ParseError> {
        let dtype: DType = self.parse("an element type (f32, bf16, i32, i64, bool)")?;
        let ty = TensorType { dtype, shape: Shape::new(self.extents()?) };
        self.bounded(ty)
    }

    /// A type just taken, if its tensor is not too large.
    pub(crate) fn bounded(&self, ty: TensorType) -> Result<TensorType, ParseError> {
        match ty.shape.is_bounded() {
            true => Ok(ty),
            false => {
                self.error(format!("{ty} has more than {MAX_ELEMENTS} elements; make an extent smaller"))
            }
        }
    }

    /// Takes `key=value` pairs as long as they come.
    pub fn attrs(&mut self) -> Result<Attrs, ParseError> {
        let mut attrs = Attrs::new();
        loop {
            let mut ahead = self.clone();
            let Ok(key) = ahead.word() else { return Ok(attrs) };
            if !ahead.eat("=") {
                return Ok(attrs);
            }
            let value =
                if ahead.peek("[") { list_of(ahead.words()?) } else { Attr::Word(ahead.word()?.to_string()) };
            if attrs.0.iter().any(|(name, _)| name == key) {
                return self.error(format!("attribute `{key}` is given twice"));
            }
            attrs.0.push((key.to_string(), value));
            *self = ahead;
        }
    }
}

/// What stands between `keyword @name {` and `}`.
pub struct TextBlock<'a> {
    /// The name after the keyword.
    pub name: String,
    /// The lines, without comments (`;`) and blank ones.
    pub lines: Vec<Cursor<'a>>,
    /// The closing brace.
    pub end: Cursor<'a>,
}

/// Takes a text apart that is one block.
pub fn block<'a>(text: &'a str, keyword: &str) -> Result<TextBlock<'a>, ParseError> {
    let mut lines = text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.split(';').next().unwrap_or_default().trim()))
        .filter(|(_, line)| !line.is_empty());
    let Some((number, first)) = lines.next() else {
        return Err(ParseError { line: 1, message: format!("expected `{keyword} @name {{`, found nothing") });
    };
    let mut head = Cursor::new(first, number);
    head.expect(keyword)?;
    head.expect("@")?;
    let name = head.word()?.to_string();
    head.expect("{")?;
    if !head.at_end() {
        return head.error("text is left over after `{`");
    }
    let mut lines: Vec<Cursor> = lines.map(|(number, line)| Cursor::new(line, number)).collect();
    match lines.pop() {
        Some(end) if end.rest == "}" => Ok(TextBlock { name, lines, end }),
        Some(last) => last.error("expected `}` as the last line"),
        None => head.error("the block is not closed by `}`"),
    }
}
