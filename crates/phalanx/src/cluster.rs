//! Cluster files: how many devices there are, what each can do, and how they are connected.
//!
//! ```toml
//! name = "two nodes"
//! devices = 16
//!
//! [[level]]               # the innermost first
//! size = 8                # devices of a unit; the outermost level holds all
//! latency = "2us"
//! bandwidth = "300GB"     # of each device, in each direction
//! uplink = "25GB"         # of a unit, shared by its devices when they talk to others
//! per_message = "500ns"
//!
//! [[level]]
//! latency = "5us"
//! bandwidth = "25GB"
//!
//! [device]
//! memory = "80GB"
//! cores = 4
//!
//! [[device.group]]        # devices that differ, from the first to the last
//! from = 12
//! to = 15
//! speed = 0.5             # of what kernel times say
//! ```

mod measure;

pub use measure::{MeasuredCluster, MeasuredLink};

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use phalanx_link::{Link, LinkError, NetworkLevel, Topology, TopologyError, rate, time};
use phalanx_plan::MOST_DEVICES;
use serde::Deserialize;

use crate::files;
use crate::train::{MOST_CORES, bytes};

/// The most bytes of a cluster file.
const MOST_BYTES: u64 = 1 << 20;

/// The devices of a cluster and what connects them.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// What people call it.
    pub name: String,
    /// How many devices there are.
    pub devices: usize,
    /// How they are connected.
    pub topology: Topology,
    /// Bytes of memory of a device: of the one that has least.
    pub memory: Option<u64>,
    /// Cores of a device.
    pub cores: Option<usize>,
    /// By device: how fast it computes, 1 if kernel times hold for it.
    pub speeds: Vec<f64>,
}

/// Why a file is no cluster.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ClusterError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// It is wrong.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: Box<ClusterError> },
    /// It is not TOML, or has keys that are not known.
    #[error(transparent)]
    Parse(#[from] toml::de::Error),
    /// Levels do not nest.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A level is no link.
    #[error("level {level}: {source}")]
    Level { level: usize, source: LinkError },
    /// A key has a value it cannot have.
    #[error("`{key}` is {value}; {wanted}")]
    Value { key: &'static str, value: String, wanted: String },
}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    name: String,
    devices: usize,
    #[serde(default)]
    level: Vec<FileLevel>,
    #[serde(default)]
    device: FileDevice,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLevel {
    size: Option<usize>,
    latency: String,
    bandwidth: String,
    uplink: Option<String>,
    per_message: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileDevice {
    memory: Option<String>,
    cores: Option<usize>,
    speed: Option<f64>,
    #[serde(default)]
    group: Vec<FileGroup>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileGroup {
    from: usize,
    to: usize,
    speed: Option<f64>,
    memory: Option<String>,
}

impl Cluster {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Cluster, ClusterError> {
        let read = || String::from_utf8(files::read_up_to(path, MOST_BYTES)?).map_err(std::io::Error::other);
        let text = read().map_err(|source| ClusterError::Read { path: path.into(), source })?;
        Cluster::parse(&text)
            .map_err(|error| ClusterError::File { path: path.into(), source: Box::new(error) })
    }

    /// Reads the text of a file.
    pub fn parse(text: &str) -> Result<Cluster, ClusterError> {
        let File { name, devices, level, device } = toml::from_str(text)?;
        if !(1..=MOST_DEVICES).contains(&devices) {
            return wrong("devices", devices, format!("it must be from 1 to {MOST_DEVICES}"));
        }
        let outermost = level.len().saturating_sub(1);
        let levels =
            level.into_iter().enumerate().map(|(number, level)| level.read(number, number == outermost));
        let topology = Topology::new(levels.collect::<Result<_, _>>()?)?;
        if let Some(cores) = device.cores.filter(|cores| !(1..=MOST_CORES).contains(cores)) {
            return wrong("device.cores", cores, format!("it must be from 1 to {}", MOST_CORES));
        }
        let mut speeds = vec![speed("device.speed", device.speed)?.unwrap_or(1.0); devices];
        let mut memory = size("device.memory", device.memory.as_deref())?;
        for group in &device.group {
            let members = speeds.get_mut(group.from..group.to.saturating_add(1));
            let Some(members) = members.filter(|members| !members.is_empty()) else {
                let wanted = format!("groups name devices from 0 to {}, the first one first", devices - 1);
                return wrong("device.group", format!("from {} to {}", group.from, group.to), wanted);
            };
            if let Some(speed) = speed("device.group.speed", group.speed)? {
                members.fill(speed);
            }
            let own = size("device.group.memory", group.memory.as_deref())?;
            memory = memory.into_iter().chain(own).min();
        }
        Ok(Cluster { name, devices, topology, memory, cores: device.cores, speeds })
    }

    /// A drawing of the levels, for people.
    pub fn draw(&self) -> String {
        let mut text = String::new();
        let levels = self.topology.levels();
        for (depth, level) in levels.iter().enumerate().rev() {
            let (units, each) = match depth + 1 == levels.len() {
                true => (1, self.devices),
                false => (self.devices.div_ceil(level.size), level.size.min(self.devices)),
            };
            let indent = "  ".repeat(levels.len() - 1 - depth);
            let uplink = level.uplink.map(|uplink| {
                let link = Link { latency: Duration::ZERO, bytes_per_second: uplink }.to_string();
                format!(", uplink {}", link.trim_start_matches("0ns,"))
            });
            let per_message = Some(level.per_message).filter(|time| *time > Duration::ZERO);
            let per_message = per_message.map(|time| format!(", {time:?} a message"));
            let extra = uplink.into_iter().chain(per_message).collect::<String>();
            // Writing to a string does not fail.
            _ = writeln!(text, "{indent}{units} x {each} devices: {}{extra}", level.link);
        }
        text
    }
}

impl FileLevel {
    fn read(self, number: usize, is_outermost: bool) -> Result<NetworkLevel, ClusterError> {
        let at = |source| ClusterError::Level { level: number, source };
        let link = format!("{},{}", self.latency, self.bandwidth).parse().map_err(at)?;
        let size = match (self.size, is_outermost) {
            (Some(size), _) => size,
            (None, true) => 1,
            (None, false) => {
                return wrong("level.size", "missing", "a level inside another one needs it".into());
            }
        };
        Ok(NetworkLevel {
            size,
            link,
            uplink: self.uplink.as_deref().map(rate).transpose().map_err(at)?,
            per_message: self.per_message.as_deref().map(time).transpose().map_err(at)?.unwrap_or_default(),
        })
    }
}

fn wrong<T>(key: &'static str, value: impl ToString, wanted: String) -> Result<T, ClusterError> {
    Err(ClusterError::Value { key, value: value.to_string(), wanted })
}

fn speed(key: &'static str, speed: Option<f64>) -> Result<Option<f64>, ClusterError> {
    match speed {
        Some(speed) if !(1e-3..=1e3).contains(&speed) => {
            wrong(key, speed, "it must be from 0.001 to 1000; 1 is as kernel times say".into())
        }
        speed => Ok(speed),
    }
}

fn size(key: &'static str, text: Option<&str>) -> Result<Option<u64>, ClusterError> {
    match text.map(|text| (text, bytes(text))) {
        Some((text, None)) => wrong(key, text, "it must be a size above 0 like 512MiB, 80GB or 1.5TB".into()),
        Some((_, bytes)) => Ok(bytes),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests;
