//! A kernel on a device, from source to result, one after the other.

use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};

use crate::api::{Handle, Owned};
use crate::{ClDevice, OpenClError};

const READ_ONLY_COPY: u64 = 4 | 32;
const WRITE_ONLY: u64 = 2;
const BUILD_LOG: u32 = 0x1183;
const BLOCKING: u32 = 1;

/// What connects the host with a device: a queue in which one command follows the other.
pub(crate) struct Session {
    device: ClDevice,
    queue: Owned,
    context: Owned,
}

/// A source that was compiled for a device.
pub(crate) struct Compiled(Owned);

impl Session {
    pub(crate) fn new(device: &ClDevice) -> Result<Session, OpenClError> {
        let api = &device.api;
        let context = make(device, "clCreateContext", api.release_context, |code| {
            // SAFETY: one device, no properties and no callback.
            unsafe { (api.context)(null(), 1, &device.handle, null_mut(), null_mut(), code) }
        })?;
        let queue = make(device, "clCreateCommandQueue", api.release_queue, |code| {
            // SAFETY: the context is the device's.
            unsafe { (api.queue)(context.handle, device.handle, 0, code) }
        })?;
        Ok(Session { device: device.clone(), queue, context })
    }

    /// Compiles a source.
    pub(crate) fn compile(&self, source: &str, options: &str) -> Result<Compiled, OpenClError> {
        let api = &self.device.api;
        let (source, options) = (c_string(source), c_string(options));
        let program = make(&self.device, "clCreateProgramWithSource", api.release_program, |code| {
            // SAFETY: one text, which ends with a zero.
            unsafe { (api.source)(self.context.handle, 1, &source.as_ptr(), null(), code) }
        })?;
        // SAFETY: the device is the context's; there is no callback, so the call ends when it is done.
        let code = unsafe {
            (api.build)(program.handle, 1, &self.device.handle, options.as_ptr(), null_mut(), null_mut())
        };
        match code {
            0 => Ok(Compiled(program)),
            code => Err(OpenClError::Build {
                device: self.device.to_string(),
                log: format!("code {code}: {}", self.build_log(program.handle)),
            }),
        }
    }

    /// Runs `items` items of the kernel `entry`, whose arguments are `reads` and then the result of `bytes` bytes.
    pub(crate) fn run(
        &self,
        compiled: &Compiled,
        entry: &str,
        reads: &[&[u8]],
        bytes: usize,
        items: usize,
    ) -> Result<Vec<u8>, OpenClError> {
        let api = &self.device.api;
        let name = c_string(entry);
        let kernel = make(&self.device, "clCreateKernel", api.release_kernel, |code| {
            // SAFETY: the name ends with a zero.
            unsafe { (api.kernel)(compiled.0.handle, name.as_ptr(), code) }
        })?;
        let mut buffers = Vec::new();
        for read in reads {
            buffers.push(self.buffer(READ_ONLY_COPY, read.len(), read.as_ptr().cast_mut().cast())?);
        }
        buffers.push(self.buffer(WRITE_ONLY, bytes, null_mut())?);
        for (number, buffer) in (0..).zip(&buffers) {
            let argument: *const Handle = &buffer.handle;
            // SAFETY: an argument of the size of a handle, which is read at once.
            let code = unsafe {
                (api.set_argument)(kernel.handle, number, size_of::<Handle>(), argument.cast::<c_void>())
            };
            self.check("clSetKernelArg", code)?;
        }
        // SAFETY: the kernel has all its arguments, each as long as `items` items need.
        let code = unsafe {
            (api.launch)(self.queue.handle, kernel.handle, 1, null(), &items, null(), 0, null(), null_mut())
        };
        self.check("clEnqueueNDRangeKernel", code)?;
        let mut result = vec![0; bytes];
        let from = buffers[reads.len()].handle;
        // SAFETY: the buffer and the vector have this many bytes; the call ends when they are there.
        let code = unsafe {
            let to = result.as_mut_ptr().cast();
            (api.read)(self.queue.handle, from, BLOCKING, 0, bytes, to, 0, null(), null_mut())
        };
        self.check("clEnqueueReadBuffer", code)?;
        Ok(result)
    }

    fn buffer(&self, flags: u64, bytes: usize, from: *mut c_void) -> Result<Owned, OpenClError> {
        let api = &self.device.api;
        make(&self.device, "clCreateBuffer", api.release_buffer, |code| {
            // SAFETY: `from` is null, or has this many bytes, which are copied at once.
            unsafe { (api.buffer)(self.context.handle, flags, bytes, from, code) }
        })
    }

    fn build_log(&self, program: Handle) -> String {
        let mut log = vec![0u8; 4096];
        // SAFETY: at most as many bytes are written as there are.
        unsafe {
            let to = log.as_mut_ptr().cast();
            (self.device.api.build_info)(program, self.device.handle, BUILD_LOG, log.len(), to, null_mut())
        };
        String::from_utf8_lossy(&log).trim_matches(['\0', '\n', ' ']).into()
    }

    fn check(&self, call: &'static str, code: i32) -> Result<(), OpenClError> {
        match code {
            0 => Ok(()),
            code => Err(OpenClError::Call { device: self.device.to_string(), call, code }),
        }
    }
}

/// Makes an object by `call`, which is released by `release`.
fn make(
    device: &ClDevice,
    call: &'static str,
    release: unsafe extern "system" fn(Handle) -> i32,
    create: impl FnOnce(&mut i32) -> Handle,
) -> Result<Owned, OpenClError> {
    let mut code = 0;
    let handle = create(&mut code);
    match code {
        0 if !handle.is_null() => Ok(Owned::new(handle, release)),
        code => Err(OpenClError::Call { device: device.to_string(), call, code }),
    }
}

/// Our own texts have no zeros.
fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}
