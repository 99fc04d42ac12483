//! The devices of all drivers.

use std::ffi::c_void;
use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;

use crate::OpenClError;
use crate::api::{Api, Handle};

/// `CL_PLATFORM_NOT_FOUND_KHR`: no driver is installed.
const NO_PLATFORM: i32 = -1001;
/// `CL_DEVICE_NOT_FOUND`: a driver has no device.
const NO_DEVICE: i32 = -1;
const ALL_DEVICES: u64 = 0xffff_ffff;

/// Numbers of questions to platforms and devices.
mod ask {
    pub const PLATFORM_NAME: u32 = 0x0902;
    pub const KIND: u32 = 0x1000;
    pub const UNITS: u32 = 0x1002;
    pub const LARGEST_BUFFER: u32 = 0x1010;
    pub const MEMORY: u32 = 0x101f;
    pub const NAME: u32 = 0x102b;
    pub const VERSION: u32 = 0x102f;
    pub const EXTENSIONS: u32 = 0x1030;
}

/// The system's OpenCL.
pub struct OpenCl {
    api: Arc<Api>,
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClDeviceKind {
    /// The host's processor.
    Cpu,
    /// A graphics processor.
    Gpu,
    /// Anything else.
    Other,
}

impl fmt::Display for ClDeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ClDeviceKind::Cpu => "cpu",
            ClDeviceKind::Gpu => "gpu",
            ClDeviceKind::Other => "other",
        })
    }
}

/// A device of a driver.
#[derive(Clone)]
pub struct ClDevice {
    pub(crate) api: Arc<Api>,
    pub(crate) handle: Handle,
    /// Its place: the driver's number and its own.
    place: (usize, usize),
    /// What its maker calls it.
    pub name: String,
    /// The driver.
    pub platform: String,
    /// The version of OpenCL and of the driver.
    pub version: String,
    /// What it is.
    pub kind: ClDeviceKind,
    /// How many units compute at the same time.
    pub units: u32,
    /// Bytes of its memory.
    pub memory: u64,
    /// The most bytes of one buffer.
    pub largest_buffer: u64,
    /// Whether it computes in double precision.
    pub has_f64: bool,
}

impl OpenCl {
    /// Loads the system's library.
    pub fn load() -> Result<OpenCl, OpenClError> {
        Ok(OpenCl { api: Arc::new(Api::load()?) })
    }

    /// All devices, in the order of drivers.
    pub fn devices(&self) -> Result<Vec<ClDevice>, OpenClError> {
        // SAFETY: the list is as long as the number says.
        let platforms = list(|count, all, found| unsafe { (self.api.platforms)(count, all, found) })
            .map_err(|code| match code {
                NO_PLATFORM => OpenClError::NoDriver,
                code => OpenClError::Call { device: "OpenCL".into(), call: "clGetPlatformIDs", code },
            })?;
        let mut devices = Vec::new();
        for (number, platform) in platforms.into_iter().enumerate() {
            // SAFETY: as above, and the platform is one of the library's.
            let question =
                |id, size, to, needed| unsafe { (self.api.platform_info)(platform, id, size, to, needed) };
            let name = text(&question, ask::PLATFORM_NAME);
            let found = list(|count, all, found| {
                // SAFETY: as above.
                unsafe { (self.api.devices)(platform, ALL_DEVICES, count, all, found) }
            });
            let found = match found {
                Ok(found) => found,
                Err(NO_DEVICE) => Vec::new(),
                Err(code) => return Err(OpenClError::Call { device: name, call: "clGetDeviceIDs", code }),
            };
            let device = |(index, handle)| ClDevice::new(&self.api, handle, (number, index), &name);
            devices.extend(found.into_iter().enumerate().map(device));
        }
        Ok(devices)
    }

    /// The device at an address such as `opencl:0.1`, or the first one whose name contains `wanted` in any case.
    pub fn device(&self, wanted: &str) -> Result<ClDevice, OpenClError> {
        let all = self.devices()?;
        let part = wanted.strip_prefix("opencl:").unwrap_or(wanted).to_lowercase();
        let at = all.iter().find(|device| device.address() == format!("opencl:{part}"));
        let named = || all.iter().find(|device| device.name.to_lowercase().contains(&part));
        let first = || all.first().filter(|_| wanted == "opencl");
        at.or_else(first).or_else(named).cloned().ok_or_else(|| OpenClError::NoDevice {
            wanted: wanted.into(),
            found: all.iter().map(ClDevice::to_string).collect(),
        })
    }
}

impl ClDevice {
    fn new(api: &Arc<Api>, handle: Handle, place: (usize, usize), platform: &str) -> ClDevice {
        // SAFETY: the device is one of the library's; what is written is as long as it is told.
        let question = |id, size, to, needed| unsafe { (api.device_info)(handle, id, size, to, needed) };
        let kind = match number(&question, ask::KIND) {
            kind if kind & 2 != 0 => ClDeviceKind::Cpu,
            kind if kind & 4 != 0 => ClDeviceKind::Gpu,
            _ => ClDeviceKind::Other,
        };
        ClDevice {
            api: Arc::clone(api),
            handle,
            place,
            name: text(&question, ask::NAME),
            platform: platform.into(),
            version: text(&question, ask::VERSION),
            kind,
            units: number(&question, ask::UNITS) as u32,
            memory: number(&question, ask::MEMORY),
            largest_buffer: number(&question, ask::LARGEST_BUFFER),
            has_f64: text(&question, ask::EXTENSIONS).split(' ').any(|name| name == "cl_khr_fp64"),
        }
    }

    /// How it is named on the command line: `opencl:` and the numbers of its driver and of itself.
    pub fn address(&self) -> String {
        format!("opencl:{}.{}", self.place.0, self.place.1)
    }
}

impl fmt::Display for ClDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.address(), self.name)
    }
}

/// All objects of a list that is asked for twice: how many there are, and which.
fn list(ask: impl Fn(u32, *mut Handle, *mut u32) -> i32) -> Result<Vec<Handle>, i32> {
    let mut count = 0;
    let code = ask(0, null_mut(), &mut count);
    if code != 0 {
        return Err(code);
    }
    let mut all = vec![null_mut(); count as usize];
    match ask(count, all.as_mut_ptr(), null_mut()) {
        0 => Ok(all),
        code => Err(code),
    }
}

/// A question to a platform or device: its number, the most bytes of an answer, where it goes, and how long it is.
type Question<'a> = &'a dyn Fn(u32, usize, *mut c_void, *mut usize) -> i32;

/// The answer to a question for text; empty if there is none.
fn text(question: Question<'_>, id: u32) -> String {
    let mut length = 0;
    if question(id, 0, null_mut(), &mut length) != 0 {
        return String::new();
    }
    let mut bytes = vec![0u8; length];
    if question(id, length, bytes.as_mut_ptr().cast(), null_mut()) != 0 {
        return String::new();
    }
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').trim().into()
}

/// The answer to a question for a number of 4 or 8 bytes; 0 if there is none.
fn number(question: Question<'_>, id: u32) -> u64 {
    let (mut length, mut bytes) = (0, [0u8; 8]);
    let is_told = question(id, bytes.len(), bytes.as_mut_ptr().cast(), &mut length) == 0;
    match length {
        4 if is_told => u64::from(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        8 if is_told => u64::from_ne_bytes(bytes),
        _ => 0,
    }
}
