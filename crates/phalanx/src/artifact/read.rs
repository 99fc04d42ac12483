//! Loading: every byte is compared with its checksum, every text is parsed and verified, and what they say together is
//! described again and compared with the manifest.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use phalanx_ir::graph::Graph;
use phalanx_lower::HYPER;
use phalanx_plan::Plan;
use phalanx_program::{Placement, PortKind, Program};
use serde::Deserialize;
use serde_json::Value;

use super::manifest::{ArtifactManifest, ArtifactSettings, FORMAT, RunRecipe, VERSION};
use super::{Artifact, ArtifactError, ClusterText, CompiledStep, EVALUATE, TRAIN, TrainRecipe, kernels};
use crate::Error;
use crate::cluster::Cluster;
use crate::costs::CostTable;
use crate::files;
use crate::pipeline::first;
use crate::seal::{self, SealError, checksum};
use crate::train::value_differences;

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const PLAN: &str = "plan.toml";
pub(super) const COSTS: &str = "costs.json";
pub(super) const CLUSTER: &str = "cluster.toml";
pub(super) const CERTIFICATE: &str = "certificate.txt";
const TABLE: &str = ".table";

/// The most bytes of a file.
const MOST_BYTES: u64 = 16 << 30;

/// The file of a step's model.
pub(super) fn graph_file(step: &str) -> String {
    format!("{step}.graph")
}

/// The file of a step's program.
pub(super) fn program_file(step: &str) -> String {
    format!("{step}.program")
}

/// The files of an artifact, by name: what its directory holds, or what rank 0 of a job sends to the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArtifactFiles(pub BTreeMap<String, Vec<u8>>);

impl ArtifactFiles {
    /// The files that the manifest in a directory lists.
    pub fn read(dir: &Path) -> Result<ArtifactFiles, ArtifactError> {
        let read = |name: &str| {
            let path = dir.join(name);
            files::read_up_to(&path, MOST_BYTES).map_err(|source| ArtifactError::Read { path, source })
        };
        let mut all = BTreeMap::from([(MANIFEST.to_string(), read(MANIFEST)?)]);
        let inside = |source| ArtifactError::In { path: dir.into(), source: Box::new(source) };
        for name in listed(&all[MANIFEST]).map_err(inside)? {
            let bytes = read(&name)?;
            all.insert(name, bytes);
        }
        Ok(ArtifactFiles(all))
    }
}

/// The names of the other files of a manifest; every one is known, so none is outside of the directory.
fn listed(manifest: &[u8]) -> Result<Vec<String>, ArtifactError> {
    let names: Vec<String> = parse_manifest(manifest)?.files.into_iter().map(|file| file.name).collect();
    let texts = [TRAIN, EVALUATE].into_iter().flat_map(|step| [graph_file(step), program_file(step)]);
    let known: Vec<String> = texts.chain([PLAN, COSTS, CLUSTER, CERTIFICATE].map(String::from)).collect();
    let is_table = |name: &str| {
        let hash = name.strip_suffix(TABLE).filter(|hash| hash.len() == seal::DIGITS);
        hash.is_some_and(|hash| hash.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')))
    };
    match names.iter().find(|name| !known.contains(name) && !is_table(name)) {
        Some(name) => Err(ArtifactError::Unknown { name: name.clone(), known }),
        None => Ok(names),
    }
}

/// The manifest, if it is as it was written and of this version.
pub(super) fn parse_manifest(text: &[u8]) -> Result<ArtifactManifest, ArtifactError> {
    /// The part that every version has.
    #[derive(Deserialize)]
    struct Version {
        format: u64,
        phalanx: String,
    }
    if !seal::check(text)? {
        return Err(SealError::Missing.into());
    }
    let Version { format, phalanx } = seal::read(text)?;
    if format != u64::from(FORMAT) {
        return Err(ArtifactError::Format { found: format, phalanx });
    }
    if phalanx != VERSION {
        return Err(ArtifactError::Version { found: phalanx, own: VERSION });
    }
    Ok(seal::read(text)?)
}

impl Artifact {
    /// Loads the artifact in a directory, and checks all of it.
    pub fn read(dir: &Path) -> Result<Artifact, Error> {
        let files = ArtifactFiles::read(dir)?;
        Artifact::of_files(&files).map_err(|error| match error {
            Error::Artifact(source) => ArtifactError::In { path: dir.into(), source }.into(),
            other => other,
        })
    }

    /// Loads an artifact from its files, and checks all of it but the proof; see [`Artifact::certificate`].
    pub fn of_files(files: &ArtifactFiles) -> Result<Artifact, Error> {
        Artifact::load(files, None)
    }

    /// The same; a graph whose text is that of `model` is `model`, whose operators may be ones of a user.
    pub(crate) fn load(files: &ArtifactFiles, model: Option<&Graph>) -> Result<Artifact, Error> {
        let missing = |name: &str| ArtifactError::Missing { name: name.into() };
        let text = files.0.get(MANIFEST).ok_or_else(|| missing(MANIFEST))?;
        listed(text)?;
        let manifest = parse_manifest(text)?;
        for entry in &manifest.files {
            let bytes = files.0.get(&entry.name).ok_or_else(|| missing(&entry.name))?;
            let found = (bytes.len() as u64, checksum(&[bytes]));
            if found != (entry.bytes, entry.xxh3.clone()) {
                let shown = |(bytes, hash): (u64, String)| format!("{bytes} bytes of checksum {hash}");
                let (found, wanted) = (shown(found), shown((entry.bytes, entry.xxh3.clone())));
                return Err(ArtifactError::Bytes { name: entry.name.clone(), found, wanted }.into());
            }
        }
        let artifact = Parts { files, manifest: &manifest, model }.artifact(checksum(&[text]))?;
        artifact.check(&manifest)?;
        Ok(artifact)
    }

    /// Checks that the manifest says what this artifact is, and that this build runs it.
    fn check(&self, manifest: &ArtifactManifest) -> Result<(), Error> {
        let described = self.describe(manifest.files.clone())?;
        if described != *manifest {
            let json = |manifest| serde_json::to_value(manifest).unwrap_or(Value::Null);
            let all = value_differences("", &json(manifest), &json(&described));
            let (field, found, wanted) = all.into_iter().next().unwrap_or_default();
            let field = field.trim_start_matches('.').to_string();
            return Err(ArtifactError::Field { field, found, wanted }.into());
        }
        for step in &self.steps {
            kernels::check(&step.name, &step.program, self.settings.cores)?;
            self.check_ports(step)?;
        }
        self.check_recipe()
    }

    /// Checks that what the host sets in a step's program is in its model, of the same type.
    fn check_ports(&self, step: &CompiledStep) -> Result<(), ArtifactError> {
        let set = [PortKind::Input, PortKind::Param, PortKind::Table];
        for port in step.program.ports().iter().filter(|port| set.contains(&port.kind) && port.name != HYPER)
        {
            let found = step.graph.find(&port.name).map(|value| step.graph.ty(value));
            if found != Some(&port.ty) {
                let wanted = found.map_or_else(|| "absent, as in the model".into(), ToString::to_string);
                let field = format!("{}: `{}`", program_file(&step.name), port.name);
                return Err(ArtifactError::Field { field, found: port.ty.to_string(), wanted });
            }
        }
        Ok(())
    }

    /// Checks that the configuration of the run describes the settings, and the model's sizes the model.
    fn check_recipe(&self) -> Result<(), Error> {
        let Some(recipe) = &self.recipe else { return Ok(()) };
        recipe.config.validate()?;
        let settings = recipe.config.settings_on(self.plan.clone(), self.cluster())?;
        let placement = Placement { ranks: self.settings.ranks, ..Placement::alone() };
        let wanted = ArtifactSettings::of(&crate::Settings { placement, ..settings });
        if wanted != self.settings {
            let json = |settings| serde_json::to_value(settings).unwrap_or(Value::Null);
            let all = value_differences("settings", &json(&self.settings), &json(&wanted));
            let (field, found, wanted) = all.into_iter().next().unwrap_or_default();
            return Err(ArtifactError::Field { field, found, wanted }.into());
        }
        Ok(())
    }

    pub(super) fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref().map(|cluster| &cluster.cluster)
    }

    /// The large tables of all models, which texts have by their hashes, as files.
    pub(super) fn tables(&self) -> impl Iterator<Item = (String, &Arc<[u8]>)> {
        let graphs = self.steps.iter().map(|step| &step.graph);
        let tables = graphs.flat_map(|graph| graph.tables().map(|(_, table)| table));
        tables.filter_map(|table| Some((format!("{:032x}{TABLE}", table.hash()), table.bytes()?)))
    }
}

/// Files whose bytes are those that the manifest tells.
struct Parts<'a> {
    files: &'a ArtifactFiles,
    manifest: &'a ArtifactManifest,
    model: Option<&'a Graph>,
}

impl Parts<'_> {
    fn artifact(&self, hash: String) -> Result<Artifact, Error> {
        let plan = self.needed(PLAN)?;
        let plan = Plan::parse(plan).map_err(|error| ArtifactError::text(PLAN, &error))?;
        let steps = self.manifest.steps.iter().map(|step| self.step(&step.name));
        let settings = self.manifest.settings.clone();
        Ok(Artifact {
            settings,
            plan,
            steps: steps.collect::<Result<_, _>>()?,
            recipe: self.manifest.run.as_ref().map(recipe).transpose()?,
            costs: self.optional(COSTS, |text| CostTable::parse(text, Path::new(COSTS)).map(Arc::new))?,
            cluster: self.optional(CLUSTER, |text| {
                Cluster::parse(text).map(|cluster| ClusterText { text: text.into(), cluster })
            })?,
            certificate: self.optional(CERTIFICATE, |text| Ok::<_, String>(text.to_string()))?,
            hash,
        })
    }

    fn step(&self, name: &str) -> Result<CompiledStep, ArtifactError> {
        if ![TRAIN, EVALUATE].contains(&name) {
            return Err(ArtifactError::Field {
                field: "steps.name".into(),
                found: format!("`{name}`"),
                wanted: format!("`{TRAIN}` or `{EVALUATE}`"),
            });
        }
        let (graph_name, program_name) = (graph_file(name), program_file(name));
        let text = self.needed(&graph_name)?;
        let graph = match self.model.filter(|model| model.to_string() == text) {
            Some(model) => model.clone(),
            None => self.graph(text).map_err(|problem| ArtifactError::text(&graph_name, &problem))?,
        };
        // Parsing verifies it.
        let program: Result<Program, _> = self.needed(&program_name)?.parse();
        let program = program.map_err(|error| ArtifactError::text(&program_name, &error))?;
        if let Some((rank, ranks)) = program.part() {
            let found = format!("the part of rank {rank} of {ranks}");
            return Err(ArtifactError::Field {
                field: program_name,
                found,
                wanted: "the whole program".into(),
            });
        }
        Ok(CompiledStep { name: name.into(), graph, program })
    }

    /// The graph of a text, with its large tables.
    fn graph(&self, text: &str) -> Result<Graph, String> {
        let mut graph = Graph::parse(text, crate::ops::operators()).map_err(|error| error.to_string())?;
        let tables = self.files.0.iter().filter(|(name, _)| name.ends_with(TABLE));
        tables.for_each(|(_, bytes)| _ = graph.provide_table(bytes.as_slice()));
        graph.verify().map_err(|errors| first(&errors))?;
        Ok(graph)
    }

    /// The text of a file that must be there.
    fn needed(&self, name: &str) -> Result<&str, ArtifactError> {
        self.text(name)?.ok_or_else(|| ArtifactError::Missing { name: name.into() })
    }

    /// What a file holds that need not be there.
    fn optional<T, E: Display>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, ArtifactError> {
        let text = self.text(name)?;
        text.map(parse).transpose().map_err(|error| ArtifactError::text(name, &error))
    }

    /// The text of a file that the manifest lists.
    fn text(&self, name: &str) -> Result<Option<&str>, ArtifactError> {
        if !self.manifest.files.iter().any(|file| file.name == name) {
            return Ok(None);
        }
        let bytes = self.files.0.get(name).map(Vec::as_slice).unwrap_or_default();
        str::from_utf8(bytes).map(Some).map_err(|error| ArtifactError::text(name, &error))
    }
}

fn recipe(recipe: &RunRecipe) -> Result<TrainRecipe, ArtifactError> {
    let wrong = |field: &str, error: serde_json::Error| {
        ArtifactError::text(MANIFEST, &format!("`run.{field}`: {error}"))
    };
    let config = serde_json::from_value(recipe.config.clone()).map_err(|error| wrong("config", error))?;
    let model = serde_json::from_value(recipe.model.clone()).map_err(|error| wrong("model", error))?;
    Ok(TrainRecipe { config, model })
}
