//! Steps whose kernels are checked have no fault, and the bits of steps whose kernels are not.

use phalanx::Check;
use phalanx::train::{Run, TrainConfig};

/// The hash of all weights after two steps of a model large enough for several blocks.
fn weights(model: &str, devices: usize, check: Check) -> String {
    let config = TrainConfig::default()
        .model(model.into())
        .layers(Some(1))
        .heads(Some(2))
        .width(Some(64))
        .context(Some(64))
        .dropout(0.1)
        .batch(8)
        .accumulate(2)
        .steps(2)
        .plan((devices > 1).then(|| "fsdp".into()))
        .devices(Some(devices))
        .cores_per_device(2)
        .check(check);
    let mut run = Run::new(config).expect("the configuration is legal");
    while !run.is_done() {
        run.step().expect("no kernel has a fault");
    }
    run.summary().expect("the weights can be read").weights_hash
}

#[test]
fn checked_kernels_give_the_same_bits() {
    for model in ["gpt2", "llama"] {
        let want = weights(model, 1, Check::None);
        for devices in [1, 2] {
            assert_eq!(weights(model, devices, Check::Kernels), want, "{model} on {devices} devices");
        }
    }
}
