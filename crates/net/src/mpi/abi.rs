//! What differs between binary interfaces of MPI libraries, as one table: values of constants and sizes of handles.
//!
//! The functions have the same arguments everywhere, so handles are passed as [`Handle`] and only cut to size in
//! arrays. Every row was checked against the library's header and by running all of this module's calls and tests on
//! it: Open MPI on 4.1.4 and 5.0.11, MPICH on 4.0.2 and 5.0.2, the standard interface of MPI 5 on `libmpi_abi.so.1` of
//! MPICH 5.0.2. Relatives of MPICH (Intel MPI, Cray MPICH, MVAPICH) promise MPICH's interface and were not run.

use std::ffi::{c_int, c_void};

/// A communicator, datatype, request, operation or error handler. Where handles are 32-bit integers, the low half has
/// it, in registers and, on little-endian machines, in memory, so that a pointer to it serves both.
pub(crate) type Handle = usize;

const _: () =
    assert!(cfg!(target_endian = "little"), "32-bit handles are read through pointers to 64-bit ones");

/// How a library spells what the standard leaves to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abi {
    /// `MPI_COMM_WORLD`.
    pub world: Handle,
    /// `MPI_BYTE`.
    pub byte: Handle,
    /// `MPI_FLOAT`.
    pub float: Handle,
    /// `MPI_SUM`.
    pub sum: Handle,
    /// `MPI_ERRORS_RETURN`.
    pub errors_return: Handle,
    /// Whether handles are 32-bit integers; otherwise they are as wide as pointers.
    pub small_handles: bool,
    /// `MPI_ANY_SOURCE`.
    pub any_source: c_int,
    /// `MPI_ANY_TAG`.
    pub any_tag: c_int,
    /// `MPI_TAG_UB`.
    pub tag_bound: c_int,
    /// `MPI_THREAD_SERIALIZED`.
    pub serialized: c_int,
    /// `MPI_ERR_IN_STATUS`.
    pub error_in_status: c_int,
    /// `MPI_IN_PLACE`.
    pub in_place: usize,
    /// `MPI_STATUS_IGNORE`.
    pub status_ignore: usize,
    /// Where things are in a status.
    pub status: StatusLayout,
}

/// Offsets in bytes of a status' fields, which are C integers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatusLayout {
    /// Bytes of all of it.
    pub size: usize,
    /// `MPI_SOURCE`.
    pub source: usize,
    /// `MPI_ERROR`.
    pub error: usize,
}

/// MPICH and its relatives.
pub(crate) const MPICH: Abi = Abi {
    world: 0x4400_0000,
    byte: 0x4c00_010d,
    float: 0x4c00_040a,
    sum: 0x5800_0003,
    errors_return: 0x5400_0001,
    small_handles: true,
    any_source: -2,
    any_tag: -1,
    tag_bound: 0x6440_0001,
    serialized: 2,
    error_in_status: 17,
    in_place: usize::MAX,
    status_ignore: 1,
    status: StatusLayout { size: 20, source: 8, error: 16 },
};

/// The standard interface of MPI 5.
pub(crate) const STANDARD: Abi = Abi {
    world: 0x101,
    byte: 0x247,
    float: 0x210,
    sum: 0x21,
    errors_return: 0x143,
    small_handles: false,
    any_source: -1,
    any_tag: -2,
    tag_bound: 501,
    serialized: 2048,
    error_in_status: 19,
    in_place: 1,
    status_ignore: 0,
    status: StatusLayout { size: 32, source: 0, error: 8 },
};

impl Abi {
    /// Open MPI's, whose handles are addresses of objects that it exports; `address` looks one up.
    pub(crate) fn open_mpi<E>(address: impl Fn(&str) -> Result<Handle, E>) -> Result<Abi, E> {
        Ok(Abi {
            world: address("ompi_mpi_comm_world")?,
            byte: address("ompi_mpi_byte")?,
            float: address("ompi_mpi_float")?,
            sum: address("ompi_mpi_op_sum")?,
            errors_return: address("ompi_mpi_errors_return")?,
            small_handles: false,
            any_source: -1,
            any_tag: -1,
            tag_bound: 0,
            serialized: 2,
            error_in_status: 18,
            in_place: 1,
            status_ignore: 0,
            status: StatusLayout { size: 24, source: 0, error: 8 },
        })
    }
}

/// Handles side by side, as the library wants them in arrays.
#[derive(Debug)]
pub(crate) enum Handles {
    /// 32 bits each.
    Small(Vec<u32>),
    /// As wide as pointers.
    Wide(Vec<Handle>),
}

impl Handles {
    /// None, for such a library.
    pub(crate) fn new(abi: &Abi) -> Handles {
        if abi.small_handles { Handles::Small(Vec::new()) } else { Handles::Wide(Vec::new()) }
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        match self {
            Handles::Small(all) => all.len(),
            Handles::Wide(all) => all.len(),
        }
    }

    /// One of them.
    pub(crate) fn get(&self, index: usize) -> Handle {
        match self {
            Handles::Small(all) => all[index] as Handle,
            Handles::Wide(all) => all[index],
        }
    }

    /// Adds one at the end.
    pub(crate) fn push(&mut self, handle: Handle) {
        match self {
            // Such a library writes 32 bits into a handle, so that the others are zero.
            Handles::Small(all) => all.push(handle as u32),
            Handles::Wide(all) => all.push(handle),
        }
    }

    /// Removes one; the last takes its place.
    pub(crate) fn swap_remove(&mut self, index: usize) {
        match self {
            Handles::Small(all) => drop(all.swap_remove(index)),
            Handles::Wide(all) => drop(all.swap_remove(index)),
        }
    }

    /// Removes all.
    pub(crate) fn clear(&mut self) {
        match self {
            Handles::Small(all) => all.clear(),
            Handles::Wide(all) => all.clear(),
        }
    }

    /// The array.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut c_void {
        match self {
            Handles::Small(all) => all.as_mut_ptr().cast(),
            Handles::Wide(all) => all.as_mut_ptr().cast(),
        }
    }
}

/// Room for statuses side by side, aligned for every library.
#[derive(Debug)]
pub(crate) struct Statuses {
    layout: StatusLayout,
    words: Vec<u64>,
}

impl Statuses {
    /// Room for none.
    pub(crate) fn new(layout: StatusLayout) -> Statuses {
        Statuses { layout, words: Vec::new() }
    }

    /// Makes room for `n`.
    pub(crate) fn reserve(&mut self, n: usize) {
        let words = (n * self.layout.size).div_ceil(8);
        self.words.resize(words.max(self.words.len()), 0);
    }

    /// The array.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut c_void {
        self.words.as_mut_ptr().cast()
    }

    /// Status number `index`, for the library.
    pub(crate) fn pointer(&self, index: usize) -> *const c_void {
        self.words.as_ptr().cast::<u8>().wrapping_add(index * self.layout.size).cast()
    }

    /// The rank that sent the message.
    pub(crate) fn source(&self, index: usize) -> c_int {
        self.field(index, self.layout.source)
    }

    /// What went wrong, if the library says that this is to be looked at.
    pub(crate) fn error(&self, index: usize) -> c_int {
        self.field(index, self.layout.error)
    }

    fn field(&self, index: usize, offset: usize) -> c_int {
        let at = index * self.layout.size + offset;
        // Little-endian: the lower half of a word comes first. Fields are aligned to their four bytes.
        (self.words[at / 8] >> (at % 8 * 8)) as u32 as c_int
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_lie_as_wide_as_the_library_wants() {
        for (abi, bytes) in [(MPICH, 4), (STANDARD, 8)] {
            let mut handles = Handles::new(&abi);
            for handle in [0x2c00_0000, 0x1234, 0x5678] {
                handles.push(handle);
            }
            // SAFETY: the second of three handles.
            let second = unsafe { handles.as_mut_ptr().cast::<u8>().add(bytes).cast::<u32>().read() };
            assert_eq!(second, 0x1234);
            handles.swap_remove(0);
            assert_eq!((handles.len(), handles.get(0), handles.get(1)), (2, 0x5678, 0x1234));
        }
    }

    #[test]
    fn fields_of_statuses_are_found_at_any_alignment() {
        let mut statuses = Statuses::new(MPICH.status);
        statuses.reserve(3);
        let start = statuses.as_mut_ptr().cast::<c_int>();
        for index in 0..15 {
            // SAFETY: three statuses are 15 integers.
            unsafe { start.add(index).write(-(index as c_int)) };
        }
        let found: Vec<_> = (0..3).map(|index| (statuses.source(index), statuses.error(index))).collect();
        assert_eq!(found, [(-2, -4), (-7, -9), (-12, -14)]);
    }
}
