//! Kernels by name: those of this crate, and those that a library user adds.

use std::sync::{PoisonError, RwLock};

use crate::{KERNELS, Kernel, KernelEntry};

/// Every kernel this crate has; programs refer to them by name.
pub fn table() -> &'static [KernelEntry] {
    KERNELS
}

/// Kernels that were added.
static ADDED: RwLock<Vec<KernelEntry>> = RwLock::new(Vec::new());

/// Two kernels have one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel `{added}` is called `{name}`, which is the name of `{known}`; give it another `NAME`")]
pub struct KernelNameTaken {
    /// The name.
    pub name: &'static str,
    /// The type that has the name.
    pub known: &'static str,
    /// The type that was to get it.
    pub added: &'static str,
}

/// Adds a kernel, so that programs and the tasks of its [`Kernel::TASKS`] find it. Adding it again changes nothing.
pub fn add<K: Kernel>() -> Result<(), KernelNameTaken> {
    let kernel = KernelEntry::of::<K>();
    let mut all = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    let names = [&[kernel.name], kernel.tasks].concat();
    for name in names {
        let has = |other: &&KernelEntry| other.name == name || other.tasks.contains(&name);
        if let Some(known) = KERNELS.iter().find(has).or_else(|| all.iter().find(has)) {
            let (known, added) = ((known.type_name)(), (kernel.type_name)());
            return if known == added { Ok(()) } else { Err(KernelNameTaken { name, known, added }) };
        }
    }
    all.push(kernel);
    Ok(())
}

/// The kernel called `name`.
pub fn find(name: &str) -> Option<KernelEntry> {
    find_by(|kernel| kernel.name == name)
}

/// The kernel that executes the task operator `name`.
pub fn for_task(name: &str) -> Option<KernelEntry> {
    find_by(|kernel| kernel.tasks.contains(&name))
}

fn find_by(is: impl Fn(&KernelEntry) -> bool) -> Option<KernelEntry> {
    let added = || ADDED.read().unwrap_or_else(PoisonError::into_inner).iter().find(|k| is(k)).copied();
    KERNELS.iter().find(|kernel| is(kernel)).copied().or_else(added)
}

#[cfg(test)]
mod tests {
    use phalanx_ir::Names;
    use phalanx_ir::tasks::TaskView;

    use super::*;
    use crate::{Call, params};

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = table().iter().map(|kernel| kernel.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    params! { struct Halve {} }
    params! { struct Second {} }
    params! { struct Fill {} }

    macro_rules! called {
        ($type:ty, $name:literal) => {
            impl Kernel for $type {
                const NAME: &'static str = $name;
                fn from_task(_: &TaskView<'_>) -> Result<Self, String> {
                    Ok(Self {})
                }
                fn arguments(&self) -> Names {
                    Names::default()
                }
                fn reference(&self, _: &mut Call<'_>) {}
            }
        };
    }
    called!(Halve, "halve");
    called!(Second, "halve");
    called!(Fill, "fill");

    #[test]
    fn a_name_has_one_kernel() {
        assert!(find("halve").is_none());
        assert_eq!([add::<Halve>(), add::<Halve>()], [Ok(()), Ok(())], "adding it twice is adding it");
        assert_eq!(
            for_task("halve").map(|kernel| (kernel.type_name)()),
            find("halve").map(|kernel| (kernel.type_name)())
        );
        let told = |taken: Result<(), KernelNameTaken>| taken.expect_err("the name is taken").to_string();
        let own = "phalanx_kernels::table::tests::";
        assert_eq!(
            told(add::<Second>()),
            format!(
                "the kernel `{own}Second` is called `halve`, which is the name of `{own}Halve`; give it another `NAME`"
            )
        );
        assert_eq!(
            told(add::<Fill>()),
            format!(
                "the kernel `{own}Fill` is called `fill`, which is the name of `phalanx_kernels::fill::FillParams`; \
                 give it another `NAME`"
            )
        );
    }
}
