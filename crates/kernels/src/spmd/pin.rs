//! Keeping threads on cores.
//!
//! All of this is best effort: where the system does not let us, threads run where it puts them, only slower.

/// The cores that the calling thread may run on, ascending.
pub fn allowed_cores() -> Vec<usize> {
    allowed().unwrap_or_else(|| (0..std::thread::available_parallelism().map_or(1, usize::from)).collect())
}

#[cfg(target_os = "linux")]
fn allowed() -> Option<Vec<usize>> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let set = sched_getaffinity(None).ok()?;
    Some((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

/// Keeps the calling thread, and those it starts from now on, on `cores`; whether it is so.
#[cfg(target_os = "linux")]
pub fn keep_on(cores: &[usize]) -> bool {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    for core in cores.iter().filter(|core| **core < CpuSet::MAX_CPU) {
        set.set(*core);
    }
    sched_setaffinity(None, &set).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn allowed() -> Option<Vec<usize>> {
    None
}

/// Keeps the calling thread, and those it starts from now on, on `cores`; whether it is so.
#[cfg(not(target_os = "linux"))]
pub fn keep_on(_cores: &[usize]) -> bool {
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_kept_on_its_cores() {
        let before = allowed_cores();
        let last = &before[before.len() - 1..];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(keep_on(last));
                assert_eq!(allowed_cores(), last);
                let of_child = std::thread::spawn(allowed_cores).join().unwrap();
                assert_eq!(of_child, last, "threads it starts stay there, too");
                assert!(!keep_on(&[usize::MAX]), "there is no such core");
                assert_eq!(allowed_cores(), last);
            });
        });
        assert_eq!(allowed_cores(), before, "other threads are left alone");
    }
}
