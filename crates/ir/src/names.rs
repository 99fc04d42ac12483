//! Names of the tensors that an operator, or the kernel behind it, reads and writes.
//!
//! A task has its buffers in the order of its operator's names, a kernel takes its slices in the order of its own. The
//! emitter brings the two together by the names alone.

use arrayvec::ArrayVec;

/// The most tensors of one kind, read or written, that have names.
pub const MAX_NAMES: usize = 16;

/// What is read and what is written, each in the order of its slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Of tensors that are only read.
    pub reads: ArrayVec<&'static str, MAX_NAMES>,
    /// Of tensors that are written.
    pub writes: ArrayVec<&'static str, MAX_NAMES>,
}

/// Lists [`Names`]: reads, an arrow, writes. `bias if p.bias` is there only then; `x[3]` stands for x0, x1 and x2.
///
/// ```
/// let (affine, parts) = (false, 2);
/// let names = phalanx_ir::names!(x, gamma if affine => y[parts], mean);
/// assert_eq!(names.reads[..], ["x"]);
/// assert_eq!(names.writes[..], ["y0", "y1", "mean"]);
/// ```
#[macro_export]
macro_rules! names {
    (@all $name:ident) => {
        [stringify!($name)]
    };
    (@all $name:ident $count:expr) => {
        [
            concat!(stringify!($name), 0),
            concat!(stringify!($name), 1),
            concat!(stringify!($name), 2),
            concat!(stringify!($name), 3),
            concat!(stringify!($name), 4),
            concat!(stringify!($name), 5),
            concat!(stringify!($name), 6),
            concat!(stringify!($name), 7),
            concat!(stringify!($name), 8),
            concat!(stringify!($name), 9),
            concat!(stringify!($name), 10),
            concat!(stringify!($name), 11),
            concat!(stringify!($name), 12),
            concat!(stringify!($name), 13),
            concat!(stringify!($name), 14),
            concat!(stringify!($name), 15),
        ]
        .into_iter()
        .take($count)
    };
    (
        $($read:ident $([$reads:expr])? $(if $is_read:expr)?),* =>
        $($write:ident $([$writes:expr])? $(if $is_written:expr)?),*
    ) => {{
        #[allow(unused_mut, reason = "there may be no names")]
        let mut names = $crate::Names::default();
        $(if true $(&& $is_read)? {
            names.reads.extend($crate::names!(@all $read $($reads)?));
        })*
        $(if true $(&& $is_written)? {
            names.writes.extend($crate::names!(@all $write $($writes)?));
        })*
        names
    }};
}
