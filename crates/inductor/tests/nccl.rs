//! The cost models against results of the reference.
#![allow(clippy::unwrap_used)]

use crate::golden::{answered, cases, compare};
use phalanx_inductor::mode::PassMode;
use phalanx_inductor::nccl::{Gpu, NcclMachine, NcclOp, NcclTraffic, milliseconds, saturation_bytes};
use serde_json::{Map, Value};

#[test]
fn every_cost_is_that_of_the_reference() {
    let mut count = 0;
    for case in cases(include_bytes!("data/nccl.jsonl.gz")) {
        let results = ["ms", "min_saturation_bytes_eff_0.9"];
        let expected: Map<String, Value> =
            results.iter().filter_map(|&key| Some((key.into(), case.get(key)?.clone()))).collect();
        // A point's version chooses the model, whatever the mode.
        for mode in [PassMode::Reference, PassMode::Newer, PassMode::Fixed] {
            let found = answered(&case, mode);
            assert_eq!(found.as_object().unwrap().len(), expected.len(), "{case}");
            assert_eq!(compare(&found, &Value::Object(expected.clone()), &case.to_string()), expected.len());
        }
        count += 1;
    }
    assert_eq!(count, 400);
}

#[test]
fn devices_without_nvlink_are_slower() {
    let fast = NcclMachine::new(Gpu::Ampere);
    let slow = NcclMachine { has_nvlink: false, ..fast };
    let traffic = NcclTraffic { op: NcclOp::AllReduce, ranks: 8, bytes: 1 << 26 };
    let time = |machine| milliseconds(machine, &traffic, PassMode::Newer).unwrap();
    // A ring over PCIe, 24 GB/s for every byte 14/8 times, 14 hops of 5.7 us.
    let expected = (8.4 + 14.0 * 5.7 + f64::from(1 << 26) * 14.0 / 8.0 / 24e3) / 1e3;
    assert!((time(&slow) - expected).abs() < 1e-9 * expected, "{} {expected}", time(&slow));
    assert!(time(&fast) < time(&slow));
    assert_eq!(saturation_bytes(&slow, NcclOp::AllGather, 8, 0.5), Some(4_350_000));
}

#[test]
fn only_the_newer_model_knows_point_to_point() {
    let traffic = NcclTraffic { op: NcclOp::of("batch_p2p_ops").unwrap(), ranks: 2, bytes: 1000 };
    let time = |mode| milliseconds(&NcclMachine::new(Gpu::Hopper), &traffic, mode);
    assert_eq!(time(PassMode::Reference), None);
    // One hop with the low-latency protocol, at most 141 GB/s twice over.
    let expected = (6.6 + 0.6 + 1000.0 / (1000.0 * 141.0 * 2.0)) / 1e3;
    assert!((time(PassMode::Newer).unwrap() - expected).abs() < 1e-12);
    assert_eq!(saturation_bytes(&NcclMachine::new(Gpu::Hopper), traffic.op, 2, 0.9), None);
}
