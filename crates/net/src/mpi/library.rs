//! An MPI library, found and loaded at run time: the program is built without any and runs with whichever is there.
//!
//! Its functions are called through [`Library`], each as a method that turns an error code into a [`NetError`]. No
//! function with more than eight arguments is used: the ninth goes over the stack, where some machines pack narrow ones
//! closer.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library as Object, RTLD_GLOBAL, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};

use super::abi::{Abi, Handle, MPICH, STANDARD};
use crate::NetError;

/// What started the processes of the job, as far as the caller knows: a library works only with the launcher it belongs
/// to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpiexec` of MPICH or a relative.
    Mpich,
    /// Something else, or nothing.
    Unknown,
}

#[cfg(not(target_os = "macos"))]
mod names {
    pub(super) const STANDARD: &[&str] = &["libmpi_abi.so.1", "libmpi_abi.so.0"];
    pub(super) const OPEN_MPI: &[&str] = &["libmpi.so.40"];
    pub(super) const MPICH: &[&str] = &["libmpi.so.12", "libmpich.so.12"];
    pub(super) const ANY: &[&str] = &["libmpi.so", "libmpich.so"];
}

#[cfg(target_os = "macos")]
mod names {
    pub(super) const STANDARD: &[&str] = &["libmpi_abi.1.dylib", "libmpi_abi.0.dylib"];
    pub(super) const OPEN_MPI: &[&str] = &["libmpi.40.dylib"];
    pub(super) const MPICH: &[&str] = &["libmpi.12.dylib", "libmpich.12.dylib"];
    pub(super) const ANY: &[&str] = &["libmpi.dylib", "libmpich.dylib"];
}

impl Launcher {
    /// Names of libraries in the order in which they are tried.
    fn names(self) -> Vec<PathBuf> {
        let groups = match self {
            Launcher::OpenMpi => [names::OPEN_MPI, names::STANDARD, names::ANY, &[]],
            Launcher::Mpich => [names::STANDARD, names::MPICH, names::ANY, &[]],
            Launcher::Unknown => [names::STANDARD, names::OPEN_MPI, names::MPICH, names::ANY],
        };
        groups.concat().into_iter().map(PathBuf::from).collect()
    }

    /// Whether a library with this version text can belong to it.
    fn starts(self, version: &str) -> bool {
        let open_mpi = version.contains("Open MPI");
        match self {
            Launcher::OpenMpi => open_mpi,
            Launcher::Mpich => !open_mpi,
            Launcher::Unknown => true,
        }
    }
}

/// The length of the longest text any library writes, its version.
const TEXT: usize = 8192;

macro_rules! functions {
    ($($name:literal $method:ident($($arg:ident: $type:ty),*);)*) => {
        /// The functions, as they are.
        struct Functions { $($method: unsafe extern "C" fn($($type),*) -> c_int),* }

        impl Functions {
            fn load(object: &Object) -> Result<Functions, libloading::Error> {
                Ok(Functions {
                    // SAFETY: the standard gives the function of this name these arguments.
                    $($method: *unsafe { object.get(concat!($name, "\0").as_bytes()) }?),*
                })
            }
        }

        impl Library {
            $(
                #[doc = concat!("Calls `", $name, "`.")]
                ///
                /// # Safety
                /// As the standard says, and no other thread is in the library.
                #[allow(clippy::too_many_arguments, reason = "the standard's, not ours")]
                #[allow(dead_code, reason = "`MPI_Testsome` is called by `test_some` only")]
                pub(crate) unsafe fn $method(&self, $($arg: $type),*) -> Result<(), NetError> {
                    // SAFETY: the caller's duty.
                    match unsafe { (self.functions.$method)($($arg),*) } {
                        0 => Ok(()),
                        code => Err(self.failure($name, code)),
                    }
                }
            )*
        }
    };
}

functions! {
    "MPI_Init_thread" init_thread(argc: *mut c_int, argv: *mut c_void, required: c_int, provided: *mut c_int);
    "MPI_Initialized" initialized(flag: *mut c_int);
    "MPI_Finalize" finalize();
    "MPI_Abort" abort(comm: Handle, code: c_int);
    "MPI_Get_library_version" get_library_version(text: *mut c_char, length: *mut c_int);
    "MPI_Error_string" error_string(code: c_int, text: *mut c_char, length: *mut c_int);
    "MPI_Error_class" error_class(code: c_int, class: *mut c_int);
    "MPI_Comm_rank" comm_rank(comm: Handle, rank: *mut c_int);
    "MPI_Comm_size" comm_size(comm: Handle, size: *mut c_int);
    "MPI_Comm_dup" comm_dup(comm: Handle, copy: *mut Handle);
    "MPI_Comm_set_errhandler" comm_set_errhandler(comm: Handle, handler: Handle);
    "MPI_Comm_get_attr" comm_get_attr(comm: Handle, key: c_int, value: *mut *const c_int, flag: *mut c_int);
    "MPI_Type_contiguous" type_contiguous(count: c_int, of: Handle, made: *mut Handle);
    "MPI_Type_create_hvector"
        type_create_hvector(count: c_int, block: c_int, stride: isize, of: Handle, made: *mut Handle);
    "MPI_Type_create_struct" type_create_struct(
        count: c_int, blocks: *const c_int, offsets: *const isize, types: *const c_void, made: *mut Handle
    );
    "MPI_Type_commit" type_commit(datatype: *mut Handle);
    "MPI_Type_free" type_free(datatype: *mut Handle);
    "MPI_Send_init" send_init(
        start: *const c_void, count: c_int, of: Handle, peer: c_int, tag: c_int, comm: Handle, request: *mut Handle
    );
    "MPI_Recv_init" recv_init(
        start: *mut c_void, count: c_int, of: Handle, peer: c_int, tag: c_int, comm: Handle, request: *mut Handle
    );
    "MPI_Startall" startall(count: c_int, requests: *mut c_void);
    "MPI_Request_free" request_free(request: *mut Handle);
    "MPI_Cancel" cancel(request: *mut Handle);
    "MPI_Testsome" testsome(
        count: c_int, requests: *mut c_void, completed: *mut c_int, indices: *mut c_int, statuses: *mut c_void
    );
    "MPI_Get_count" get_count(status: *const c_void, of: Handle, count: *mut c_int);
    "MPI_Isend" isend(
        start: *const c_void, count: c_int, of: Handle, peer: c_int, tag: c_int, comm: Handle, request: *mut Handle
    );
    "MPI_Irecv" irecv(
        start: *mut c_void, count: c_int, of: Handle, peer: c_int, tag: c_int, comm: Handle, request: *mut Handle
    );
    "MPI_Ibarrier" ibarrier(comm: Handle, request: *mut Handle);
    "MPI_Ibcast" ibcast(
        start: *mut c_void, count: c_int, of: Handle, root: c_int, comm: Handle, request: *mut Handle
    );
    "MPI_Iallgather" iallgather(
        mine: *const c_void, count: c_int, of: Handle, all: *mut c_void, each: c_int, of_each: Handle, comm: Handle,
        request: *mut Handle
    );
    "MPI_Send" send(start: *const c_void, count: c_int, of: Handle, peer: c_int, tag: c_int, comm: Handle);
    "MPI_Recv" recv(
        start: *mut c_void, count: c_int, of: Handle, peer: c_int, tag: c_int, comm: Handle, status: *mut c_void
    );
    "MPI_Allreduce" allreduce(
        mine: *const c_void, all: *mut c_void, count: c_int, of: Handle, operation: Handle, comm: Handle
    );
    "MPI_Alltoall" alltoall(
        mine: *const c_void, count: c_int, of: Handle, all: *mut c_void, each: c_int, of_each: Handle, comm: Handle
    );
}

/// What a test of several requests says of those that are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestOutcome {
    /// All is well.
    Success,
    /// Their statuses have codes.
    Statuses,
}

/// A loaded library. It stays loaded until the process ends: threads that were in it have data that its code frees when they
/// end.
pub(crate) struct Library {
    /// How it spells things.
    pub abi: Abi,
    /// The first line of what it says of itself.
    pub version: String,
    /// Set as soon as it is known; errors name it.
    pub rank: OnceLock<u32>,
    functions: Functions,
}

impl Library {
    /// Loads the library at `path`, or else the first of the usual names that fits the launcher.
    pub(crate) fn load(path: Option<&Path>, launcher: Launcher) -> Result<Library, NetError> {
        let names = path.map_or_else(|| launcher.names(), |path| vec![path.into()]);
        let mut tried = Vec::new();
        for name in names {
            match Library::open(&name, launcher) {
                Ok(library) => return Ok(library),
                Err(why) => tried.push(why),
            }
        }
        Err(NetError::Library(format!(
            "no MPI library: {}; install one (apt install openmpi-bin, dnf install openmpi, or conda install mpich), \
             start the job with the mpirun that belongs to it, or name the library's file",
            tried.join("; ")
        )))
    }

    /// Loads a file. It is looked at before its symbols become visible to all, for those of two libraries would mix.
    fn open(name: &Path, launcher: Launcher) -> Result<Library, String> {
        let says = |error: libloading::Error| format!("{}: {error}", name.display());
        // SAFETY: an MPI library does nothing of note when it is loaded.
        let object = unsafe { Object::open(Some(name), RTLD_LAZY | RTLD_LOCAL) }.map_err(says)?;
        let functions = Functions::load(&object).map_err(says)?;
        let abi = abi(&object).map_err(says)?;
        let mut library = Library { abi, version: String::new(), rank: OnceLock::new(), functions };
        // SAFETY: this function may be called before the library is started.
        let version = library.text(|text, length| unsafe { library.get_library_version(text, length) });
        if !launcher.starts(&version) {
            return Err(format!("{}: {launcher:?} started the job, and this is {version}", name.display()));
        }
        library.version = version.lines().next().unwrap_or_default().trim().into();
        // Plug-ins of Open MPI look for its symbols among the global ones.
        // SAFETY: as above; it is loaded already.
        let global = unsafe { Object::open(Some(name), RTLD_NOW | RTLD_GLOBAL) }.map_err(says)?;
        std::mem::forget((object, global));
        Ok(library)
    }

    /// Calls `MPI_Testsome`, whose errors may be those of single requests.
    ///
    /// # Safety
    /// As the standard says, and no other thread is in the library.
    pub(crate) unsafe fn test_some(
        &self,
        count: c_int,
        requests: *mut c_void,
        completed: *mut c_int,
        indices: *mut c_int,
        statuses: *mut c_void,
    ) -> Result<TestOutcome, NetError> {
        // SAFETY: the caller's duty.
        let code = unsafe { (self.functions.testsome)(count, requests, completed, indices, statuses) };
        if code == 0 {
            return Ok(TestOutcome::Success);
        }
        let mut class = code;
        // SAFETY: the caller's duty.
        unsafe { self.error_class(code, &mut class) }?;
        if class == self.abi.error_in_status {
            Ok(TestOutcome::Statuses)
        } else {
            Err(self.failure("MPI_Testsome", code))
        }
    }

    /// What a code means.
    pub(crate) fn explain(&self, code: c_int) -> String {
        // SAFETY: the thread that has a code is the only one in the library.
        let text = self.text(|text, length| unsafe { self.error_string(code, text, length) });
        if text.is_empty() { format!("code {code}") } else { text }
    }

    /// The error of a call.
    #[cold]
    pub(crate) fn failure(&self, call: &'static str, code: c_int) -> NetError {
        // Explaining could fail as well.
        let why = if call == "MPI_Error_string" { format!("code {code}") } else { self.explain(code) };
        NetError::Call { rank: self.rank.get().copied().unwrap_or(0), call, why }
    }

    /// What `write` writes; nothing if it fails.
    fn text(&self, write: impl FnOnce(*mut c_char, *mut c_int) -> Result<(), NetError>) -> String {
        // Zeroed, so that it ends wherever the library stops.
        let mut text = vec![0u8; TEXT + 1];
        let mut length = 0;
        if write(text.as_mut_ptr().cast(), &mut length).is_err() {
            return String::new();
        }
        CStr::from_bytes_until_nul(&text).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

/// Which interface an object has.
fn abi(object: &Object) -> Result<Abi, libloading::Error> {
    let address = |name: &str| {
        // SAFETY: only the address is used.
        unsafe { object.get::<*const c_void>(name.as_bytes()) }.map(|symbol| symbol.as_raw_ptr() as Handle)
    };
    if address("ompi_mpi_comm_world").is_ok() {
        return Abi::open_mpi(address);
    }
    type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    // SAFETY: the standard gives the function of this name these arguments.
    if let Ok(version) = unsafe { object.get::<Version>(b"MPI_Abi_get_version") } {
        let (mut major, mut minor) = (-1, -1);
        // SAFETY: this function may be called before the library is started.
        let code = unsafe { version(&mut major, &mut minor) };
        // A library with an interface of its own says -1.
        if code == 0 && major >= 1 {
            return Ok(STANDARD);
        }
    }
    Ok(MPICH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_told_with_all_names_and_a_remedy() {
        let path = Path::new("no-such-mpi.so");
        let Err(NetError::Library(text)) = Library::load(Some(path), Launcher::Unknown) else {
            panic!("there is no such library");
        };
        for part in ["no-such-mpi.so", "apt install openmpi-bin", "conda install mpich"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn libraries_of_the_launcher_come_first_and_others_do_not_fit() {
        assert_eq!(Launcher::OpenMpi.names()[0], Path::new(names::OPEN_MPI[0]));
        assert!(!Launcher::OpenMpi.names().contains(&names::MPICH[0].into()));
        assert_eq!(Launcher::Unknown.names().len(), 7);
        assert!(Launcher::OpenMpi.starts("Open MPI v4.1.4, package: Debian"));
        assert!(!Launcher::OpenMpi.starts("MPICH Version: 4.0.2"));
        assert!(Launcher::Mpich.starts("Intel(R) MPI Library 2021.11"));
    }
}
