//! Whose times a book holds.

use std::collections::BTreeSet;

use phalanx_kernels::isa::Isa;
use xxhash_rust::xxh3::xxh3_64;

/// What the times of kernels depend on besides their signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The processor's model, as it calls itself.
    pub cpu: String,
    /// The instruction set of the fast kernels.
    pub isa: String,
    /// The version of the kernels; a build with debug assertions is a version of its own.
    pub version: String,
}

impl Machine {
    /// This machine with these kernels.
    pub fn this() -> Machine {
        let build = if cfg!(debug_assertions) { " with debug assertions" } else { "" };
        Machine {
            cpu: cpu().unwrap_or_else(|| std::env::consts::ARCH.to_string()),
            isa: format!("{:?}", Isa::current()).to_lowercase(),
            version: format!("{}{build}", env!("CARGO_PKG_VERSION")),
        }
    }

    /// The name of the file in which this machine's times are kept, other machines' beside it.
    pub fn file_name(&self) -> String {
        let Machine { cpu, isa, version } = self;
        format!("costs-{:016x}.json", xxh3_64(format!("{cpu}\n{isa}\n{version}").as_bytes()))
    }

    /// What several machines are called together; their order plays no part.
    pub(super) fn together<'a>(machines: impl Iterator<Item = &'a Machine> + Clone) -> Machine {
        let join = |field: fn(&Machine) -> &str| {
            let names: BTreeSet<&str> = machines.clone().map(field).collect();
            names.into_iter().collect::<Vec<_>>().join(" + ")
        };
        Machine { cpu: join(|one| &one.cpu), isa: join(|one| &one.isa), version: join(|one| &one.version) }
    }
}

/// The processor's model, where the system tells.
fn cpu() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(line.trim_start_matches([' ', '\t', ':']).trim_end().to_string())
}
