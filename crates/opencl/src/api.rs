//! The functions of OpenCL 1.2 that are used, looked up in the system's library.

use std::ffi::{c_char, c_void};
use std::mem::ManuallyDrop;

use libloading::Library as Object;

use crate::OpenClError;

/// Any object of OpenCL.
pub(crate) type Handle = *mut c_void;

#[cfg(target_os = "macos")]
const NAMES: &[&str] = &["/System/Library/Frameworks/OpenCL.framework/OpenCL"];
#[cfg(windows)]
const NAMES: &[&str] = &["OpenCL.dll"];
#[cfg(not(any(target_os = "macos", windows)))]
const NAMES: &[&str] = &["libOpenCL.so.1", "libOpenCL.so"];

macro_rules! functions {
    ($($name:literal $field:ident($($type:ty),*) -> $result:ty;)*) => {
        /// The functions, as they are.
        pub(crate) struct Api {
            $(pub(crate) $field: unsafe extern "system" fn($($type),*) -> $result,)*
            /// Keeps them loaded, for good: drivers have threads of their own, which may outlive every object.
            _object: ManuallyDrop<Object>,
        }

        impl Api {
            fn of(object: Object) -> Result<Api, libloading::Error> {
                // SAFETY: these are the types that the standard gives to functions of these names.
                $(let $field = *unsafe { object.get(concat!($name, "\0").as_bytes()) }?;)*
                Ok(Api { $($field,)* _object: ManuallyDrop::new(object) })
            }
        }
    };
}

functions! {
    "clGetPlatformIDs" platforms(u32, *mut Handle, *mut u32) -> i32;
    "clGetPlatformInfo" platform_info(Handle, u32, usize, *mut c_void, *mut usize) -> i32;
    "clGetDeviceIDs" devices(Handle, u64, u32, *mut Handle, *mut u32) -> i32;
    "clGetDeviceInfo" device_info(Handle, u32, usize, *mut c_void, *mut usize) -> i32;
    "clCreateContext" context(*const isize, u32, *const Handle, *mut c_void, *mut c_void, *mut i32) -> Handle;
    "clReleaseContext" release_context(Handle) -> i32;
    "clCreateCommandQueue" queue(Handle, Handle, u64, *mut i32) -> Handle;
    "clReleaseCommandQueue" release_queue(Handle) -> i32;
    "clCreateProgramWithSource" source(Handle, u32, *const *const c_char, *const usize, *mut i32) -> Handle;
    "clBuildProgram" build(Handle, u32, *const Handle, *const c_char, *mut c_void, *mut c_void) -> i32;
    "clGetProgramBuildInfo" build_info(Handle, Handle, u32, usize, *mut c_void, *mut usize) -> i32;
    "clReleaseProgram" release_program(Handle) -> i32;
    "clCreateKernel" kernel(Handle, *const c_char, *mut i32) -> Handle;
    "clReleaseKernel" release_kernel(Handle) -> i32;
    "clSetKernelArg" set_argument(Handle, u32, usize, *const c_void) -> i32;
    "clCreateBuffer" buffer(Handle, u64, usize, *mut c_void, *mut i32) -> Handle;
    "clReleaseMemObject" release_buffer(Handle) -> i32;
    "clEnqueueReadBuffer" read(
        Handle, Handle, u32, usize, usize, *mut c_void, u32, *const Handle, *mut Handle
    ) -> i32;
    "clEnqueueNDRangeKernel" launch(
        Handle, Handle, u32, *const usize, *const usize, *const usize, u32, *const Handle, *mut Handle
    ) -> i32;
}

impl Api {
    /// Loads the system's library.
    pub(crate) fn load() -> Result<Api, OpenClError> {
        let mut tried = Vec::new();
        for name in NAMES {
            // SAFETY: the loader of OpenCL does nothing of note when it is loaded.
            match unsafe { Object::new(*name) }.and_then(Api::of) {
                Ok(api) => return Ok(api),
                Err(error) => tried.push(error.to_string()),
            }
        }
        Err(OpenClError::NoLibrary { tried: tried.join("; ") })
    }
}

/// An object that is released when it is dropped.
pub(crate) struct Owned {
    pub(crate) handle: Handle,
    release: unsafe extern "system" fn(Handle) -> i32,
}

impl Owned {
    /// Takes over an object that was just made.
    pub(crate) fn new(handle: Handle, release: unsafe extern "system" fn(Handle) -> i32) -> Owned {
        Owned { handle, release }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the object was made by the library, is released once, and the function stays loaded.
        unsafe { (self.release)(self.handle) };
    }
}
