//! A CPU device: a team of cores and the kernels of one program. Every lane has its own.

use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};

use phalanx_kernels::check::Checker;
use phalanx_kernels::{Call, KernelEntry, Team, table};
use phalanx_program::{Program, TRANSFERS};
use phalanx_runtime::{Args, Kernels};
use serde::{Deserialize, Serialize};

/// Which version of every kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// Plain loops: what the kernels mean.
    Reference,
    /// Tuned for this machine.
    Fast,
}

/// What is checked while a step runs. The bits do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// Nothing.
    #[default]
    None,
    /// That every kernel accesses only what it may: a step that does otherwise fails.
    Kernels,
}

/// The kernels of one program, resolved once, and the cores that run them.
pub struct CpuDevice {
    team: Team,
    /// By position in the program's kernel list; none for those of the runtime.
    kernels: Vec<Option<Bound>>,
    /// Of the lane that runs kernels; there is none unless they are checked.
    checker: Option<Mutex<Checker>>,
}

/// A kernel and the version of it that runs.
#[derive(Clone, Copy)]
struct Bound {
    kernel: KernelEntry,
    run: fn(&mut Call<'_>),
}

impl CpuDevice {
    /// Resolves the kernels of `program`, to be run by `team`.
    pub fn new(program: &Program, team: Team, flavor: Flavor) -> Self {
        let resolve = |name: &String| {
            if TRANSFERS.contains(&name.as_str()) {
                return None;
            }
            let kernel = table::find(name).expect("emit names only known kernels");
            let run = match flavor {
                Flavor::Fast => kernel.fast,
                Flavor::Reference => kernel.reference,
            };
            Some(Bound { kernel, run })
        };
        let kernels = program.kernels().iter().map(resolve).collect();
        CpuDevice { team, kernels, checker: None }
    }

    /// The same device, which checks so much.
    pub fn checked(self, check: Check) -> Self {
        CpuDevice { checker: (check == Check::Kernels).then(Mutex::default), ..self }
    }
}

impl Kernels for CpuDevice {
    fn execute(&self, kernel: usize, args: Args<'_>) {
        let Args { blocks, params, reads, writes, scratch } = args;
        let Bound { kernel, run } = self.kernels[kernel].expect("the runtime moves bytes itself");
        let launch = kernel.launch(params, blocks, scratch, &self.team);
        let launch = launch.expect("emit plans every launch for this many cores");
        let mut call = Call { params, reads, writes, launch };
        let Some(checker) = &self.checker else { return run(&mut call) };
        // A kernel that panicked leaves nothing behind: every check begins with fresh copies.
        let mut checker = checker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = checker.run(&kernel, run, &mut call) {
            // The runtime makes it a fault of this operation; there is nothing for a panic hook to say.
            resume_unwind(Box::new(error.to_string()));
        }
    }
}

#[cfg(test)]
mod tests {
    use phalanx_ir::Activation;
    use phalanx_models::{MlpConfig, MlpLoss, ModelConfig};
    use phalanx_runtime::Replay;

    use super::*;
    use crate::Goal;
    use crate::pipeline::{Settings, compile};

    /// Lets the result depend on what was in its workspace.
    fn planted(call: &mut Call<'_>) {
        let out = call.write::<f32>(0);
        let width = out.len();
        call.launch.split_rows(1, [(out, width)], |rows, [out], own| {
            if !rows.is_empty() {
                out[0] = own[1];
            }
        });
    }

    #[test]
    fn a_fault_of_a_checked_kernel_names_layer_kernel_block_and_byte() {
        let (hidden, activation, loss) = (vec![8], Activation::Relu, MlpLoss::CrossEntropy);
        let model = MlpConfig { inputs: 8, hidden, outputs: 8, activation, loss };
        let model = ModelConfig::Mlp(model).training_graph(8, 1).expect("the sizes are legal");
        let settings = Settings { cores: 1, ..Settings::new(Goal::Gradients) };
        let program = compile(&model, &settings).expect("the model compiles");
        let matmul =
            program.kernels().iter().position(|name| name == "matmul").expect("it has linear layers");
        let operation = program.operations().iter().find(|op| program.kernel(op) == "matmul");
        let layer = program.label(operation.expect("it has linear layers")).to_string();
        for (check, fails) in [(Check::None, false), (Check::Kernels, true)] {
            let mut device = CpuDevice::new(&program, Team::new(1), Flavor::Fast).checked(check);
            device.kernels[matmul].as_mut().expect("it is not a transfer").run = planted;
            let fault =
                Replay::new(program.clone(), vec![device], 0).run().err().map(|fault| fault.to_string());
            assert_eq!(fault.is_some(), fails, "{fault:?}");
            let told = "kernel `matmul`: block 0 in phase 0 reads byte 4 of workspace slice 0, which has ";
            assert!(fault.is_none_or(|fault| fault.contains(&layer) && fault.contains(told)), "{layer}");
        }
    }
}
