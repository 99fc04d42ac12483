//! Where and when things are.

use std::fmt;
use std::sync::Arc;

use crate::Id;
use crate::graph::Label;
use crate::text::{Cursor, ParseError};

crate::id! {
    /// A device: some cores and one memory.
    pub struct DeviceId("dev");
}

impl DeviceId {
    /// How far apart two devices are, judged by their numbers: those that differ in lower bits alone are nearer, as in
    /// nodes of a power of two devices. No two devices are equally far from a third, so that readers of copies on several
    /// devices spread over them.
    pub fn distance(self, other: DeviceId) -> usize {
        self.index() ^ other.index()
    }
}

/// The devices that all do the same task or hold the same tile, ascending; prints as `dev2` or `dev[0-3,6]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceGroup(Arc<[DeviceId]>);

impl DeviceGroup {
    /// These devices, in any order, each counted once.
    pub fn new(devices: impl IntoIterator<Item = DeviceId>) -> DeviceGroup {
        let mut devices: Vec<_> = devices.into_iter().collect();
        devices.sort_unstable();
        devices.dedup();
        DeviceGroup(devices.into())
    }

    /// One device.
    pub fn one(device: DeviceId) -> DeviceGroup {
        DeviceGroup(Arc::from([device]))
    }

    /// The devices.
    pub fn devices(&self) -> &[DeviceId] {
        &self.0
    }

    /// The lowest device.
    pub fn first(&self) -> DeviceId {
        self.0[0]
    }

    /// Whether `device` is one of them.
    pub fn contains(&self, device: DeviceId) -> bool {
        self.0.binary_search(&device).is_ok()
    }

    /// Whether all devices of `other` are among these.
    pub fn covers(&self, other: &DeviceGroup) -> bool {
        other.0.iter().all(|&device| self.contains(device))
    }
}

impl fmt::Display for DeviceGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = *self.0 {
            return write!(f, "{only}");
        }
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for device in self.0.iter().map(|device| device.index()) {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == device => *last = device,
                _ => runs.push((device, device)),
            }
        }
        let run = |&(first, last): &(usize, usize)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        write!(f, "dev[{}]", runs.iter().map(run).collect::<Vec<_>>().join(","))
    }
}

impl DeviceGroup {
    /// Takes a group such as `dev2` or `dev[0-3,6]`.
    pub fn parse(cursor: &mut Cursor<'_>) -> Result<DeviceGroup, ParseError> {
        if !cursor.eat("dev[") {
            return parse_device(cursor).map(DeviceGroup::one);
        }
        let runs = cursor.list(parse_run)?;
        let named: usize = runs.iter().map(|run| run.end() - run.start() + 1).sum();
        if named > MOST_DEVICES as usize {
            return cursor.error(format!("{named} devices are beyond the {MOST_DEVICES} a text may name"));
        }
        cursor.expect("]")?;
        Ok(DeviceGroup::new(runs.into_iter().flatten().map(DeviceId::from_index)))
    }
}

/// More devices than any machine has: what a text names beyond is a mistake.
const MOST_DEVICES: u32 = 1 << 20;

fn parse_run(cursor: &mut Cursor<'_>) -> Result<std::ops::RangeInclusive<usize>, ParseError> {
    let word = cursor.word()?;
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    match (first.parse::<u32>(), last.parse::<u32>()) {
        (Ok(first), Ok(last)) if first <= last && last < MOST_DEVICES => Ok(first as usize..=last as usize),
        (Ok(first), Ok(last)) if first <= last => {
            cursor.error(format!("`{word}` is beyond the {MOST_DEVICES} devices a text may name"))
        }
        _ => cursor.error(format!("`{word}` is not a run of devices like 2 or 0-3")),
    }
}

/// Takes a device such as `dev3`.
pub(crate) fn parse_device(cursor: &mut Cursor<'_>) -> Result<DeviceId, ParseError> {
    let word = cursor.word()?;
    match word.strip_prefix("dev").and_then(|number| number.parse::<u32>().ok()) {
        Some(number) if number < MOST_DEVICES => Ok(DeviceId::from_index(number as usize)),
        Some(_) => cursor.error(format!("`{word}` is beyond the {MOST_DEVICES} devices a text may name")),
        None => cursor.error(format!("`{word}` is not a device like dev0")),
    }
}

/// Which rows of the batch a layer works on, when the batch is cut into microbatches.
///
/// The batch is `blocks` equal blocks (one for each device that shares it), each cut into `count` pieces; microbatch
/// `index` is that piece of every block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Microbatch {
    /// Which microbatch.
    pub index: u32,
    /// How many there are.
    pub count: u32,
    /// Into how many blocks the batch is cut first.
    pub blocks: u32,
}

/// Where and when a layer's tasks run; prints as ` on dev0, dev[1-2] at 2 microbatch 1 of 4 in 2`, and ` batch 1` at the end
/// where that is not what operators and shapes say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPlacement {
    /// The devices of each task, in the order of the tasks; all devices of a group do the same.
    pub groups: Arc<[DeviceGroup]>,
    /// The microbatch with which the layer is due: its own; work on the whole batch comes with the last.
    pub due: u32,
    /// The microbatch that the layer works on, if not on the whole batch.
    pub microbatch: Option<Microbatch>,
    /// The dimension of the results along which samples lie, where it is neither the outermost one of an input nor the one
    /// to which the operator carries that of its operands.
    pub batch: Option<usize>,
}

impl LayerPlacement {
    /// Tasks on these groups, on the whole batch.
    pub fn on(groups: impl Into<Arc<[DeviceGroup]>>) -> LayerPlacement {
        LayerPlacement { groups: groups.into(), due: 0, microbatch: None, batch: None }
    }
}

impl Label for LayerPlacement {
    const KEYWORD: &str = "parallel";

    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<_> = self.groups.iter().map(DeviceGroup::to_string).collect();
        write!(f, " on {}", groups.join(", "))?;
        if self.due > 0 {
            write!(f, " at {}", self.due)?;
        }
        if let Some(Microbatch { index, count, blocks }) = self.microbatch {
            write!(f, " microbatch {index} of {count} in {blocks}")?;
        }
        match self.batch {
            None => Ok(()),
            Some(batch) => write!(f, " batch {batch}"),
        }
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        cursor.expect("on")?;
        let groups = cursor.list(DeviceGroup::parse)?;
        let due = if cursor.eat("at ") { cursor.parse("a microbatch")? } else { 0 };
        // The word was `part` up to version 0.1.
        let microbatch = match cursor.eat("microbatch ") || cursor.eat("part ") {
            false => None,
            true => {
                let index = cursor.parse("a microbatch")?;
                cursor.expect("of")?;
                let count = cursor.parse("a number of microbatches")?;
                cursor.expect("in")?;
                let blocks = cursor.parse("a number of blocks")?;
                if index >= count || blocks == 0 {
                    let message = format!(
                        "there is no microbatch {index} of {count} in {blocks} blocks: both are counted from 0"
                    );
                    return cursor.error(message);
                }
                Some(Microbatch { index, count, blocks })
            }
        };
        let batch = if cursor.eat("batch ") { Some(cursor.parse("a dimension")?) } else { None };
        Ok(LayerPlacement { groups: groups.into(), due, microbatch, batch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_print_as_runs_and_parse_back() {
        let group = DeviceGroup::new([3, 0, 1, 2, 6, 6].map(DeviceId::from_index));
        assert_eq!(group.to_string(), "dev[0-3,6]");
        assert_eq!(DeviceGroup::parse(&mut Cursor::new("dev[0-3,6]", 1)), Ok(group.clone()));
        assert!(group.covers(&DeviceGroup::one(DeviceId::from_index(2))));
        assert!(!group.contains(DeviceId::from_index(5)));
    }
}
