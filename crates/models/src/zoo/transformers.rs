//! How transformers describes a model: the keys of its `config.json`.

use serde_json::{Map, Value, json};

/// A configuration of transformers as a table of keys.
#[derive(Debug)]
pub struct TransformersForm {
    /// The value of `model_type`.
    pub model_type: &'static str,
    /// The class that has the parameters of the model.
    pub architecture: &'static str,
    /// Our size whose numbers an absent key stands for.
    pub usual: &'static str,
    /// Sizes: our name, the key there, and how much larger the number is there.
    pub sizes: &'static [(&'static str, &'static str, usize)],
    /// Our name of how many labels there are, if there are any: the entries of `id2label`.
    pub labels: Option<&'static str>,
    /// What the model cannot change: key and value there, as JSON.
    pub fixed: &'static [(&'static str, &'static str)],
}

/// A value that the model cannot have.
#[derive(Debug, PartialEq)]
pub struct FormProblem {
    /// The key.
    pub key: &'static str,
    /// What the model can have.
    pub supported: String,
}

/// Where labels are.
const LABELS: &str = "id2label";

impl TransformersForm {
    /// The keys of a model with these sizes.
    pub fn write(&self, sizes: &Value) -> Value {
        let mut map = Map::new();
        map.insert("model_type".into(), json!(self.model_type));
        map.insert("architectures".into(), json!([self.architecture]));
        let size = |own: &str| sizes.get(own).and_then(Value::as_u64).unwrap_or_default();
        for &(own, key, more) in self.sizes {
            map.insert(key.into(), json!(size(own) + more as u64));
        }
        if let Some(own) = self.labels {
            let label = |id: u64| (id.to_string(), json!(format!("LABEL_{id}")));
            let back = |id: u64| (format!("LABEL_{id}"), json!(id));
            map.insert(LABELS.into(), Value::Object((0..size(own)).map(label).collect()));
            map.insert("label2id".into(), Value::Object((0..size(own)).map(back).collect()));
        }
        for (key, value) in self.fixed {
            map.insert((*key).into(), serde_json::from_str(value).unwrap_or_default());
        }
        Value::Object(map)
    }

    /// `sizes`, which are the usual ones, with what the keys say.
    pub fn read(&self, keys: &Map<String, Value>, mut sizes: Value) -> Result<Value, FormProblem> {
        let found = |key: &str| keys.get(key).filter(|value| !value.is_null());
        for &(own, key, more) in self.sizes {
            let Some(value) = found(key) else { continue };
            match value.as_u64().and_then(|size| size.checked_sub(more as u64)) {
                Some(size) => sizes[own] = json!(size),
                None => {
                    let supported = format!("a whole number of at least {more}");
                    return Err(FormProblem { key, supported });
                }
            }
        }
        if let Some((own, labels)) = self.labels.zip(found(LABELS)) {
            let Some(labels) = labels.as_object() else {
                return Err(FormProblem {
                    key: LABELS,
                    supported: "an object with a name for each label".into(),
                });
            };
            sizes[own] = json!(labels.len());
        }
        for &(key, value) in self.fixed {
            let wanted: Value = serde_json::from_str(value).unwrap_or_default();
            if found(key).is_some_and(|found| !is_same(found, &wanted)) {
                return Err(FormProblem { key, supported: value.to_string() });
            }
        }
        Ok(sizes)
    }
}

/// Equal as JSON, numbers as numbers.
fn is_same(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().zip(b.as_f64()).is_some_and(|(a, b)| a == b)
}
