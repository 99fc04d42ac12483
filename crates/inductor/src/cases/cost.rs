//! Costs of collectives.

use serde::Deserialize;

use super::{Answer, CaseError, Keys, collect, parse};
use crate::mode::PassMode;
use crate::nccl::{Gpu, NcclMachine, NcclOp, NcclTraffic, milliseconds, saturation_bytes};

#[derive(Deserialize)]
struct CostCase {
    /// Which model; by default the mode's.
    version: Option<Version>,
    #[serde(default)]
    gpu: GpuJson,
    group_size: u64,
    bytes: u64,
    collective: String,
    intra_node_bw: Option<f64>,
    inter_node_bw: Option<f64>,
}

#[derive(Clone, Copy, Deserialize)]
enum Version {
    #[serde(rename = "2.11.0", alias = "2.11")]
    Older,
    #[serde(rename = "2.15.0", alias = "2.15")]
    Newer,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum GpuJson {
    Volta,
    #[default]
    Ampere,
    Hopper,
    Blackwell,
}

impl From<GpuJson> for Gpu {
    fn from(gpu: GpuJson) -> Gpu {
        match gpu {
            GpuJson::Volta => Gpu::Volta,
            GpuJson::Ampere => Gpu::Ampere,
            GpuJson::Hopper => Gpu::Hopper,
            GpuJson::Blackwell => Gpu::Blackwell,
        }
    }
}

const SATURATION: &str = "min_saturation_bytes_eff_0.9";
/// Most members of a group: the hops of a ring of them are whole numbers.
const MOST_RANKS: u64 = 1 << 32;

pub(super) fn keys() -> Vec<&'static str> {
    vec!["ms", SATURATION]
}

pub(super) fn answer(line: &[u8], keys: &Keys, mode: PassMode) -> Result<Answer, CaseError> {
    let case: CostCase = parse(line)?;
    case.check()?;
    let (version, mode) = match (case.version, mode) {
        (Some(Version::Older), _) | (None, PassMode::Reference) => ("2.11", PassMode::Reference),
        (Some(Version::Newer), _) | (None, _) => ("2.15", PassMode::Newer),
    };
    let unknown = || CaseError::Collective { name: case.collective.clone(), version };
    let op = NcclOp::of(&case.collective).ok_or_else(unknown)?;
    let machine = NcclMachine {
        intra_bandwidth: case.intra_node_bw,
        inter_bandwidth: case.inter_node_bw,
        ..NcclMachine::new(case.gpu.into())
    };
    let traffic = NcclTraffic { op, ranks: case.group_size, bytes: case.bytes };
    let time = milliseconds(&machine, &traffic, mode).ok_or_else(unknown)?;
    let saturation = match mode {
        PassMode::Reference => None,
        _ => saturation_bytes(&machine, op, case.group_size, 0.9),
    };
    let saturation = saturation.map(|bytes| (SATURATION, bytes.into()));
    Ok(collect(keys, [("ms", time.into())].into_iter().chain(saturation)))
}

impl CostCase {
    fn check(&self) -> Result<(), CaseError> {
        if !(1..=MOST_RANKS).contains(&self.group_size) {
            let needed = "at least 1 and at most 2^32";
            return Err(CaseError::Range { path: "group_size", value: self.group_size as f64, needed });
        }
        let bandwidths = [("intra_node_bw", self.intra_node_bw), ("inter_node_bw", self.inter_node_bw)];
        match bandwidths.into_iter().find(|(_, value)| value.is_some_and(|value| value <= 0.0)) {
            Some((path, value)) => {
                Err(CaseError::Range { path, value: value.unwrap_or_default(), needed: "more than 0" })
            }
            None => Ok(()),
        }
    }
}
