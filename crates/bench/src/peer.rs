//! OpenBLAS, loaded at run time if the machine has it: what our matrix product is measured against.
//!
//! Nothing in training uses it. Unsafe because the other side is C.

use std::ffi::c_int;

use libloading::{Library, Symbol};
use phalanx_kernels::matmul::MatmulParams;

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

type SetThreads = unsafe extern "C" fn(c_int);

/// The library's usual name.
pub const OPEN_BLAS: &str = "libopenblas.so.0";

const ROW_MAJOR: c_int = 101;
const NO_TRANS: c_int = 111;
const TRANS: c_int = 112;

/// Why there is no OpenBLAS.
#[derive(Debug)]
pub struct PeerError {
    /// The library asked for.
    pub path: String,
    /// What the loader says.
    pub source: libloading::Error,
}

impl std::fmt::Display for PeerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot load {}: {}", self.path, self.source)
    }
}

impl std::error::Error for PeerError {}

/// A loaded OpenBLAS.
pub struct OpenBlas {
    sgemm: Sgemm,
    /// Keeps `sgemm` loaded.
    _library: Library,
}

impl OpenBlas {
    /// Loads the library at `path` (a name is searched for as the system does) and sets its number of threads.
    ///
    /// The file is code that runs in this process: it must be an OpenBLAS. Call it before starting threads, so that
    /// old builds can be told which cores they run on.
    pub fn open(path: &str, threads: usize) -> Result<OpenBlas, PeerError> {
        name_the_core();
        let failed = |source| PeerError { path: path.to_string(), source };
        // SAFETY: OpenBLAS's initialiser has no requirements; the caller promises that the file is an OpenBLAS.
        let library = unsafe { Library::new(path) }.map_err(failed)?;
        // SAFETY: this is the function's type in OpenBLAS's header.
        let set: Symbol<'_, SetThreads> =
            unsafe { library.get(b"openblas_set_num_threads\0") }.map_err(failed)?;
        // SAFETY: any positive count is allowed.
        unsafe { set(threads.max(1) as c_int) };
        // SAFETY: this is the function's type in the CBLAS header.
        let sgemm: Symbol<'_, Sgemm> = unsafe { library.get(b"cblas_sgemm\0") }.map_err(failed)?;
        let sgemm = *sgemm;
        Ok(OpenBlas { sgemm, _library: library })
    }

    /// `c = a b` in the sizes and layouts of `params`, every product of the batch; the rest of `params` is ignored.
    ///
    /// # Panics
    ///
    /// If a slice has another size than `params` says.
    pub fn matmul(&self, c: &mut [f32], a: &[f32], b: &[f32], params: &MatmulParams) {
        let &MatmulParams { batch, m, n, k, .. } = params;
        assert_eq!(a.len(), batch * m * k, "a holds the batch");
        assert_eq!(b.len(), batch * k * n, "b holds the batch");
        assert_eq!(c.len(), batch * m * n, "c holds the batch");
        assert!([m, n, k].iter().all(|&size| c_int::try_from(size).is_ok()), "sizes fit the C interface");
        if c.is_empty() || k == 0 {
            return c.fill(0.0);
        }
        let operands = a.chunks_exact(m * k).zip(b.chunks_exact(k * n));
        for ((a, b), c) in operands.zip(c.chunks_exact_mut(m * n)) {
            self.one(c, a, b, params);
        }
    }

    fn one(&self, c: &mut [f32], a: &[f32], b: &[f32], params: &MatmulParams) {
        let &MatmulParams { m, n, k, trans_a, trans_b, .. } = params;
        let layout = |transposed| if transposed { TRANS } else { NO_TRANS };
        let a_step = if trans_a { m } else { k } as c_int;
        let b_step = if trans_b { k } else { n } as c_int;
        let [rows, columns, depth] = [m, n, k].map(|size| size as c_int);
        let (op_a, op_b) = (layout(trans_a), layout(trans_b));
        let (a, b, c) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
        // SAFETY: by `matmul`'s assertions and chunks the pointers lead to m k, k n and m n elements, which is what
        // sizes and steps describe.
        unsafe {
            (self.sgemm)(
                ROW_MAJOR, op_a, op_b, rows, columns, depth, 1.0, a, a_step, b, b_step, 0.0, c, columns,
            )
        };
    }
}

/// Builds of OpenBLAS older than the processor do not know its model number and fall back to SSE2; told the
/// instruction set by its usual variable they run at full speed.
fn name_the_core() {
    #[cfg(target_arch = "x86_64")]
    if std::env::var_os("OPENBLAS_CORETYPE").is_none() && is_alone() && is_x86_feature_detected!("avx512f") {
        // SAFETY: this is the only thread of the process, so no other thread reads the environment meanwhile.
        unsafe { std::env::set_var("OPENBLAS_CORETYPE", "SkylakeX") };
    }
}

/// Whether the process is known to have one thread.
#[cfg(target_arch = "x86_64")]
fn is_alone() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_kernels::matmul::{Operands, Outputs, matmul_reference};

    #[test]
    fn a_missing_library_is_an_error_that_names_it() {
        let error = OpenBlas::open("/nonexistent/libopenblas.so", 1).err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.starts_with("cannot load /nonexistent/libopenblas.so: ")));
    }

    #[test]
    fn the_peer_computes_the_same_product_in_every_layout() {
        // A machine without OpenBLAS has nothing to compare with.
        let Ok(blas) = OpenBlas::open(OPEN_BLAS, 1) else { return };
        let (batch, m, n, k) = (2, 5, 7, 3);
        let fill = |len: usize| (0..len).map(|i| (i % 11) as f32 - 5.0).collect::<Vec<_>>();
        let (a, b) = (fill(batch * m * k), fill(batch * k * n));
        for (trans_a, trans_b) in [(false, false), (false, true), (true, false), (true, true)] {
            let params = MatmulParams { batch, m, n, k, trans_a, trans_b, ..MatmulParams::PLAIN };
            let (mut theirs, mut ours) = (vec![0.0; batch * m * n], vec![0.0; batch * m * n]);
            blas.matmul(&mut theirs, &a, &b, &params);
            let operands = Operands { a: &a, b: &b, bias: None, residual: None, points: None };
            matmul_reference(Outputs { out: &mut ours, pre: None }, operands, &params);
            assert_eq!(theirs, ours, "small integers are exact");
        }
    }
}
