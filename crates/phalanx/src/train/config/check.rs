//! What is wrong with a configuration, and setting options by name.

use std::fmt::Display;
use std::path::PathBuf;

use phalanx_link::LinkError;
use phalanx_plan::nearest;

use super::{OPTIONS, OptionSpec, TrainConfig};
use crate::cluster::ClusterError;
use crate::job::{Drill, DrillError};
use crate::models::PresetError;
use crate::train::options::Mark;

/// Why a configuration is wrong.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The file is wrong.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: Box<ConfigError> },
    /// A line of the file is wrong.
    #[error("line {line}: {source}")]
    Line { line: usize, source: Box<ConfigError> },
    /// The file is not TOML.
    #[error(transparent)]
    Parse(#[from] toml::de::Error),
    /// There is no such option.
    #[error("there is no option `{key}`: {hint}")]
    Unknown { key: String, hint: String },
    /// No such model or size.
    #[error(transparent)]
    Preset(#[from] PresetError),
    /// The option `link` is no link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The option `cluster` names no cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The cluster has fewer devices than the plan.
    #[error(
        "the plan has {wanted} devices, but the cluster {devices}: take a smaller plan, or another --cluster"
    )]
    SmallCluster { devices: usize, wanted: usize },
    /// The option `drill` is no drill.
    #[error(transparent)]
    Drill(#[from] DrillError),
    /// An option has a value it cannot have.
    #[error("`{field}` is {value}; {wanted}")]
    Field { field: &'static str, value: String, wanted: String },
}

impl ConfigError {
    /// The error of a name that no option has.
    pub(super) fn unknown(key: &str) -> ConfigError {
        ConfigError::unknown_of(key, OPTIONS.iter().map(|option| option.name))
    }

    /// The same, if only some options can be used.
    pub(in crate::train) fn unknown_of(key: &str, names: impl Iterator<Item = &'static str>) -> ConfigError {
        let names: Vec<&str> = names.collect();
        let hint = match nearest(key, &names) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("use one of {}", names.join(", ")),
        };
        ConfigError::Unknown { key: key.into(), hint }
    }
}

impl TrainConfig {
    /// The value of the option of this name as a user writes it, if it is set.
    pub fn value(&self, name: &str) -> Option<String> {
        let mut values = OPTIONS.iter().zip(self.values());
        values.find(|(option, _)| option.name == name).and_then(|(_, (value, _))| value)
    }

    /// Sets the option of this name to a value as a user writes it. An option that it excludes gets its default.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), ConfigError> {
        let option = OptionSpec::find(name).ok_or_else(|| ConfigError::unknown(name))?;
        if !self.assign(option.name, Some(text)) {
            return Err(option.misread(text));
        }
        let keeps_rule =
            OPTIONS.iter().zip(self.values()).all(|(other, (_, keeps))| keeps || other.name != option.name);
        if !keeps_rule {
            return self.field(option.name, &text, &format!("it must be {}", option.rule));
        }
        if let Some(other) = option.excludes() {
            self.assign(other, None);
        }
        Ok(())
    }

    /// Checks every option by itself and with those that it needs or excludes.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (option, (value, keeps_rule)) in OPTIONS.iter().zip(self.values()) {
            if let (Some(value), false) = (value, keeps_rule) {
                return self.field(option.name, &value, &format!("it must be {}", option.rule));
            }
        }
        self.check_use(&[], |mark, _| self.needs(mark))?;
        match (self.parse_drill()?, &self.checkpoint, &self.drill) {
            (Some(Drill::Save(_)), None, Some(text)) => {
                self.field("drill", text, "it needs `checkpoint`: nothing is saved without")
            }
            _ => Ok(()),
        }
    }

    /// Checks that options that a user has `given` have an effect with the others, even if they are the defaults.
    pub fn check_given(&self, given: &[&str]) -> Result<(), ConfigError> {
        self.check_use(given, |mark, _| self.needs(mark))
    }

    /// Checks that what is `given` or set has an effect in a process that no launcher has started.
    pub fn check_alone(&self, given: &[&str]) -> Result<(), ConfigError> {
        let wanted = "it is for a job of several processes: leave it out, or start one with `phalanx launch`";
        self.check_use(given, |mark, _| (*mark == Mark::InJob).then(|| wanted.into()))
    }

    /// Checks that what is set has an effect on so many devices.
    pub(super) fn check_devices(&self, devices: usize) -> Result<(), ConfigError> {
        let wanted =
            "it is about transfers between devices, and there is one device: leave it out, or choose a plan";
        self.check_use(&[], |mark, value| match mark {
            Mark::SeveralDevices(fine) if devices == 1 && !fine.contains(&value) => Some(wanted.into()),
            _ => None,
        })
    }

    /// What is allowed and hardly meant.
    pub fn warnings(&self) -> Vec<String> {
        let have = std::thread::available_parallelism().map_or(1, usize::from);
        let cores = (self.cores > have).then(|| {
            format!(
                "`cores` is {}, but this machine has {have}: threads take turns on them, which is slower",
                self.cores
            )
        });
        let (warmup, steps) = (self.warmup, self.steps);
        let warmup = (warmup > steps && self.is_set("warmup")).then(|| {
            format!(
                "`warmup` is {warmup}, but the run ends after {steps} steps: the learning rate never reaches {:?}",
                self.lr
            )
        });
        cores.into_iter().chain(warmup).collect()
    }

    /// Looks at the marks of every option that is given or set; `unmet` is what a mark wants and does not have.
    fn check_use(
        &self,
        given: &[&str],
        unmet: impl Fn(&Mark, &str) -> Option<String>,
    ) -> Result<(), ConfigError> {
        for (option, (value, _)) in OPTIONS.iter().zip(self.values()) {
            let Some(value) = value.filter(|_| given.contains(&option.name) || self.is_set(option.name))
            else {
                continue;
            };
            if let Some(wanted) = option.marks.iter().find_map(|mark| unmet(mark, &value)) {
                return self.field(option.name, &value, &wanted);
            }
        }
        Ok(())
    }

    /// What a mark wants of the other options and does not have.
    fn needs(&self, mark: &Mark) -> Option<String> {
        match mark {
            Mark::Needs(other) if !self.is_set(other) => {
                Some(format!("it needs `{other}`, which is not set"))
            }
            Mark::Excludes(other) if self.is_set(other) => {
                Some(format!("it goes without `{other}`: take one of them out"))
            }
            Mark::OnlyWith(other, values) => {
                let value = self.value(other).unwrap_or_default();
                let unused =
                    || format!("it is for `{other}` {}, which is {value}: leave it out", values.join(", "));
                (!values.contains(&value.as_str())).then(unused)
            }
            _ => None,
        }
    }

    /// Whether an option has another value than by default.
    pub(super) fn is_set(&self, name: &str) -> bool {
        self.value(name) != TrainConfig::default().value(name)
    }

    pub(super) fn field<T>(
        &self,
        field: &'static str,
        value: &dyn Display,
        wanted: &str,
    ) -> Result<T, ConfigError> {
        Err(ConfigError::Field { field, value: value.to_string(), wanted: wanted.into() })
    }
}
