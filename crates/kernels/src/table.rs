//! Every kernel of this crate, by name.

use crate::Kernel;

/// The kernels of each file.
const FILES: &[&[Kernel]] = &[
    crate::attention::KERNELS,
    crate::binary::KERNELS,
    crate::broadcast::KERNELS,
    crate::cast::KERNELS,
    crate::chain::KERNELS,
    crate::column_sum::KERNELS,
    crate::concat::KERNELS,
    crate::cross_entropy::KERNELS,
    crate::cross_entropy::linear::KERNELS,
    crate::cross_entropy::parts::KERNELS,
    crate::dropout::KERNELS,
    crate::embedding::KERNELS,
    crate::fill::KERNELS,
    crate::layer_norm::KERNELS,
    crate::matmul::KERNELS,
    crate::optimizer::KERNELS,
    crate::reduce::KERNELS,
    crate::rms_norm::KERNELS,
    crate::rotary::KERNELS,
    crate::softmax::KERNELS,
    crate::sum_squares::KERNELS,
    crate::transpose::KERNELS,
    crate::unary::KERNELS,
];

/// Every kernel this crate has; programs refer to them by name.
pub fn table() -> Vec<Kernel> {
    FILES.concat()
}

/// The kernel called `name`.
pub fn find(name: &str) -> Option<Kernel> {
    FILES.iter().copied().flatten().find(|kernel| kernel.name == name).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = table().iter().map(|kernel| kernel.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
