//! What a rank sends to all others about itself when it starts, and whether they fit together.
//!
//! A hello is small and the same text for the same process. [`compare`] is a pure function of all hellos, so every rank
//! comes to the same result. It does not look at what rank 0 decides for all, nor at what each may have its own way.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use xxhash_rust::xxh3::Xxh3;

use phalanx_kernels::spmd::pin::allowed_cores;
use phalanx_net::Network;

use super::JobError;
use crate::costs::Machine;
use crate::train::TrainConfig;

/// Fields of a configuration that ranks need not have in common: what rank 0 decides for all, files that each writes
/// for itself, and how many cores each uses.
pub const FREE_FIELDS: [&str; 7] = ["plan", "costs", "seed", "save", "log_dir", "cores", "cores_per_device"];

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
    /// How many of them it is configured to use; 0 for all.
    pub cores_wanted: usize,
    /// How many each of its devices is configured to use; 0 for an even share.
    pub cores_per_device: usize,
    /// The configuration, in TOML.
    pub configuration: String,
}

impl Hello {
    /// What this process, which is rank `rank`, has to say.
    pub fn of_this_process(rank: u32, config: &TrainConfig) -> Result<Hello, JobError> {
        let Machine { isa, version, .. } = Machine::this();
        let binary = fingerprint().map_err(|source| JobError::Executable { rank, source })?;
        // TOML has no numbers above 63 bits, and the seed is free.
        let configuration = toml::to_string(&TrainConfig { seed: 0, ..config.clone() })
            .map_err(|error| JobError::Configuration { rank, problem: error.to_string() })?;
        let cores = allowed_cores();
        Ok(Hello {
            version,
            binary: format!("{binary:016x}"),
            isa,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            host_cores: host_cores().unwrap_or(cores.len()),
            process: std::process::id(),
            cores,
            cores_wanted: config.cores,
            cores_per_device: config.cores_per_device,
            configuration,
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
    let (of_first, of_other) = (fields(first, 0)?, fields(other, rank)?);
    let names: BTreeSet<&String> = of_first.keys().chain(of_other.keys()).collect();
    let compared = names.into_iter().filter(|name| !FREE_FIELDS.contains(&name.as_str()));
    for field in compared {
        let (ours, theirs) = (of_first.get(field), of_other.get(field));
        if ours != theirs {
            let text = |value: Option<&Value>| value.map_or("not set".into(), Value::to_string);
            let (value, value_of_first) = (text(theirs), text(ours));
            return Err(JobError::Field { field: field.clone(), rank, host, value, value_of_first });
        }
    }
    Ok(())
}

fn fields(hello: &Hello, rank: u32) -> Result<Table, JobError> {
    hello.configuration.parse().map_err(|_| JobError::Garbled { rank, what: "configuration" })
}

/// A fingerprint of the running executable.
fn fingerprint() -> io::Result<u64> {
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
    use super::*;

    fn hello(edit: impl FnOnce(&mut TrainConfig)) -> Hello {
        let mut config = TrainConfig::default();
        edit(&mut config);
        Hello { host: "a".into(), ..Hello::of_this_process(0, &config).unwrap() }
    }

    fn difference(other: Hello) -> String {
        let same = hello(|_| ());
        let hellos = [same.clone(), same, Hello { host: "b".into(), ..other }];
        compare(&hellos).unwrap_err().to_string()
    }

    #[test]
    fn a_process_knows_itself() {
        let one = hello(|_| ());
        assert_eq!(one, hello(|_| ()));
        assert_eq!(one.process, std::process::id());
        assert!(!one.cores.is_empty() && one.host_cores >= one.cores.len(), "{one:?}");
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(one.binary, format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&bytes)));
    }

    #[test]
    fn another_binary_is_named() {
        let one = hello(|_| ());
        let binary = format!("version {} (build {})", one.version, one.binary);
        assert_eq!(
            difference(Hello { binary: "00ff".into(), ..hello(|_| ()) }),
            format!(
                "rank 2 on b runs version {} (build 00ff), but rank 0 on a runs {binary}: \
                 install the same build on every host",
                one.version
            )
        );
    }

    #[test]
    fn another_instruction_set_is_named() {
        let isa = hello(|_| ()).isa;
        assert_eq!(
            difference(Hello { isa: "abacus".into(), ..hello(|_| ()) }),
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
        assert_eq!(difference(hello(|config| config.batch = 7)), of("batch", "7", "16"));
        assert_eq!(
            difference(hello(|config| config.size = "tiny".into())),
            of("size", "\"tiny\"", "\"nano\"")
        );
        assert_eq!(difference(hello(|config| config.layers = Some(3))), of("layers", "3", "not set"));
        assert_eq!(difference(hello(|config| config.lr = 0.5)), of("lr", "0.5", "0.003"));
    }

    #[test]
    fn what_each_rank_may_have_its_own_way_is_not_compared() {
        let free = hello(|config| {
            config.plan = Some("dp2".into());
            config.costs = Some("costs.json".into());
            config.seed = u64::MAX;
            config.save = Some("out".into());
            (config.cores, config.cores_per_device) = (3, 2);
        });
        compare(&[hello(|_| ()), Hello { process: 1, cores: vec![9], ..free }]).unwrap();
        compare(&[]).unwrap();
    }

    #[test]
    fn lists_of_cores_are_counted() {
        let lists = ["0", "0-3", "0-3,8", "0-1,4-5,9", "3-1", "x"];
        assert_eq!(lists.map(count), [Some(1), Some(4), Some(5), Some(5), None, None]);
    }
}
