//! A topology for people: a line, one more for each host if there are several, and the notes.

use std::fmt::Write;

use super::{Host, RankLayout, count};
use crate::Pin;

impl RankLayout {
    /// What is where; `carrier` is what connects the ranks.
    pub fn describe(&self, pin: Pin, carrier: &str) -> String {
        let ranks = count(self.cores.len(), "rank");
        let hosts = match &self.hosts[..] {
            [host] => format!("1 host ({})", host.name),
            hosts => count(hosts.len(), "host"),
        };
        let pinned = match (pin, &self.hosts[..]) {
            (Pin::Off, _) => "not pinned".to_string(),
            (Pin::Auto, [host]) => format!("pinned to cores {}", self.cores_on(host)),
            (Pin::Auto, _) => "pinned".to_string(),
        };
        let cores = count(self.cores_per_device, "core");
        let devices = self.devices_each();
        let mut text = format!("{ranks} on {hosts}: {devices}, {cores} per device, {pinned}, {carrier}\n");
        for host in self.hosts.iter().filter(|_| self.hosts.len() > 1) {
            let ranks: Vec<usize> = host.ranks.iter().map(|rank| *rank as usize).collect();
            let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
            // Writing to a string cannot fail.
            _ = writeln!(text, "  {}: {noun} {}, cores {}", host.name, ranges(&ranks), self.cores_on(host));
        }
        for note in &self.notes {
            _ = writeln!(text, "  {note}");
        }
        text
    }

    fn devices_each(&self) -> String {
        let counts = (0..self.placement.ranks).map(|rank| self.devices_of(rank).count());
        let (least, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
        match least == most {
            true => format!("{} each", count(most, "device")),
            false => format!("{least} or {most} devices each"),
        }
    }

    /// The cores of a host's ranks, like `0-1 | 2-3`.
    fn cores_on(&self, host: &Host) -> String {
        let cores: Vec<String> = host.ranks.iter().map(|rank| ranges(&self.cores[*rank as usize])).collect();
        cores.join(" | ")
    }
}

/// Ascending numbers, like `0-3,8`.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let run = |run: &[usize]| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    };
    runs.map(run).collect::<Vec<_>>().join(",")
}
