//! Files that list the hosts of a job, one a line: `name`, `name slots=4` or `name:4`, with comments after `#`.
//!
//! Reading decides how many ranks each host gets, so that the ranks lie alike under every launcher: ranks fill the
//! hosts in the order of the file. A host without a number takes an even share of the ranks that the numbers leave.
//! Hosts that are lost count as if they were not in the file.

use std::path::Path;

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

/// Reads the file and shares the ranks among its hosts; a host that gets none is left out.
pub fn read(path: &Path, ranks: usize, lost: &[String]) -> Result<Vec<Share>, Failure> {
    in_file(path, |text| share(text, ranks, lost))
}

/// Names of all hosts of the file.
pub fn names(path: &Path) -> Result<Vec<String>, Failure> {
    in_file(path, |text| Ok(entries(text)?.into_iter().map(|entry| entry.host.to_string()).collect()))
}

/// How many of `ranks` ranks, for which the file was written, can go on when hosts are lost.
pub fn room(path: &Path, ranks: usize, lost: &[String]) -> Result<usize, Failure> {
    in_file(path, |text| rest(text, ranks, lost))
}

/// What is made of the file's text; an error is what stands after the file's name.
fn in_file<T>(path: &Path, made: impl FnOnce(&str) -> Result<T, String>) -> Result<T, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Input(format!("cannot read the hosts of {}: {error}", path.display())))?;
    made(&text).map_err(|message| Failure::Input(format!("{}{message}", path.display())))
}

/// As [`room`]: a host with a number takes as many, one without keeps its share, or one rank if it is a spare.
fn rest(text: &str, ranks: usize, lost: &[String]) -> Result<usize, String> {
    let shares = share(text, ranks, &[])?;
    let of = |host: &str| shares.iter().find(|share| share.host == host).map_or(1, |share| share.ranks);
    let left = entries(text)?.into_iter().filter(|entry| !lost.iter().any(|host| host == entry.host));
    let room: usize = left.map(|entry| entry.slots.unwrap_or_else(|| of(entry.host))).sum();
    Ok(room.min(ranks))
}

/// As [`read`].
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
