//! How the devices of a cluster are connected: levels, one inside the other.
//!
//! Devices are numbered so that neighbours are near: a unit of the innermost level is so many consecutive devices, a node
//! say; a unit of the next level is several of those, and the outermost level holds all. Two devices talk over the
//! innermost level of which one unit holds both. What leaves a unit also goes through its uplink, if that has a limit
//! of its own.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::{Link, LinkError, Part};

/// What connects the devices of one unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkLevel {
    /// Devices of a unit; those of the outermost level are all there are.
    pub size: usize,
    /// What each device has on this level.
    pub link: Link,
    /// Bytes a second, in each direction, that all devices of a unit together exchange with those outside.
    pub uplink: Option<f64>,
    /// What every message takes besides.
    pub per_message: Duration,
}

/// All levels, the innermost first. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology(Arc<[NetworkLevel]>);

/// Why levels make no topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum TopologyError {
    /// There is nothing.
    #[error("a cluster needs at least one level")]
    NoLevel,
    /// A unit is empty.
    #[error("a unit of level {level} has no devices: it needs at least one")]
    Empty { level: usize },
    /// A unit is not several of those inside it.
    #[error(
        "a unit of level {level} has {size} devices, and one of level {inner} inside it {inner_size}: the larger one holds \
         a whole number of the smaller, and more than one"
    )]
    Size { level: usize, size: usize, inner: usize, inner_size: usize },
    /// The outermost level has an uplink.
    #[error("level {level} is the outermost one and holds all devices: it has no uplink")]
    Uplink { level: usize },
}

impl From<Link> for Topology {
    /// One level, on which all devices are equally near.
    fn from(link: Link) -> Topology {
        let level = NetworkLevel { size: usize::MAX, link, uplink: None, per_message: Duration::ZERO };
        Topology(Arc::new([level]))
    }
}

impl FromStr for Topology {
    type Err = LinkError;

    /// Reads a link, `latency,bandwidth`.
    fn from_str(text: &str) -> Result<Self, LinkError> {
        text.parse().map(Link::into)
    }
}

impl Topology {
    /// These levels, the innermost first. The size of the outermost one does not matter.
    pub fn new(mut levels: Vec<NetworkLevel>) -> Result<Topology, TopologyError> {
        let outermost = levels.len().checked_sub(1).ok_or(TopologyError::NoLevel)?;
        if levels[outermost].uplink.is_some() {
            return Err(TopologyError::Uplink { level: outermost });
        }
        levels[outermost].size = usize::MAX;
        for inner in 0..outermost {
            let (level, size, inner_size) = (inner + 1, levels[inner + 1].size, levels[inner].size);
            if inner_size == 0 {
                return Err(TopologyError::Empty { level: inner });
            }
            let fits = level == outermost || (size > inner_size && size.is_multiple_of(inner_size));
            if !fits {
                return Err(TopologyError::Size { level, size, inner, inner_size });
            }
        }
        Ok(Topology(levels.into()))
    }

    /// The levels, the innermost first.
    pub fn levels(&self) -> &[NetworkLevel] {
        &self.0
    }

    /// The number of the level over which two devices talk.
    pub fn level(&self, a: u32, b: u32) -> usize {
        let holds_both = |level: &NetworkLevel| a as usize / level.size == b as usize / level.size;
        self.0.iter().position(holds_both).unwrap_or(self.0.len() - 1)
    }

    /// What connects two devices, besides uplinks that they share with others.
    pub fn link(&self, a: u32, b: u32) -> Link {
        self.0[self.level(a, b)].link
    }

    /// The link of the outermost level: the slowest that a movement can meet.
    pub fn outermost(&self) -> Link {
        self.0[self.0.len() - 1].link
    }

    /// How long a transfer to device `to` takes if there is no other.
    pub fn alone(&self, to: u32, parts: &[Part]) -> Duration {
        let time = |(level, NetworkLevel { link, per_message, .. }): (usize, &NetworkLevel)| {
            let crosses =
                |part: &&Part| part.from != to && part.bytes > 0 && self.level(part.from, to) == level;
            let (bytes, messages) = parts
                .iter()
                .filter(crosses)
                .fold((0, 0), |(bytes, count), part| (bytes + part.bytes, count + 1));
            match messages {
                0 => Duration::ZERO,
                _ => link.latency + link.occupancy(bytes) + *per_message * messages,
            }
        };
        self.0.iter().enumerate().map(time).max().unwrap_or_default()
    }

    /// Units of a level among so many devices.
    pub(crate) fn units(&self, level: usize, devices: usize) -> usize {
        devices.div_ceil(self.0[level].size)
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, level) in self.0.iter().enumerate() {
            let NetworkLevel { size, link, uplink, per_message } = level;
            match (number, number + 1 == self.0.len()) {
                (0, true) => write!(f, "{link}")?,
                (_, true) => write!(f, "; beyond {link}")?,
                (0, false) => write!(f, "{size} devices at {link}")?,
                (_, false) => write!(f, "; {size} at {link}")?,
            }
            if let Some(uplink) = uplink {
                let uplink = Link { latency: Duration::ZERO, bytes_per_second: *uplink }.to_string();
                write!(f, ", {} out of them", uplink.trim_start_matches("0ns,"))?;
            }
            if *per_message > Duration::ZERO {
                write!(f, ", {per_message:?} a message")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(size: usize, link: &str) -> NetworkLevel {
        NetworkLevel { size, link: link.parse().unwrap(), uplink: None, per_message: Duration::ZERO }
    }

    #[test]
    fn devices_talk_over_the_innermost_level_that_holds_both() {
        let racks =
            Topology::new(vec![level(2, "1us,8GB"), level(4, "2us,4GB"), level(0, "9us,1GB")]).unwrap();
        let found = [(0, 1), (1, 0), (1, 2), (3, 2), (0, 3), (3, 4), (0, 7), (6, 7)];
        assert_eq!(found.map(|(a, b)| racks.level(a, b)), [0, 0, 1, 0, 1, 2, 2, 0]);
        assert_eq!(racks.link(1, 2), "2us,4GB".parse().unwrap());
        assert_eq!(racks.to_string(), "2 devices at 1us,64Gbit; 4 at 2us,32Gbit; beyond 9us,8Gbit");
        let flat = Topology::from("1ms,1Gbit".parse::<Link>().unwrap());
        assert_eq!((flat.level(0, 4_000_000_000), flat.to_string()), (0, "1ms,1Gbit".to_string()));
    }

    #[test]
    fn levels_that_do_not_nest_are_refused() {
        let refused = |levels: Vec<NetworkLevel>| Topology::new(levels).unwrap_err().to_string();
        assert_eq!(refused(vec![]), "a cluster needs at least one level");
        let (inner, outer) = (level(4, "1us,8GB"), level(0, "9us,1GB"));
        let uneven = refused(vec![inner, level(6, "2us,4GB"), outer]);
        assert!(
            uneven.starts_with("a unit of level 1 has 6 devices, and one of level 0 inside it 4"),
            "{uneven}"
        );
        assert!(refused(vec![level(0, "1us,8GB"), outer]).contains("a unit of level 0 has no devices"));
        assert!(refused(vec![NetworkLevel { uplink: Some(1e9), ..outer }]).contains("has no uplink"));
    }
}
