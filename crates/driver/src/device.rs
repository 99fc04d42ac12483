//! A CPU device: a team of cores and the kernels of one program. Every lane has its own.

use phalanx_kernels::{Call, Kernel, Team, table};
use phalanx_program::{Program, TRANSFERS};
use phalanx_runtime::{Args, Kernels};

/// Which version of every kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// Plain loops: what the kernels mean.
    Reference,
    /// Tuned for this machine.
    Fast,
}

/// The kernels of one program, resolved once, and the cores that run them.
pub struct CpuDevice {
    team: Team,
    /// By position in the program's kernel list; none for those of the runtime.
    kernels: Vec<Option<Bound>>,
}

/// A kernel and the version of it that runs.
#[derive(Clone, Copy)]
struct Bound {
    kernel: Kernel,
    run: fn(&mut Call<'_>),
}

impl CpuDevice {
    /// Resolves the kernels of `program`.
    pub fn new(program: &Program, cores: usize, flavor: Flavor) -> Self {
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
        CpuDevice { team: Team::new(cores), kernels: program.kernels().iter().map(resolve).collect() }
    }
}

impl Kernels for CpuDevice {
    fn execute(&self, kernel: usize, args: Args<'_>) {
        let Args { blocks, words, reads, writes, scratch } = args;
        let Bound { kernel, run } = self.kernels[kernel].expect("the runtime moves bytes itself");
        let launch = kernel.launch(words, blocks, scratch, &self.team);
        let launch = launch.expect("emit plans every launch for this many cores");
        run(&mut Call { params: words, reads, writes, launch });
    }
}
