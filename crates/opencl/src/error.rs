//! Why OpenCL or a device of it cannot be used.

/// Why OpenCL or one of its devices cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenClError {
    /// There is no library.
    #[error(
        "no OpenCL library ({tried}): install one and a driver (apt install ocl-icd-libopencl1 pocl-opencl-icd for CPUs, or \
         the driver of the GPU's maker)"
    )]
    NoLibrary {
        /// What was looked for, and why it did not do.
        tried: String,
    },
    /// There is a library and no driver.
    #[error(
        "OpenCL has no driver here: install one (apt install pocl-opencl-icd for CPUs, or that of the GPU's maker)"
    )]
    NoDriver,
    /// There is no such device.
    #[error("there is no OpenCL device `{wanted}`; there is {}", list(.found))]
    NoDevice {
        /// What was asked for.
        wanted: String,
        /// Addresses and names of all devices.
        found: Vec<String>,
    },
    /// A call failed.
    #[error("{device}: {call} failed with code {code}{}", meaning(*.code))]
    Call {
        /// The device, or what else it was about.
        device: String,
        /// The function.
        call: &'static str,
        /// What it returned.
        code: i32,
    },
    /// A kernel's source does not compile.
    #[error("{device} cannot compile a kernel: {log}")]
    Build {
        /// The device.
        device: String,
        /// What its compiler says.
        log: String,
    },
}

fn list(found: &[String]) -> String {
    if found.is_empty() { "none".into() } else { found.join(", ") }
}

/// The names of codes that a user can do something about.
fn meaning(code: i32) -> &'static str {
    match code {
        -2 => " (device not available)",
        -4 => " (no memory on the device)",
        -5 => " (out of resources)",
        -6 => " (no memory on the host)",
        -61 => " (invalid buffer size)",
        _ => "",
    }
}
