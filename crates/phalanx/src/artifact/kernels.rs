//! The kernels of a program: what it needs of a build, and whether this build has them.

use std::collections::BTreeMap;
use std::panic::catch_unwind;

use phalanx_ir::Precision;
use phalanx_kernels::spmd::Planned;
use phalanx_kernels::{isa, table};
use phalanx_program::{Operation, Program, TRANSFERS};

use super::ArtifactError;
use super::manifest::{KernelUse, VERSION};

/// The kernels that a program runs, by name; its products are computed in `precision`.
pub(super) fn kernels(program: &Program, precision: Precision) -> Vec<KernelUse> {
    let mut uses: BTreeMap<&str, KernelUse> = BTreeMap::new();
    for operation in computing(program) {
        let (name, words) = (program.kernel(operation), program.params(operation).len());
        let is_product = table::find(name).is_some_and(|kernel| kernel.is_product);
        let found = uses.entry(name).or_insert_with(|| KernelUse {
            name: name.into(),
            operations: 0,
            words: [words; 2],
            precision: if is_product { precision } else { Precision::F32 },
            instruction_sets: isa::ALL.iter().map(|isa| isa.name().into()).collect(),
        });
        found.operations += 1;
        found.words = [found.words[0].min(words), found.words[1].max(words)];
    }
    uses.into_values().collect()
}

/// Checks that this build has every kernel of `program`, and would launch each operation as the program does on devices of
/// `cores` cores: on as many blocks, in as much working memory.
pub(super) fn check(step: &str, program: &Program, cores: usize) -> Result<(), ArtifactError> {
    for operation in computing(program) {
        let name = program.kernel(operation);
        let Some(kernel) = table::find(name) else {
            return Err(ArtifactError::Kernel { step: step.into(), kernel: name.into(), own: VERSION });
        };
        let found = Planned { blocks: operation.blocks.get(), bytes: operation.scratch.bytes };
        // Kernels trust the compiler, and this file may be forged: their arithmetic may fail for such parameters.
        let planned = catch_unwind(|| kernel.plan(program.params(operation), cores));
        if planned.as_ref().is_ok_and(|planned| planned.as_ref().ok() == Some(&found)) {
            continue;
        }
        let shown = |planned: &Planned| format!("{} blocks in {} bytes", planned.blocks, planned.bytes);
        let wanted = match &planned {
            Ok(planned) => planned.as_ref().map_or_else(ToString::to_string, shown),
            Err(_) => "other parameters".into(),
        };
        return Err(ArtifactError::Launch {
            step: step.into(),
            operation: program.describe(operation),
            found: shown(&found),
            wanted,
            cores,
        });
    }
    Ok(())
}

/// The operations that run kernels.
fn computing(program: &Program) -> impl Iterator<Item = &Operation> {
    program.operations().iter().filter(|operation| !TRANSFERS.contains(&program.kernel(operation)))
}
