//! Cases as JSON, one object a line: lists of nodes with the knobs of the passes, estimates of ranks, traced steps, graphs
//! of values, costs of collectives.
//!
//! [`answer`] gives what the passes make of a case under the keys that a case's own `expected` object has. Keys that no
//! pass looks at are ignored. Answers depend on the line alone.

mod align;
mod cost;
mod error;
mod fsdp;
mod fx;
mod list;
mod schedule;

pub use error::CaseError;
pub use list::{FsdpOp, ListCase, ListConfig};

use std::collections::BTreeSet;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value};

use crate::mode::PassMode;

/// Keys with their values.
type Answer = Map<String, Value>;

/// A kind of case.
struct CaseKind {
    /// Its `type`.
    name: &'static str,
    /// The one pass that answers it.
    pass: Option<&'static str>,
    /// What its answers have.
    keys: fn() -> Vec<&'static str>,
    answer: fn(&[u8], &Keys, PassMode) -> Result<Answer, CaseError>,
}

const KINDS: &[CaseKind] = &[
    CaseKind { name: "schedule", pass: None, keys: schedule::keys, answer: schedule::answer },
    CaseKind { name: "align", pass: None, keys: align::keys, answer: align::answer },
    CaseKind {
        name: "fsdp_ordering",
        pass: Some("enforce_comm_ordering_for_fsdp"),
        keys: fsdp::keys,
        answer: fsdp::answer,
    },
    CaseKind { name: "fx_overlap", pass: None, keys: fx::keys, answer: fx::answer },
    COST,
];

/// The kind of cases that have no `type`.
const COST: CaseKind = CaseKind { name: "nccl_cost", pass: None, keys: cost::keys, answer: cost::answer };

/// Keys that are answered only if they are named.
const ON_REQUEST: &[&str] = &["reorder_for_peak_memory"];

/// Which keys are to be answered.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    /// None for all but those on request.
    named: Option<BTreeSet<String>>,
}

/// A key that no kind of case has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is unknown; there are all, {}", known.join(", "))]
pub struct UnknownKey {
    /// The name.
    pub name: String,
    /// All keys.
    pub known: Vec<&'static str>,
}

impl Keys {
    /// The keys of these names. A kind of case stands for all its keys, `all` and no name at all for every key.
    pub fn named(names: &[String]) -> Result<Keys, UnknownKey> {
        if names.is_empty() || names.iter().any(|name| name == "all") {
            return Ok(Keys::default());
        }
        let mut named = BTreeSet::new();
        for name in names {
            let kind = KINDS.iter().find(|kind| kind.name == name || kind.pass == Some(name));
            let known = || KINDS.iter().flat_map(|kind| (kind.keys)());
            match kind {
                Some(kind) => named.extend((kind.keys)().into_iter().map(str::to_string)),
                None if known().any(|key| key == name) => drop(named.insert(name.clone())),
                None => return Err(UnknownKey { name: name.clone(), known: known().collect() }),
            }
        }
        Ok(Keys { named: Some(named) })
    }

    /// Whether the key is to be answered.
    fn has(&self, key: &str) -> bool {
        self.named.as_ref().map_or_else(|| !ON_REQUEST.contains(&key), |named| named.contains(key))
    }
}

#[derive(Deserialize)]
struct Head {
    id: Option<Value>,
    #[serde(rename = "type")]
    kind: Option<String>,
    collective: Option<IgnoredAny>,
    bytes: Option<IgnoredAny>,
}

/// What the passes make of a case: an object with the case's `id`, if it has one, and its keys.
pub fn answer(line: &[u8], keys: &Keys, mode: PassMode) -> Result<Value, CaseError> {
    // An unfinished case ends where its line does, not on a line behind it.
    let line = line.trim_ascii_end();
    let head: Head = parse(line)?;
    let kind = match &head.kind {
        Some(name) => KINDS.iter().find(|kind| kind.name == name),
        None => (head.collective.is_some() || head.bytes.is_some()).then_some(&COST),
    };
    let kind = kind.ok_or_else(|| CaseError::Kind {
        found: head.kind.map_or("it is missing".into(), |name| format!("`{name}` is unknown")),
        known: KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", "),
    })?;
    let mut answer = (kind.answer)(line, keys, mode)?;
    answer.extend(head.id.map(|id| ("id".into(), id)));
    Ok(Value::Object(answer))
}

/// Parses a whole line.
fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T, CaseError> {
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    let mut track = serde_path_to_error::Track::new();
    let parsed = T::deserialize(serde_path_to_error::Deserializer::new(&mut deserializer, &mut track));
    let parsed = parsed.and_then(|value| deserializer.end().map(|()| value));
    parsed.map_err(|error| serde_path_to_error::Error::new(track.path(), error).into())
}

/// The wanted ones of some keys with their values.
fn collect(keys: &Keys, pairs: impl IntoIterator<Item = (&'static str, Value)>) -> Answer {
    pairs.into_iter().filter(|(key, _)| keys.has(key)).map(|(key, value)| (key.into(), value)).collect()
}
