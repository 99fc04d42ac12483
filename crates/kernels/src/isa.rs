//! Which instruction set the fast kernels use, and one body compiled for each of them.
//!
//! Bodies are plain Rust over fixed-width arrays with `f32::mul_add`, so every instruction set computes the same
//! bits; only the speed differs.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// An instruction set the fast kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Whatever the compiler target guarantees.
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, VL, BW and DQ.
    Avx512,
}

/// Every instruction set this build knows, weakest first.
pub const ALL: [Isa; 3] = [Isa::Portable, Isa::Avx2, Isa::Avx512];

/// The selected instruction set as its position in `ALL` plus one; zero before the first use.
static SELECTED: AtomicU8 = AtomicU8::new(0);

impl Isa {
    /// The instruction set in use: the best of this machine unless [`Isa::select`] chose another.
    #[inline]
    pub fn current() -> Isa {
        // Relaxed: the value stands alone; racing first uses store the same one.
        match SELECTED.load(Relaxed) {
            0 => Isa::select(Isa::best()),
            position => ALL[position as usize - 1],
        }
    }

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }

    /// The features of a processor that its kernels need, beyond what the compiler target guarantees.
    pub fn features(self) -> &'static [&'static str] {
        match self {
            Isa::Portable => &[],
            Isa::Avx2 => &["avx2", "fma"],
            Isa::Avx512 => &["avx2", "fma", "avx512f", "avx512vl", "avx512bw", "avx512dq"],
        }
    }

    /// The best instruction set of this machine.
    pub fn best() -> Isa {
        ALL.into_iter().filter(|isa| isa.is_available()).max().unwrap_or(Isa::Portable)
    }

    /// Makes every fast kernel of this process use `isa`, or the best one if this machine lacks it; returns which.
    pub fn select(isa: Isa) -> Isa {
        let isa = if isa.is_available() { isa } else { Isa::best() };
        SELECTED.store(isa as u8 + 1, Relaxed);
        isa
    }

    /// Whether this machine can run `self`.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            match self {
                Isa::Portable => true,
                Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
                Isa::Avx512 => {
                    Isa::Avx2.is_available()
                        && is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512vl")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512dq")
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Isa::Portable
        }
    }
}

/// Compiles one function body for every instruction set and picks one at run time.
///
/// Everything the body calls must be `#[inline(always)]` (closures are), so that it is compiled for the same
/// instruction set. The body is plain Rust; loops over slices and `[f32; 16]` arrays become vector code.
#[macro_export]
macro_rules! dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name($($arg: $type),*) $(-> $ret)? {
            #[inline(always)]
            fn portable($($arg: $type),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $type),*) $(-> $ret)? { portable($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512bw,avx512dq")]
            fn avx512($($arg: $type),*) $(-> $ret)? { portable($($arg),*) }
            match $crate::isa::Isa::current() {
                // SAFETY: `Isa::current` is only ever an instruction set this machine has.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx512 => unsafe { avx512($($arg),*) },
                _ => portable($($arg),*),
            }
        }
    };
}
