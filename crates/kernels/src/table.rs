//! Kernels by name: those of this crate, and those that a library user adds.

use std::sync::{PoisonError, RwLock};

use crate::{FILES, Kernel};

/// Every kernel this crate has; programs refer to them by name.
pub fn table() -> Vec<Kernel> {
    FILES.concat()
}

/// Kernels that were added.
static ADDED: RwLock<Vec<Kernel>> = RwLock::new(Vec::new());

/// Adds a kernel, for tasks that are called like it. A name that is taken keeps its kernel; the result says which.
pub fn add(kernel: Kernel) -> Kernel {
    if let Some(known) = find(kernel.name) {
        return known;
    }
    ADDED.write().unwrap_or_else(PoisonError::into_inner).push(kernel);
    kernel
}

/// The kernel called `name`.
pub fn find(name: &str) -> Option<Kernel> {
    let own = FILES.iter().copied().flatten().find(|kernel| kernel.name == name).copied();
    let added =
        || ADDED.read().unwrap_or_else(PoisonError::into_inner).iter().find(|k| k.name == name).copied();
    own.or_else(added)
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
