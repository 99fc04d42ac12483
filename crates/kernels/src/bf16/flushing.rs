//! Arithmetic that flushes denormal numbers, by a control register of the processor.
//!
//! Rust code must not run with that register changed: what is to flush is one block of assembly that changes it and changes
//! it back.

/// The control register with denormal numbers read as zeros and results flushed to zero.
pub(crate) const FLUSHING: u32 = 0x8040;

/// A block of assembly between a change of the control register and its change back.
macro_rules! flushing {
    ([$($line:expr),* $(,)?] $($operands:tt)*) => {{
        let mut control = [0u32; 2];
        ::std::arch::asm!(
            "stmxcsr dword ptr [{control}]",
            "mov {word:e}, dword ptr [{control}]",
            "or {word:e}, {flushing}",
            "mov dword ptr [{control} + 4], {word:e}",
            "ldmxcsr dword ptr [{control} + 4]",
            $($line,)*
            "ldmxcsr dword ptr [{control}]",
            control = in(reg) control.as_mut_ptr(),
            word = out(reg) _,
            flushing = const $crate::bf16::FLUSHING,
            $($operands)*
            options(nostack),
        );
    }};
}
pub(crate) use flushing;
