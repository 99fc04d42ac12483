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
    kernels: Vec<fn(&mut Call<'_>)>,
}

impl CpuDevice {
    /// Resolves the kernels of `program`.
    pub fn new(program: &Program, cores: usize, flavor: Flavor) -> Self {
        let resolve = |name: &String| -> fn(&mut Call<'_>) {
            if TRANSFERS.contains(&name.as_str()) {
                return |_| unreachable!("the runtime moves bytes itself");
            }
            let Kernel { fast, reference, .. } = table::find(name).expect("emit names only known kernels");
            match flavor {
                Flavor::Fast => fast,
                Flavor::Reference => reference,
            }
        };
        CpuDevice { team: Team::new(cores), kernels: program.kernels().iter().map(resolve).collect() }
    }
}

impl Kernels for CpuDevice {
    fn execute(&self, kernel: usize, args: Args<'_>) {
        let Args { words, reads, writes, scratch } = args;
        self.kernels[kernel](&mut Call { params: words, reads, writes, scratch, team: &self.team });
    }
}
