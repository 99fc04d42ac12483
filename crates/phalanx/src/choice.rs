//! Which plan a run follows: a preset by name or a file, for how many devices.

use std::path::{Path, PathBuf};

use phalanx_ir::graph::Graph;
use phalanx_plan::{PRESETS, Plan, PlanError, preset};

use crate::files;
use crate::setters::with_setters;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ChoiceError {
    /// Several devices and nothing to do for them.
    #[error(
        "`devices` is {devices} but no plan says what they do: choose one with --plan, such as --plan dp"
    )]
    NoPlan { devices: usize },
    /// A preset without sizes, for an unknown number of devices.
    #[error(
        "the plan `{plan}` takes as many devices as there are: say how many with --devices, or in its name as in `{plan}2`"
    )]
    HowMany { plan: String },
    /// The file is empty.
    #[error("the plan {} is empty: see `phalanx plan write --plan dp2` for what a plan looks like", path.display())]
    Empty { path: PathBuf },
    /// The file cannot be read.
    #[error("cannot read the plan {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The plan is for another number of devices.
    #[error(
        "the plan `{plan}` is for {wanted} devices, not {devices}: set --devices {wanted} or change its mesh"
    )]
    Devices { plan: String, wanted: usize, devices: usize },
    /// The plan does not suit the model, or is not a plan.
    #[error("{}{source}", if source.names_preset() { String::new() } else { format!("plan `{plan}`: ") })]
    Plan { plan: String, source: Box<PlanError> },
}

with_setters! {
    /// What a user says about the plan. Fields are also set by the methods of the same names.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct PlanChoice {
        /// A preset such as `dp2-tp2`, a file, or the text of one.
        pub plan: Option<String>,
        /// How many devices; what the plan says if absent.
        pub devices: Option<usize>,
        /// Parts into which the batch is cut, if not what the plan says.
        pub microbatches: Option<usize>,
    }
}

impl PlanChoice {
    /// The plan for `model`.
    pub fn resolve(&self, model: &Graph) -> Result<Plan, ChoiceError> {
        let mut plan = match (&self.plan, self.devices.unwrap_or(1)) {
            (None, 1) => Plan::default(),
            (None, devices) => return Err(ChoiceError::NoPlan { devices }),
            (Some(name), _) => self.named(name, model)?,
        };
        if let Some(microbatches) = self.microbatches {
            plan.microbatches = microbatches;
        }
        let wanted = plan.mesh.devices();
        match self.devices {
            Some(devices) if devices != wanted => {
                Err(ChoiceError::Devices { plan: plan.name, wanted, devices })
            }
            _ => Ok(plan),
        }
    }

    /// Whether a plan of this name says nothing about the number of devices.
    pub fn needs_devices(name: &str) -> bool {
        name != "one" && !Path::new(name).is_file() && PRESETS.iter().any(|(known, _)| *known == name)
    }

    /// Whether a plan of this name is a file: one is there, or the name looks like one. Else it is a preset.
    pub fn is_file(name: &str) -> bool {
        let first = name.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default();
        let is_preset = PRESETS.iter().any(|(known, _)| *known == first || name.starts_with(known));
        Path::new(name).is_file() || (!is_preset && name.contains(['.', '/']))
    }

    /// The plan of a file or a preset.
    fn named(&self, name: &str, model: &Graph) -> Result<Plan, ChoiceError> {
        let failed = |error| ChoiceError::Plan { plan: name.to_string(), source: Box::new(error) };
        if name.contains('\n') {
            let failed = |error| ChoiceError::Plan { plan: "text".into(), source: Box::new(error) };
            return Plan::parse(name).map_err(failed);
        }
        if PlanChoice::is_file(name) {
            let path = PathBuf::from(name);
            let text =
                files::read_text(&path).map_err(|source| ChoiceError::Read { path: path.clone(), source })?;
            if text.trim().is_empty() {
                return Err(ChoiceError::Empty { path });
            }
            return Plan::parse(&text).map_err(failed);
        }
        if PlanChoice::needs_devices(name) && self.devices.is_none() {
            return Err(ChoiceError::HowMany { plan: name.to_string() });
        }
        preset(name, self.devices.unwrap_or_else(|| sizes(name)), model).map_err(failed)
    }
}

/// The product of the sizes in a preset's name.
pub(crate) fn sizes(name: &str) -> usize {
    let size = |part: &str| {
        let digits = part.trim_start_matches(|c: char| !c.is_ascii_digit());
        // `zero1` is a name, not a size.
        let digits = part.strip_prefix("zero1").unwrap_or(digits);
        digits.parse::<usize>().unwrap_or(1)
    };
    name.split('-').map(size).fold(1, usize::saturating_mul)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_multiply() {
        assert_eq!(["dp2-tp4", "zero14", "zero1", "dp", "fsdp2-tp2-pp2"].map(sizes), [8, 4, 1, 1, 8]);
    }
}
