//! What a rank sends to all others about itself when it starts, and whether they fit together.
//!
//! A hello is small and the same text for the same process. [`compare`] is a pure function of all hellos, so every rank
//! comes to the same result. It does not look at what rank 0 decides for all, nor at what each may have its own way.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use phalanx_kernels::spmd::pin::allowed_cores;
use phalanx_net::Network;

use super::JobError;
use crate::costs::Machine;

/// The options of a rank that others must know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankOptions {
    /// How many cores it uses; 0 for all.
    pub cores: usize,
    /// How many cores each of its devices uses; 0 for an even share.
    pub cores_per_device: usize,
    /// The options on which all ranks must agree, by name; null for one that is not set.
    pub shared: BTreeMap<String, Value>,
}

/// One rank's account of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The version of this program.
    pub version: String,
    /// Fingerprint of the executable, in hexadecimal.
    pub binary: String,
    /// The instruction set of the fast kernels.
    pub isa: String,
    /// The host's name.
    pub host: String,
    /// How many cores the host has.
    pub host_cores: usize,
    /// The process there.
    pub process: u32,
    /// The cores it may use, ascending.
    pub cores: Vec<usize>,
    /// How it is configured.
    pub options: RankOptions,
}

impl Hello {
    /// The account of this process, which is rank `rank`.
    pub fn of_this_process(rank: u32, options: RankOptions) -> Result<Hello, JobError> {
        let Machine { isa, version, .. } = Machine::this();
        let binary = fingerprint().map_err(|source| JobError::Executable { rank, source })?;
        let cores = allowed_cores();
        Ok(Hello {
            version,
            binary: format!("{binary:016x}"),
            isa,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            host_cores: host_cores().unwrap_or(cores.len()),
            process: std::process::id(),
            cores,
            options,
        })
    }

    /// The hellos of all ranks.
    pub fn exchange(&self, network: &dyn Network) -> Result<Vec<Hello>, JobError> {
        let mine = serde_json::to_vec(self)
            .map_err(|error| JobError::Configuration { rank: network.rank(), problem: error.to_string() })?;
        let read = |(rank, bytes): (u32, Vec<u8>)| {
            let hello = serde_json::from_slice(&bytes).ok();
            // A process that runs has a core.
            let sound = hello.filter(|hello: &Hello| !hello.cores.is_empty());
            sound.ok_or(JobError::Garbled { rank, what: "hello" })
        };
        (0..).zip(network.all_gather(&mine)?).map(read).collect()
    }
}

/// Whether all ranks can work together; the error names the first one that differs from rank 0.
pub fn compare(hellos: &[Hello]) -> Result<(), JobError> {
    let Some((first, others)) = hellos.split_first() else { return Ok(()) };
    (1..).zip(others).try_for_each(|(rank, other)| compare_with(first, rank, other))
}

fn compare_with(first: &Hello, rank: u32, other: &Hello) -> Result<(), JobError> {
    let host = other.host.clone();
    if (&first.version, &first.binary) != (&other.version, &other.binary) {
        let binary = |hello: &Hello| format!("version {} (build {})", hello.version, hello.binary);
        return Err(JobError::Binary {
            rank,
            host,
            binary: binary(other),
            host_of_first: first.host.clone(),
            binary_of_first: binary(first),
        });
    }
    if first.isa != other.isa {
        return Err(JobError::Isa {
            rank,
            host,
            isa: other.isa.clone(),
            host_of_first: first.host.clone(),
            isa_of_first: first.isa.clone(),
        });
    }
    let (of_first, of_other) = (&first.options.shared, &other.options.shared);
    let names: BTreeSet<&String> = of_first.keys().chain(of_other.keys()).collect();
    for field in names {
        let (ours, theirs) = (of_first.get(field), of_other.get(field));
        if ours != theirs {
            let is_set = |value: &&Value| !value.is_null();
            let text =
                |value: Option<&Value>| value.filter(is_set).map_or("not set".into(), Value::to_string);
            let (value, value_of_first) = (text(theirs), text(ours));
            return Err(JobError::Field { field: field.clone(), rank, host, value, value_of_first });
        }
    }
    Ok(())
}

/// A fingerprint of the running executable.
pub(crate) fn fingerprint() -> io::Result<u64> {
    // What runs is behind this link even if a newer build has taken its file's place.
    let file = File::open("/proc/self/exe").or_else(|_| File::open(std::env::current_exe()?))?;
    fingerprint_of(file)
}

fn fingerprint_of(mut file: impl Read) -> io::Result<u64> {
    let (mut hasher, mut block) = (Xxh3::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut block)? {
            0 => return Ok(hasher.digest()),
            bytes => hasher.update(&block[..bytes]),
        }
    }
}

/// How many cores this host has, including those that this process may not use.
fn host_cores() -> Option<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    count(text.trim())
}

/// How many numbers a list like `0-3,8` has.
fn count(list: &str) -> Option<usize> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    };
    list.split(',').map(range).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hello(shared: &[(&str, Value)]) -> Hello {
        let usual =
            [("batch", json!(16)), ("layers", Value::Null), ("lr", json!(0.003)), ("size", json!("nano"))];
        let shared =
            usual.iter().chain(shared).map(|(name, value)| (name.to_string(), value.clone())).collect();
        let options = RankOptions { shared, ..RankOptions::default() };
        Hello { host: "a".into(), ..Hello::of_this_process(0, options).unwrap() }
    }

    fn difference(other: Hello) -> String {
        let same = hello(&[]);
        let hellos = [same.clone(), same, Hello { host: "b".into(), ..other }];
        compare(&hellos).unwrap_err().to_string()
    }

    #[test]
    fn a_process_knows_itself() {
        let one = hello(&[]);
        assert_eq!(one, hello(&[]));
        assert_eq!(one.process, std::process::id());
        assert!(!one.cores.is_empty() && one.host_cores >= one.cores.len(), "{one:?}");
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(one.binary, format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&bytes)));
    }

    #[test]
    fn another_binary_is_named() {
        let one = hello(&[]);
        let binary = format!("version {} (build {})", one.version, one.binary);
        assert_eq!(
            difference(Hello { binary: "00ff".into(), ..hello(&[]) }),
            format!(
                "rank 2 on b runs version {} (build 00ff), but rank 0 on a runs {binary}: \
                 install the same build on every host",
                one.version
            )
        );
    }

    #[test]
    fn another_instruction_set_is_named() {
        let isa = hello(&[]).isa;
        assert_eq!(
            difference(Hello { isa: "abacus".into(), ..hello(&[]) }),
            format!(
                "rank 2 on b computes with abacus, but rank 0 on a with {isa}: the bits are promised for one \
                 instruction set; take hosts of one kind"
            )
        );
    }

    #[test]
    fn the_first_field_that_differs_is_named_with_both_values() {
        let of = |field, value, first| {
            format!("`{field}` is {value} on rank 2 (b), but {first} on rank 0: give all ranks the same")
        };
        assert_eq!(difference(hello(&[("batch", json!(7))])), of("batch", "7", "16"));
        assert_eq!(difference(hello(&[("size", json!("tiny"))])), of("size", "\"tiny\"", "\"nano\""));
        assert_eq!(difference(hello(&[("layers", json!(3))])), of("layers", "3", "not set"));
        assert_eq!(difference(hello(&[("lr", json!(0.5))])), of("lr", "0.5", "0.003"));
    }

    #[test]
    fn cores_and_process_are_not_compared() {
        let one = hello(&[]);
        let options = RankOptions { cores: 3, cores_per_device: 2, ..one.options.clone() };
        compare(&[one.clone(), Hello { process: 1, cores: vec![9], options, ..one }]).unwrap();
        compare(&[]).unwrap();
    }

    #[test]
    fn lists_of_cores_are_counted() {
        let lists = ["0", "0-3", "0-3,8", "0-1,4-5,9", "3-1", "x"];
        assert_eq!(lists.map(count), [Some(1), Some(4), Some(5), Some(5), None, None]);
    }
}
