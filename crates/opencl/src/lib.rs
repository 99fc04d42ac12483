//! OpenCL devices: which there are, and whether their arithmetic has the bits of the CPU.
//!
//! The library is loaded at run time, like MPI: nothing is needed to build, and a machine without it gets an error that
//! says what to install. What a driver claims about its arithmetic decides nothing: drivers that claim less are exact, and
//! some that claim more are not. So every device is probed ([`probe`]).

mod api;
mod device;
mod error;
mod numbers;
mod probe;
mod session;

pub use device::{ClDevice, ClDeviceKind, OpenCl};
pub use error::OpenClError;
pub use numbers::OperandClass;
pub use probe::{Arithmetic, ProbeDifference, ProbeReport, ProbeRow, ProbedOperation, probe};
