//! What a training leaves on disk and takes up from there: checkpoints with everything, and weights alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use phalanx_ir::Shape;
use phalanx_plan::nearest;
use phalanx_program::PortKind;
use safetensors::tensor::{Dtype, TensorView};

use super::{TrainingError, TrainingRun};
use crate::ckpt::{Checkpoint, Checkpoints, CkptError, Disk, RunState, TensorKind, Writer, config_of};
use crate::hf::{self, Mismatch, stored_tensors};
use crate::job::shared;
use crate::train::checkpoints::save_now;
use crate::train::resume::ResumePoint;
use crate::train::{Notice, TrainConfig, json};
use crate::{Error, Feed, Session};

/// How often `--checkpoint` saves if nothing is said.
const USUAL_MINUTES: f64 = 10.0;

/// Weights by name, with their shapes.
type Found = BTreeMap<String, (Shape, Option<Vec<f32>>)>;

impl TrainingRun<'_> {
    /// Writes weights, optimizer state and the number of steps below `dir`, as `step-00000100`; the last `--keep` stay. In
    /// a job all ranks call it together.
    pub fn save(&mut self, dir: impl AsRef<Path>) -> Result<(), Error> {
        self.guarded(|run| {
            run.settle()?;
            run.save_unguarded(dir.as_ref())
        })
    }

    fn save_unguarded(&mut self, dir: &Path) -> Result<(), Error> {
        let (step, network) = (self.steps(), self.network());
        if !self.writers.contains_key(dir) {
            let writer = Writer::new(Arc::new(Disk), dir, self.config.keep);
            let prepare = || {
                writer.prepare().map_err(|error| CkptError::Directory(Box::new(error)))?;
                match Checkpoints::open(dir).list()?.last() {
                    Some(&found) if found > step => {
                        Err(CkptError::Present { dir: dir.into(), step: found }.into())
                    }
                    _ => Ok::<_, Error>(String::new()),
                }
            };
            match &network {
                None => prepare()?,
                Some(network) => shared::of_first(&**network, "directory for checkpoints", prepare)?,
            };
            self.writers.insert(dir.into(), writer);
        }
        let is_there = Checkpoints::open(dir).list()?.contains(&step);
        let state = self.state()?;
        let session = self.trainer.session_mut();
        let Some(writer) = self.writers.get(dir).filter(|_| !is_there) else { return Ok(()) };
        save_now(writer, session, state, network.as_deref())
    }

    /// Everything besides tensors that the next step depends on.
    fn state(&self) -> Result<RunState, Error> {
        Ok(RunState {
            step: self.steps(),
            tokens: 0,
            loss: self.last.as_ref().map_or(0.0, |last| last.loss),
            evaluations: None,
            data: None,
            seed: self.settings.seed,
            learning_rate: self.config.learning_rate(),
            model: match &self.described {
                Some(model) => json(model)?,
                None => serde_json::json!({ "model": "own", "name": self.name }),
            },
            config: json(&self.config)?,
            plan: self.settings.plan.to_text(),
            program: format!("{:032x}", self.session().program().hash()),
        })
    }

    /// Whether a checkpoint is due by the clock.
    pub(super) fn is_time_to_save(&self) -> bool {
        let TrainConfig { checkpoint, every, every_minutes, .. } = &self.config;
        let most = Duration::from_secs_f64(60.0 * every_minutes.unwrap_or(USUAL_MINUTES));
        checkpoint.is_some() && every.is_none() && self.saved.1.elapsed() >= most
    }

    /// Whether `--checkpoint` asks to save after this step, whenever it ends.
    pub(super) fn is_step_to_save(&self, step: u64) -> bool {
        self.config.checkpoint.is_some() && self.config.every.is_some_and(|every| step.is_multiple_of(every))
    }

    /// Saves below `--checkpoint`.
    pub(super) fn save_as_configured(&mut self) -> Result<(), Error> {
        self.is_save_due = false;
        let Some(dir) = self.config.checkpoint.clone() else { return Ok(()) };
        self.save_unguarded(&dir)?;
        self.saved = (self.steps(), std::time::Instant::now());
        Ok(())
    }

    /// Saves what was done since the last checkpoint of `--checkpoint`.
    pub(super) fn save_at_end(&mut self) -> Result<(), Error> {
        self.settle()?;
        match self.config.checkpoint.clone() {
            Some(dir) if self.steps() > self.saved.0 => self.save_unguarded(&dir),
            _ => Ok(()),
        }
    }

    /// Goes on from the newest whole checkpoint below `--checkpoint`, if `--resume` asks for it. A directory with
    /// checkpoints is an error for a new run.
    pub(super) fn resume_if_asked(&mut self) -> Result<(), Error> {
        let point = ResumePoint::new(&self.config, self.network().as_deref())?;
        self.resume_from(point)
    }

    /// Goes on from the newest whole checkpoint below `dir`: weights, optimizer state and the number of steps. In a job all
    /// ranks call it together.
    pub fn resume(&mut self, dir: impl AsRef<Path>) -> Result<(), Error> {
        self.guarded(|run| {
            run.settle()?;
            let config = run.config.clone().checkpoint(Some(dir.as_ref().into())).resume(true);
            run.resume_from(ResumePoint::new(&config, run.network().as_deref())?)
        })
    }

    fn resume_from(&mut self, point: ResumePoint) -> Result<(), Error> {
        let (checkpoint, notices) = point.into_parts();
        notices.into_iter().for_each(|notice| self.note(notice));
        let Some(checkpoint) = checkpoint else { return self.begin_with_pretrained() };
        let (found, wanted) = (config_of(&checkpoint)?.precision, self.config.precision);
        if found != wanted && !self.config.change_precision {
            return Err(CkptError::Precision { path: checkpoint.path().into(), found, wanted }.into());
        }
        checkpoint.restore(self.trainer.session_mut())?;
        let step = checkpoint.manifest().run.step;
        self.continue_after(step);
        self.note(Notice::Note(format!("resumed after step {step} from {}", checkpoint.path().display())));
        Ok(())
    }

    /// Takes the weights of `--hf`, if a new run of a model of the zoo is to begin with them.
    fn begin_with_pretrained(&mut self) -> Result<(), Error> {
        let Some(dir) = &self.config.hf else { return Ok(()) };
        for (name, values) in &hf::read_weights(dir, &hf::graph_tensors(&self.built.graph))? {
            self.trainer.session_mut().feed(name, values)?;
        }
        Ok(())
    }

    /// Writes a model of the zoo as `config.json` and `model.safetensors`, which transformers or torchvision load and
    /// `--hf` reads. In a job all ranks call it and the first one writes.
    pub fn save_model(&mut self, dir: impl AsRef<Path>) -> Result<(), Error> {
        self.guarded(|run| {
            let weights = run.session().weights()?;
            match &run.described {
                Some(model) if run.rank() == 0 => run.config.write_weights(dir.as_ref(), model, weights),
                Some(_) => Ok(()),
                None => Err(TrainingError::NotDescribed { name: run.name.clone() }.into()),
            }
        })
    }

    /// Takes all weights by name from a checkpoint, a directory of checkpoints, a `.safetensors` file or a directory with
    /// `model.safetensors`. The optimizer starts anew.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.guarded(|run| {
            run.settle()?;
            let (path, found) = (path.as_ref(), weights_in(path.as_ref())?);
            let mismatch = run.take_weights(&found)?;
            match mismatch.is_empty() {
                true => Ok(()),
                false => {
                    Err(TrainingError::Weights { path: path.into(), mismatch: Box::new(mismatch) }.into())
                }
            }
        })
    }

    /// Takes those weights that have the name and shape of a parameter; the names of parameters that are left as they are.
    pub fn load_matching(&mut self, path: impl AsRef<Path>) -> Result<Vec<String>, Error> {
        self.guarded(|run| {
            run.settle()?;
            let (path, found) = (path.as_ref(), weights_in(path.as_ref())?);
            let all = run.session().names(PortKind::Param).count();
            let mismatch = run.take_weights(&found)?;
            let left = mismatch.missing.into_iter().map(|(name, _)| name);
            let left: Vec<String> =
                left.chain(mismatch.reshaped.into_iter().map(|(name, ..)| name)).collect();
            match left.len() < all {
                true => Ok(left),
                false => Err(TrainingError::NothingFits { path: path.into(), found: found.len() }.into()),
            }
        })
    }

    /// Sets a parameter or state. In a job all ranks call it with the same values.
    pub fn set_weight(&mut self, name: &str, values: &[f32]) -> Result<(), Error> {
        self.settle()?;
        let session = self.trainer.session_mut();
        let names: Vec<&str> = session.names(PortKind::Param).collect();
        if !names.contains(&name) {
            let near = match nearest(name, &names) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("it has {}", shown(&names)),
            };
            return Err(TrainingError::NoWeight { name: name.into(), near }.into());
        }
        session.feed(name, Feed::F32(values))
    }

    /// The parameter or state called `name`, after the steps in flight. In a job all ranks call it together.
    pub fn read_weight(&mut self, name: &str) -> Result<Vec<f32>, Error> {
        self.settle()?;
        Ok(self.session().read(name)?.into_owned())
    }

    /// A fingerprint of all parameters and states, after the steps in flight. In a job all ranks call it together.
    pub fn weights_hash(&mut self) -> Result<u128, Error> {
        self.settle()?;
        self.session().weights_hash()
    }

    /// Sets the parameters that are found; what does not fit.
    fn take_weights(&mut self, found: &Found) -> Result<Mismatch, Error> {
        let session = self.trainer.session_mut();
        let wanted = shapes(session);
        let mut mismatch = Mismatch::default();
        for (name, shape) in &wanted {
            match found.get(name) {
                None => mismatch.missing.push((name.clone(), shape.clone())),
                Some((found, _)) if found != shape => {
                    mismatch.reshaped.push((name.clone(), found.clone(), shape.clone()));
                }
                Some((_, None)) => mismatch.unreadable.push((name.clone(), "not a float".into())),
                Some((_, Some(values))) => session.feed(name, values)?,
            }
        }
        let unexpected = found.iter().filter(|(name, _)| !wanted.contains_key(*name));
        mismatch.unexpected.extend(unexpected.map(|(name, (shape, _))| (name.clone(), shape.clone())));
        Ok(mismatch)
    }

    /// Writes the weights alone to a `.safetensors` file, which PyTorch and `load` read by name. In a job all ranks call it
    /// and the first one writes.
    pub fn export(&mut self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.guarded(|run| {
            run.settle()?;
            let (path, weights) = (path.as_ref(), run.session().weights()?);
            if run.rank() > 0 {
                return Ok(());
            }
            let shapes = shapes(run.session());
            let failed = |problem: String| TrainingError::Write { path: path.into(), problem };
            let mut views = Vec::new();
            for (name, values) in &weights {
                let shape = shapes.get(name).map_or_else(Vec::new, |shape| shape.dims().to_vec());
                let view = TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(values));
                views.push((name.as_str(), view.map_err(|error| failed(error.to_string()))?));
            }
            let written = safetensors::serialize_to_file(views, None, path);
            Ok(written.map_err(|error| failed(error.to_string()))?)
        })
    }
}

/// The first of several names.
fn shown(names: &[&str]) -> String {
    let first: Vec<String> = names.iter().take(8).map(|name| format!("`{name}`")).collect();
    let more = if names.len() > first.len() {
        format!(" and {} more", names.len() - first.len())
    } else {
        String::new()
    };
    first.join(", ") + &more
}

/// The shapes of all parameters and states.
fn shapes(session: &Session) -> BTreeMap<String, Shape> {
    let ports = session.program().ports().iter().filter(|port| port.kind == PortKind::Param);
    ports.map(|port| (port.name.clone(), port.ty.shape.clone())).collect()
}

/// All weights of a file or directory.
fn weights_in(path: &Path) -> Result<Found, Error> {
    let checkpoints = Checkpoints::open(path);
    let checkpoint = match path.is_dir() {
        true if path.join("manifest.json").is_file() => Some(Checkpoint::open(path)?),
        true => checkpoints.latest()?,
        false => None,
    };
    let Some(checkpoint) = checkpoint else { return Ok(stored_tensors(path)?) };
    checkpoint.verify()?;
    let params = checkpoint.manifest().tensors.iter().filter(|tensor| tensor.kind == TensorKind::Param);
    let weight = |name: &str, shape: &[usize]| -> Result<_, Error> {
        let bytes = checkpoint.tensor(name)?;
        let values = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        Ok((name.to_string(), (Shape::new(shape), Some(values))))
    };
    params.map(|tensor| weight(&tensor.name, &tensor.shape)).collect()
}
