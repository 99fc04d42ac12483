//! OpenBLAS, loaded at run time.

use std::ffi::c_int;

use libloading::{Library, Symbol};

use crate::shapes::Shape;

type Sgemm = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    f32,
    *const f32,
    c_int,
    *const f32,
    c_int,
    f32,
    *mut f32,
    c_int,
);

const ROW_MAJOR: c_int = 101;
const NO_TRANS: c_int = 111;
const TRANS: c_int = 112;

/// A loaded OpenBLAS.
pub struct OpenBlas {
    library: Library,
}

impl OpenBlas {
    /// Loads the system's OpenBLAS and sets its number of threads; nothing if there is none.
    pub fn open(threads: usize) -> Option<OpenBlas> {
        // Debian's build does not recognise this machine's model number and would fall back to SSE2.
        #[cfg(target_arch = "x86_64")]
        if std::env::var_os("OPENBLAS_CORETYPE").is_none() && is_x86_feature_detected!("avx512f") {
            // SAFETY: no other thread has been started.
            unsafe { std::env::set_var("OPENBLAS_CORETYPE", "SkylakeX") };
        }
        // SAFETY: the library's initialiser has no requirements.
        let library = unsafe { Library::new("libopenblas.so.0") }.ok()?;
        {
            // SAFETY: this is the function's type in OpenBLAS's header.
            let set: Symbol<'_, unsafe extern "C" fn(c_int)> =
                unsafe { library.get(b"openblas_set_num_threads\0") }.ok()?;
            // SAFETY: any positive count is allowed.
            unsafe { set(threads as c_int) };
        }
        Some(OpenBlas { library })
    }

    /// `c = a b` in the layouts of `shape`.
    pub fn sgemm(&self, shape: &Shape, a: &[f32], b: &[f32], c: &mut [f32]) {
        // SAFETY: this is the function's type in the CBLAS header.
        let sgemm: Symbol<'_, Sgemm> =
            unsafe { self.library.get(b"cblas_sgemm\0") }.expect("OpenBLAS has cblas_sgemm");
        let size = |n: usize| n as c_int;
        let layout = |transposed| if transposed { TRANS } else { NO_TRANS };
        let &Shape { m, n, k, trans_a, trans_b, .. } = shape;
        let a_step = if trans_a { m } else { k };
        let b_step = if trans_b { k } else { n };
        // SAFETY: the slices have the sizes that shape and steps describe.
        unsafe {
            sgemm(
                ROW_MAJOR,
                layout(trans_a),
                layout(trans_b),
                size(m),
                size(n),
                size(k),
                1.0,
                a.as_ptr(),
                size(a_step),
                b.as_ptr(),
                size(b_step),
                0.0,
                c.as_mut_ptr(),
                size(n),
            )
        };
    }
}
