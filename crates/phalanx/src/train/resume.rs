//! Where a run continues: at the newest checkpoint that is whole, if it is to be resumed.
//!
//! All ranks of a job come to the same conclusion: rank 0 lists the checkpoints, every rank checks some of the files, and
//! all ranks exchange their results.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use phalanx_net::Network;
use serde_json::Value;

use super::progress::EarlierProgress;
use super::{OPTIONS, OptionSpec, Run, TrainConfig};
use crate::Error;
use crate::ckpt::{
    Checkpoint, Checkpoints, CkptError, Disk, SaveError, Writer, config_of, distribute, name_of,
};
use crate::data::DataIdentity;
use crate::job::{JobError, shared};

/// A message about a run that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Information: the run is as the user asked for it.
    Note(String),
    /// A problem that a user should look at; the run goes on.
    Warning(String),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Note(text) => write!(f, "note: {text}"),
            Notice::Warning(text) => write!(f, "warning: {text}"),
        }
    }
}

/// The checkpoint that a run continues from, if there is one, and messages about it.
#[derive(Default)]
pub struct ResumePoint {
    checkpoint: Option<Checkpoint>,
    notices: Vec<Notice>,
}

impl ResumePoint {
    /// Looks for a checkpoint if the run is to be resumed. A directory with checkpoints is an error for a new run.
    pub fn new(config: &TrainConfig, network: Option<&dyn Network>) -> Result<ResumePoint, Error> {
        let Some(dir) = &config.checkpoint else { return Ok(ResumePoint::default()) };
        let checkpoints = Checkpoints::open(dir);
        let steps = list(&checkpoints, network)?;
        match (config.resume, steps.last()) {
            (true, Some(_)) => newest_whole(config, &checkpoints, dir, &steps, network),
            (true, None) => {
                let text = format!("{} has no checkpoint to resume: starting from scratch", dir.display());
                Ok(ResumePoint { checkpoint: None, notices: vec![Notice::Note(text)] })
            }
            (false, None) => Ok(ResumePoint::default()),
            (false, Some(&step)) => Err(CkptError::Present { dir: dir.clone(), step }.into()),
        }
    }

    /// The checkpoint, if there is one, and the messages.
    pub fn into_parts(self) -> (Option<Checkpoint>, Vec<Notice>) {
        (self.checkpoint, self.notices)
    }

    /// Steps that were done before.
    pub fn steps(&self) -> u64 {
        self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.manifest().run.step)
    }
}

/// The steps of all checkpoints, as rank 0 sees them.
fn list(checkpoints: &Checkpoints, network: Option<&dyn Network>) -> Result<Vec<u64>, Error> {
    let Some(network) = network else { return Ok(checkpoints.list()?) };
    let what = "list of checkpoints";
    let text = shared::of_first(network, what, || {
        Ok(checkpoints.list()?.iter().map(u64::to_string).collect::<Vec<_>>().join(" "))
    })?;
    let steps: Result<Vec<u64>, _> = text.split_whitespace().map(str::parse).collect();
    Ok(steps.map_err(|_| JobError::Garbled { rank: 0, what })?)
}

/// The newest checkpoint in which no rank finds anything wrong. Where rank 0 writes for all, it looks alone, and gives it
/// to the others.
fn newest_whole(
    config: &TrainConfig,
    checkpoints: &Checkpoints,
    dir: &Path,
    steps: &[u64],
    network: Option<&dyn Network>,
) -> Result<ResumePoint, Error> {
    let gathered = network.filter(|_| config.gather_checkpoints);
    let (rank, ranks) = network.map_or((0, 1), |network| (network.rank(), network.size()));
    let look = |step| match (gathered, rank) {
        (None, _) => checkpoints.checkpoint(step)?.verify_share(rank, ranks),
        (Some(_), 0) => checkpoints.checkpoint(step)?.verify(),
        (Some(_), _) => Ok(()),
    };
    let mut problems = Vec::new();
    for &step in steps.iter().rev() {
        let mine = look(step).err().map(|error| error.to_string());
        if let Some(problem) = first_problem(network, mine)? {
            problems.push(format!("{} is damaged: {problem}", name_of(step)));
            continue;
        }
        if let Some(network) = gathered {
            let writer = Writer::new(Arc::new(Disk), dir, config.keep);
            let mine = distribute(network, checkpoints, &writer, step)?.err();
            if let Some(problem) = first_problem(Some(network), mine)? {
                return Err(CkptError::Unusable { dir: dir.into(), problems: vec![problem] }.into());
            }
        }
        let damaged =
            |problem: String| Notice::Warning(format!("{problem}; the checkpoint before it is used"));
        let notices = problems.into_iter().map(damaged).collect();
        return Ok(ResumePoint { checkpoint: Some(checkpoints.checkpoint(step)?), notices });
    }
    Err(CkptError::Unusable { dir: dir.into(), problems }.into())
}

/// What the first rank with a problem says.
fn first_problem(network: Option<&dyn Network>, mine: Option<String>) -> Result<Option<String>, JobError> {
    let Some(network) = network else { return Ok(mine) };
    let all = network.all_gather(mine.unwrap_or_default().as_bytes())?;
    let found = (0..).zip(all).find(|(_, text): &(u32, Vec<u8>)| !text.is_empty());
    Ok(found.map(|(rank, text)| format!("rank {rank}: {}", String::from_utf8_lossy(&text))))
}

impl Run {
    /// Restores the state of a checkpoint, if there is one.
    pub(super) fn continue_from(&mut self, point: ResumePoint) -> Result<(), Error> {
        let ResumePoint { checkpoint, notices } = point;
        self.notices.extend(notices);
        let Some(checkpoint) = checkpoint else { return self.begin_with_pretrained() };
        let before = &checkpoint.manifest().run;
        let path = checkpoint.path();
        check_model(path, &before.model, &json(&self.model)?)?;
        self.check_data(path, before.data.as_ref())?;
        self.check_precision(&checkpoint)?;
        checkpoint.restore(self.trainer.session_mut())?;
        self.trainer.continue_after(before.step);
        self.progress.earlier =
            EarlierProgress { steps: before.step, tokens: before.tokens, loss: Some(before.loss) };
        if let Some(evaluation) = &mut self.evaluation {
            evaluation.losses = before.evaluations;
        }
        let defaults = json(&TrainConfig::default())?;
        let changed = changes(&before.config, &json(&self.config)?, &defaults);
        let changed = match changed.as_slice() {
            [] => String::new(),
            changed => format!("; other than before: {}", changed.join(", ")),
        };
        let step = before.step;
        let text = format!("resumed after step {step} from {}{changed}", path.display());
        self.notices.push(Notice::Note(text));
        self.stop_if_no_better();
        Ok(())
    }
}

impl Run {
    /// Checks that the data is that of the run before, unless the user accepts a change.
    fn check_data(&self, path: &Path, before: Option<&DataIdentity>) -> Result<(), CkptError> {
        match (before, &self.identity) {
            (Some(found), Some(wanted)) if found != wanted && !self.config.accept_data_change => {
                let (found, wanted) = (found.to_string(), wanted.to_string());
                Err(CkptError::Data { path: path.into(), found, wanted })
            }
            _ => Ok(()),
        }
    }

    /// Checks that products are computed as in the run before, unless the user wants a change.
    fn check_precision(&self, checkpoint: &Checkpoint) -> Result<(), CkptError> {
        let (found, wanted) = (config_of(checkpoint)?.precision, self.config.precision);
        match found == wanted || self.config.change_precision {
            true => Ok(()),
            false => Err(CkptError::Precision { path: checkpoint.path().into(), found, wanted }),
        }
    }
}

/// A value as it is read from a manifest: by way of text, in which a 32-bit float has the digits that people gave it.
pub(crate) fn json(value: &impl serde::Serialize) -> Result<Value, Error> {
    let json = serde_json::to_vec(value).and_then(|text| serde_json::from_slice(&text));
    json.map_err(|error| SaveError::Manifest(error.into()).into())
}

/// Checks that the model is the same; dropout may change.
fn check_model(path: &Path, found: &Value, wanted: &Value) -> Result<(), CkptError> {
    let first =
        value_differences("model", found, wanted).into_iter().find(|(what, ..)| !what.ends_with(".dropout"));
    first.map_or(Ok(()), |(what, found, wanted)| {
        Err(CkptError::Mismatch { path: path.into(), what: format!("`{what}`"), found, wanted })
    })
}

/// The options that change the bits, with both values. A run that does not know an option had its default.
fn changes(before: &Value, now: &Value, defaults: &Value) -> Vec<String> {
    let value = |config: &Value, option: &OptionSpec| {
        let former = || config.get(option.alias?);
        config.get(option.name).or_else(former).or(defaults.get(option.name)).cloned().unwrap_or_default()
    };
    let changed =
        OPTIONS.iter().filter(|option| option.affects_bits() && value(before, option) != value(now, option));
    let describe = |option: &OptionSpec| {
        format!("{} is {} (was {})", option.name, value(now, option), value(before, option))
    };
    changed.map(describe).collect()
}

/// Where two values differ: the path, and both sides as text.
pub(crate) fn value_differences(path: &str, found: &Value, wanted: &Value) -> Vec<(String, String, String)> {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            let mut names: Vec<&String> = found.keys().chain(wanted.keys()).collect();
            names.sort_unstable();
            names.dedup();
            let below = |name: &String| {
                let [found, wanted] = [found, wanted].map(|map| map.get(name).unwrap_or(&Value::Null));
                value_differences(&format!("{path}.{name}"), found, wanted)
            };
            names.into_iter().flat_map(below).collect()
        }
        _ if found == wanted => Vec::new(),
        (Value::Array(found), Value::Array(wanted)) if found.len() == wanted.len() => {
            let pairs = found.iter().zip(wanted).enumerate();
            pairs
                .flat_map(|(at, (found, wanted))| value_differences(&format!("{path}[{at}]"), found, wanted))
                .collect()
        }
        (Value::Array(found), Value::Array(wanted)) => {
            let [found, wanted] = [found, wanted].map(|list| format!("a list of {}", list.len()));
            vec![(path.into(), found, wanted)]
        }
        _ => vec![(path.into(), found.to_string(), wanted.to_string())],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_are_of_options_that_affect_bits_also_under_former_names() {
        let before = json!({ "leaves_batch": 8, "blocks_feature": 2, "lr": 0.003, "cores": 1 });
        let now = json!({ "blocks_batch": 4, "blocks_feature": 2, "lr": 0.003, "cores": 2 });
        let defaults = super::json(&TrainConfig::default()).unwrap();
        assert_eq!(changes(&before, &now, &defaults), ["blocks_batch is 4 (was 8)"]);
    }

    #[test]
    fn a_run_that_knows_no_precision_had_f32() {
        let defaults = super::json(&TrainConfig::default()).unwrap();
        let with = |precision: &str| json!({ "precision": precision });
        assert_eq!(changes(&json!({}), &with("f32"), &defaults), [""; 0]);
        let changed = changes(&json!({}), &with("bf16-pair"), &defaults);
        assert_eq!(changed, ["precision is \"bf16-pair\" (was \"f32\")"]);
    }
}
