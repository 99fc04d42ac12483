//! The hosts of a job, one a line: `name`, `name slots=4` or `name:4`, with comments after `#`. They come from a file, or
//! from the Slurm allocation that the job is in.
//!
//! Reading decides how many ranks each host gets, so that the ranks lie alike under every launcher: ranks fill the
//! hosts in the order of the list. A host without a number takes an even share of the ranks that the numbers leave.
//! Hosts that are lost count as if they were not in the list.

use std::path::Path;
use std::process::{Command, Stdio};

use phalanx::internals::files;

use crate::failure::Failure;

/// A host and how many ranks it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its name.
    pub host: String,
    /// At least one.
    pub ranks: usize,
}

/// A line of the file.
struct Entry<'a> {
    line: usize,
    host: &'a str,
    slots: Option<usize>,
}

/// The hosts that a job may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostList {
    /// Whose list it is, for messages.
    origin: String,
    /// A host a line.
    text: String,
    /// The program that runs a command on a host, if not the one that launchers use.
    agent: Option<&'static str>,
}

/// Runs a command on a node of the allocation, beside the job's own step, unless the node does not answer.
const SRUN: &str = "srun --overlap --immediate=10 --nodes=1 --ntasks=1 --nodelist";

impl HostList {
    /// The hosts of a file.
    pub fn read(path: &Path) -> Result<HostList, Failure> {
        let origin = path.display().to_string();
        match files::read_text(path) {
            Ok(text) => Ok(HostList { origin, text, agent: None }),
            Err(error) => Err(Failure::Input(format!("cannot read the hosts of {origin}: {error}"))),
        }
    }

    /// The nodes of the Slurm allocation in which this process is; none if it is in none, or Slurm does not tell.
    pub fn of_slurm() -> Option<HostList> {
        let nodes = std::env::var("SLURM_JOB_NODELIST").ok()?;
        // Slurm writes `node[1-3]`, and expands it, too.
        let told = Command::new("scontrol").args(["show", "hostnames", &nodes]).stdin(Stdio::null()).output();
        let told = told.ok().filter(|output| output.status.success())?;
        let text = String::from_utf8(told.stdout).ok()?;
        Some(HostList { origin: "the Slurm allocation".into(), text, agent: Some(SRUN) })
    }

    /// The program that runs a command on a host, if not the one that launchers use.
    pub fn agent(&self) -> Option<&'static str> {
        self.agent
    }

    /// Shares the ranks among the hosts; a host that gets none is left out.
    pub fn shares(&self, ranks: usize, lost: &[String]) -> Result<Vec<Share>, Failure> {
        share(&self.text, ranks, lost).map_err(|message| self.refuse(&message))
    }

    /// Names of all hosts.
    pub fn names(&self) -> Result<Vec<String>, Failure> {
        let entries = entries(&self.text).map_err(|message| self.refuse(&message))?;
        Ok(entries.into_iter().map(|entry| entry.host.to_string()).collect())
    }

    /// How many of `ranks` ranks, for which the list was made, can go on when hosts are lost.
    pub fn room(&self, ranks: usize, lost: &[String]) -> Result<usize, Failure> {
        rest(&self.text, ranks, lost).map_err(|message| self.refuse(&message))
    }

    fn refuse(&self, message: &str) -> Failure {
        Failure::Input(format!("{}{message}", self.origin))
    }
}

/// As [`HostList::room`]: a host with a number takes as many, one without keeps its share, or one rank if it is a spare.
fn rest(text: &str, ranks: usize, lost: &[String]) -> Result<usize, String> {
    let shares = share(text, ranks, &[])?;
    let of = |host: &str| shares.iter().find(|share| share.host == host).map_or(1, |share| share.ranks);
    let left = entries(text)?.into_iter().filter(|entry| !lost.iter().any(|host| host == entry.host));
    let room: usize = left.map(|entry| entry.slots.unwrap_or_else(|| of(entry.host))).sum();
    Ok(room.min(ranks))
}

/// As [`HostList::shares`].
fn share(text: &str, ranks: usize, lost: &[String]) -> Result<Vec<Share>, String> {
    let mut entries = entries(text)?;
    entries.retain(|entry| !lost.iter().any(|host| host == entry.host));
    let numbered: usize = entries.iter().filter_map(|entry| entry.slots).sum();
    let unnumbered = entries.iter().filter(|entry| entry.slots.is_none()).count();
    if unnumbered == 0 && numbered < ranks {
        return Err(format!(": its hosts take {numbered} ranks, -n asks for {ranks}"));
    }
    let shared = ranks.saturating_sub(numbered);
    let (mut left, mut unnumbered_before) = (ranks, 0);
    let mut take = |entry: Entry<'_>| {
        let wanted = entry.slots.unwrap_or_else(|| {
            unnumbered_before += 1;
            // The first hosts take one more where the shares are not whole.
            (shared + unnumbered - unnumbered_before) / unnumbered
        });
        let ranks = wanted.min(left);
        left -= ranks;
        Share { host: entry.host.to_string(), ranks }
    };
    let shares = entries.into_iter().map(&mut take);
    Ok(shares.filter(|share| share.ranks > 0).collect())
}

fn entries(text: &str) -> Result<Vec<Entry<'_>>, String> {
    let mut entries: Vec<Entry<'_>> = Vec::new();
    for (index, text) in text.lines().enumerate() {
        let line = index + 1;
        let told = text.split('#').next().unwrap_or_default().trim();
        if told.is_empty() {
            continue;
        }
        let (host, slots) = entry(told).ok_or_else(|| {
            format!(":{line}: `{told}` is not a host; write `name`, `name slots=4` or `name:4`")
        })?;
        if let Some(first) = entries.iter().find(|entry| entry.host == host) {
            return Err(format!(
                ":{line}: host `{host}` is already on line {}; give it one line and a number",
                first.line
            ));
        }
        entries.push(Entry { line, host, slots });
    }
    match entries.is_empty() {
        true => Err(": it names no host".into()),
        false => Ok(entries),
    }
}

/// The host of a line without comment, and its number.
fn entry(told: &str) -> Option<(&str, Option<usize>)> {
    let number =
        |text: &str| text.parse::<u32>().ok().filter(|&slots| slots > 0).map(|slots| Some(slots as usize));
    let words: Vec<&str> = told.split_whitespace().collect();
    let (host, slots) = match words[..] {
        [word] => match word.split_once(':') {
            Some((host, slots)) => (host, number(slots)?),
            None => (word, None),
        },
        [host, slots] => (host, number(slots.strip_prefix("slots=")?)?),
        _ => return None,
    };
    let is_of_name = |c: char| c.is_alphanumeric() || ".-_".contains(c);
    (host.starts_with(char::is_alphanumeric) && host.chars().all(is_of_name)).then_some((host, slots))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(text: &str, ranks: usize) -> Vec<(String, usize)> {
        share(text, ranks, &[]).unwrap().into_iter().map(|share| (share.host, share.ranks)).collect()
    }

    fn pairs(pairs: &[(&str, usize)]) -> Vec<(String, usize)> {
        pairs.iter().map(|&(host, ranks)| (host.to_string(), ranks)).collect()
    }

    #[test]
    fn ranks_fill_numbered_hosts_in_order() {
        let text = "# the cluster\n\nnode-1 slots=2  # the fast one\nnode-2.site:4\nnode-3 slots=1\n";
        assert_eq!(shares(text, 7), pairs(&[("node-1", 2), ("node-2.site", 4), ("node-3", 1)]));
        assert_eq!(shares(text, 3), pairs(&[("node-1", 2), ("node-2.site", 1)]));
    }

    #[test]
    fn hosts_without_number_share_what_is_left() {
        assert_eq!(shares("a\nb\nc", 8), pairs(&[("a", 3), ("b", 3), ("c", 2)]));
        assert_eq!(shares("a\nb:1\nc", 4), pairs(&[("a", 2), ("b", 1), ("c", 1)]));
        assert_eq!(shares("a\nb:4", 3), pairs(&[("b", 3)]));
        assert_eq!(shares("a\nb\nc", 2), pairs(&[("a", 1), ("b", 1)]));
    }

    #[test]
    fn lost_hosts_take_no_ranks_and_spares_take_theirs() {
        let lost = ["b".to_string()];
        assert_eq!(rest("a:2\nb:2\nc:2", 4, &lost), Ok(4), "there is a spare");
        assert_eq!(rest("a:2\nb:2", 4, &lost), Ok(2));
        assert_eq!(rest("a\nb\nc", 7, &lost), Ok(5), "3 and 2 of them");
        assert_eq!(rest("a\nb\nc", 2, &lost), Ok(2));
        assert_eq!(rest("b", 2, &lost), Ok(0));
        let shares = share("a:2\nb:2\nc", 3, &lost).unwrap();
        assert_eq!(shares, [("a", 2), ("c", 1)].map(|(host, ranks)| Share { host: host.into(), ranks }));
    }

    #[test]
    fn errors_name_the_line() {
        for (text, message) in [
            ("a\nb slots=x", ":2: `b slots=x` is not a host; write `name`, `name slots=4` or `name:4`"),
            ("a:0", ":1: `a:0` is not a host; write `name`, `name slots=4` or `name:4`"),
            ("a 4", ":1: `a 4` is not a host; write `name`, `name slots=4` or `name:4`"),
            ("-x", ":1: `-x` is not a host; write `name`, `name slots=4` or `name:4`"),
            ("fe80::1", ":1: `fe80::1` is not a host; write `name`, `name slots=4` or `name:4`"),
            ("a;b", ":1: `a;b` is not a host; write `name`, `name slots=4` or `name:4`"),
            ("a\n\na:2", ":3: host `a` is already on line 1; give it one line and a number"),
            ("# none\n", ": it names no host"),
            ("a:1\nb:2", ": its hosts take 3 ranks, -n asks for 4"),
        ] {
            assert_eq!(share(text, 4, &[]).unwrap_err(), message, "{text:?}");
        }
    }
}
