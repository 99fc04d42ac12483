//! Which values the fields of a configuration can have.

use super::{ConfigError, TrainConfig};
use crate::job::Drill;

impl TrainConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let counts = [("batch", self.batch), ("accumulate", self.accumulate), ("steps", self.steps as usize)];
        for (field, value) in counts {
            if value == 0 {
                return self.field(field, &value, "it must be at least 1");
            }
        }
        let leaves = [
            ("leaves_batch", self.leaves_batch),
            ("leaves_feature", self.leaves_feature),
            ("leaves_sequence", self.leaves_sequence),
        ];
        for (field, leaves) in leaves {
            if !leaves.is_power_of_two() || leaves > 1024 {
                return self.field(field, &leaves, "it must be a power of two up to 1024");
            }
        }
        if self.stall_seconds == 0 {
            return self.field("stall_seconds", &0, "it must be at least 1");
        }
        self.drill()?;
        self.check_checkpoints()?;
        if !(0.0..1.0).contains(&self.dropout) {
            return self.field("dropout", &self.dropout, "it must be at least 0 and below 1");
        }
        let rates =
            [("lr", self.lr), ("weight_decay", self.weight_decay), ("clip", self.clip), ("eps", self.eps)];
        for (field, value) in rates {
            if !value.is_finite() || value < 0.0 {
                return self.field(field, &value, "it must be a number not below 0");
            }
        }
        if !(0.0..=1.0).contains(&self.lr_floor) {
            return self.field("lr_floor", &self.lr_floor, "it must be at least 0 and at most 1");
        }
        if let (Some(tokenizer), None) = (&self.tokenizer, &self.data) {
            return self.field(
                "tokenizer",
                &tokenizer.display(),
                "it needs `data`: the embedded text is bytes",
            );
        }
        self.check_watching()?;
        for (field, value) in [("beta1", self.beta1), ("beta2", self.beta2), ("momentum", self.momentum)] {
            if !(0.0..1.0).contains(&value) {
                return self.field(field, &value, "it must be at least 0 and below 1");
            }
        }
        Ok(())
    }

    fn check_watching(&self) -> Result<(), ConfigError> {
        let counts = [
            ("eval_every", self.eval_every),
            ("eval_batches", Some(self.eval_batches)),
            ("hash_every", self.hash_every),
        ];
        if let Some((field, _)) = counts.into_iter().find(|(_, count)| *count == Some(0)) {
            return self.field(field, &0, "it must be at least 1");
        }
        if self.eval_share.is_nan() || self.eval_share <= 0.0 || self.eval_share >= 1.0 {
            return self.field("eval_share", &self.eval_share, "it must be above 0 and below 1");
        }
        match self.stop_at_loss.filter(|loss| !loss.is_finite()) {
            Some(loss) => self.field("stop_at_loss", &loss, "it must be a number"),
            None => Ok(()),
        }
    }

    fn check_checkpoints(&self) -> Result<(), ConfigError> {
        if self.resume && self.checkpoint.is_none() {
            return self.field("resume", &true, "it needs `checkpoint`: the directory to resume from");
        }
        if let (None, Some(Drill::Save(_)), Some(text)) = (&self.checkpoint, self.drill()?, &self.drill) {
            return self.field("drill", text, "it needs `checkpoint`: nothing is saved without");
        }
        if self.checkpoint.is_none() {
            let asked = [
                ("every", self.every.map(|every| every.to_string())),
                ("every_minutes", self.every_minutes.map(|minutes| minutes.to_string())),
                ("strict", self.strict.then(|| "true".into())),
                ("sync_checkpoints", self.sync_checkpoints.then(|| "true".into())),
            ];
            if let Some((field, value)) = asked.into_iter().find_map(|(field, value)| Some((field, value?))) {
                return self.field(field, &value, "it needs `checkpoint`: the directory to write to");
            }
        }
        if self.every == Some(0) {
            return self.field("every", &0, "it must be at least 1");
        }
        if self.keep == 0 {
            return self.field("keep", &0, "it must be at least 1");
        }
        match (self.every, self.every_minutes) {
            (Some(_), Some(minutes)) => {
                self.field("every_minutes", &minutes, "it goes without `every`: take one of them out")
            }
            (None, Some(minutes)) if !(0.0..1e6).contains(&minutes) => {
                self.field("every_minutes", &minutes, "it must be at least 0 and below a million")
            }
            _ => Ok(()),
        }
    }

    pub(super) fn field<T>(
        &self,
        field: &'static str,
        value: &dyn std::fmt::Display,
        wanted: &'static str,
    ) -> Result<T, ConfigError> {
        Err(ConfigError::Field { field, value: value.to_string(), wanted })
    }
}
