//! On the devices of this machine; `cargo xtask test` installs one that is the CPU.

use std::env;

use super::*;
use crate::OpenCl;

/// The devices of this machine.
fn devices() -> Vec<ClDevice> {
    let devices = OpenCl::load().and_then(|library| library.devices());
    if env::var_os("PHALANX_WITHOUT_OPENCL").is_some() {
        return devices.unwrap_or_default();
    }
    let devices = devices.unwrap_or_else(|error| {
        panic!("{error}; `cargo xtask test` installs it, PHALANX_WITHOUT_OPENCL=1 leaves its tests out")
    });
    assert!(!devices.is_empty(), "a driver has a device");
    devices
}

fn probed(source: impl Fn(&str) -> String) -> Vec<(ClDevice, ProbeReport)> {
    let probe = |device: ClDevice| {
        let report = probe_with(&device, &source(SOURCE)).unwrap();
        (device, report)
    };
    devices().into_iter().filter(|device| device.platform.contains("Portable Computing")).map(probe).collect()
}

#[test]
fn the_device_of_the_tests_is_exact() {
    for (device, report) in probed(str::to_string) {
        assert_eq!(report.arithmetic(), Arithmetic::Exact, "{device}: {}", report.arithmetic());
        let compared: usize = report.rows.iter().map(|row| row.count).sum();
        assert_eq!(compared, 5 * (7 + 2) * COUNT);
    }
}

/// A driver that rounds a fused product twice.
#[test]
fn a_product_that_is_not_fused_is_found() {
    for (device, report) in probed(|source| source.replace("fma(a[i], b[i], c[i])", "a[i] * b[i] + c[i]")) {
        let Arithmetic::Different(row) = report.arithmetic() else { panic!("{device} is called exact") };
        assert_eq!((row.operation, row.different > 0), (Fused, true));
        let cancelling = report
            .rows
            .iter()
            .find(|row| row.operation == Fused && row.class == OperandClass::Cancelling)
            .unwrap();
        assert!(cancelling.different > COUNT / 2, "what is left of a sum that cancels is the rounding");
    }
}

/// A compiler that joins products and sums, as it may without the pragma.
#[test]
fn a_sum_that_is_fused_is_found() {
    for (device, report) in probed(|source| source.replace("FP_CONTRACT OFF", "FP_CONTRACT ON")) {
        let Arithmetic::Different(row) = report.arithmetic() else { panic!("{device} is called exact") };
        assert_eq!(row.operation, Expression, "{}", report.arithmetic());
    }
}

/// Flushing what is smaller than normal numbers is found where results are small.
#[test]
fn results_that_are_flushed_are_found() {
    let flushed = |source: &str| {
        let small = "(fabs(fma(a[i], b[i], c[i])) < 0x1p-126f ? 0.0f : fma(a[i], b[i], c[i]))";
        source.replacen("fma(a[i], b[i], c[i])", small, 1)
    };
    for (_, report) in probed(flushed) {
        let of = |class| report.rows.iter().find(|row| row.operation == Fused && row.class == class).unwrap();
        assert_eq!(of(OperandClass::Normal).different, 0);
        assert!(of(OperandClass::Subnormal).different > COUNT / 2);
    }
}

#[test]
fn divisions_alone_leave_a_device_usable() {
    for (_, report) in probed(|source| source.replace("a[i] / b[i]", "a[i] * (1.0f / b[i])")) {
        assert_eq!(report.arithmetic(), Arithmetic::ExactExcept { division: true, double: false });
        assert_eq!(report.arithmetic().to_string(), "exact except for divisions and square roots");
    }
}

#[test]
fn devices_are_found_by_address_and_by_a_part_of_their_name() {
    for device in devices() {
        let library = OpenCl::load().unwrap();
        assert_eq!(library.device(&device.address()).unwrap().name, device.name);
        assert_eq!(library.device(&device.name.to_uppercase()).unwrap().name, device.name);
        let error = library.device("opencl:7.9").err().unwrap().to_string();
        assert!(
            error.starts_with("there is no OpenCL device `opencl:7.9`; there is opencl:0.0 ("),
            "{error}"
        );
    }
}

#[test]
fn source_that_does_not_compile_is_told_with_what_the_compiler_says() {
    for device in devices() {
        let error = probe_with(&device, "kernel void broken(global float *a) { a[0] = b; }").unwrap_err();
        let OpenClError::Build { log, .. } = &error else { panic!("{error}") };
        assert!(log.contains('b'), "{log}");
    }
}
