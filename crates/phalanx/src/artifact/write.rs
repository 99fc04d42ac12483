//! Emitting: the files of an artifact, and the directory that holds them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::read::{
    ArtifactFiles, CERTIFICATE, CLUSTER, COSTS, MANIFEST, PLAN, graph_file, parse_manifest, program_file,
};
use super::{Artifact, ArtifactError};
use crate::Error;
use crate::ckpt::FileEntry;
use crate::seal::{self, checksum};

impl Artifact {
    /// Writes a directory that is not there yet. It appears when it is complete.
    pub fn write(&self, dir: &Path) -> Result<(), Error> {
        if dir.exists() {
            return Err(ArtifactError::Present { path: dir.into() }.into());
        }
        self.replace(dir)
    }

    /// The same for a directory that may be there: it is replaced.
    pub(crate) fn replace(&self, dir: &Path) -> Result<(), Error> {
        let wrong = |source| ArtifactError::Write { path: dir.into(), source };
        let files = self.to_files()?;
        // Another process may write the same directory.
        let mut partial = dir.as_os_str().to_os_string();
        partial.push(format!(".{}.partial", std::process::id()));
        let partial = PathBuf::from(partial);
        let written = files.write_to(&partial).and_then(|()| {
            if dir.exists() {
                fs::remove_dir_all(dir)?;
            }
            fs::rename(&partial, dir)
        });
        if written.is_err() {
            _ = fs::remove_dir_all(&partial);
        }
        Ok(written.map_err(wrong)?)
    }

    /// All files, by name.
    pub fn to_files(&self) -> Result<ArtifactFiles, Error> {
        let mut files = self.contents();
        let entry = |(name, bytes): (&String, &Vec<u8>)| FileEntry {
            name: name.clone(),
            bytes: bytes.len() as u64,
            xxh3: checksum(&[bytes]),
        };
        let manifest = self.describe(files.iter().map(entry).collect())?;
        let json = serde_json::to_string_pretty(&manifest).map_err(seal::JsonError::from);
        let text = seal::sealed(&json.map_err(ArtifactError::from)?);
        files.insert(MANIFEST.into(), text.into_bytes());
        Ok(ArtifactFiles(files))
    }

    /// All files but the manifest.
    fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut put = |name: String, text: String| files.insert(name, text.into_bytes());
        put(PLAN.into(), self.plan.to_text());
        for step in &self.steps {
            put(graph_file(&step.name), step.graph.to_string());
            put(program_file(&step.name), step.program.to_string());
        }
        self.costs.iter().for_each(|costs| _ = put(COSTS.into(), costs.to_text()));
        self.cluster.iter().for_each(|cluster| _ = put(CLUSTER.into(), cluster.text.clone()));
        self.certificate.iter().for_each(|text| _ = put(CERTIFICATE.into(), text.clone()));
        for (name, bytes) in self.tables() {
            files.insert(name, bytes.to_vec());
        }
        files
    }
}

impl ArtifactFiles {
    /// Replaces a file, and adapts the checksums to it: what loading then says is about its contents. Of a manifest the
    /// contents are an object as pretty JSON.
    pub fn replace(&mut self, name: &str, contents: Vec<u8>) -> Result<(), ArtifactError> {
        let body = match name {
            MANIFEST => String::from_utf8_lossy(&contents).into_owned(),
            _ => {
                let mut manifest = parse_manifest(&self.0[MANIFEST])?;
                for entry in manifest.files.iter_mut().filter(|entry| entry.name == name) {
                    (entry.bytes, entry.xxh3) = (contents.len() as u64, checksum(&[&contents]));
                }
                self.0.insert(name.into(), contents);
                serde_json::to_string_pretty(&manifest).map_err(seal::JsonError::from)?
            }
        };
        self.0.insert(MANIFEST.into(), seal::sealed(&body).into_bytes());
        Ok(())
    }

    fn write_to(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)?;
        self.0.iter().try_for_each(|(name, bytes)| fs::write(dir.join(name), bytes))
    }
}
