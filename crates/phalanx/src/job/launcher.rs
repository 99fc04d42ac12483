//! Which rank of a job a process is, as its launcher says before the message library is up.
//!
//! A pure reading of variables. Where several launchers are at work the innermost one is right: Open MPI and Hydra
//! start their ranks inside of what Slurm started, whose variables then describe something else.

/// What started a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// Hydra, the `mpiexec` of MPICH and of those derived from it.
    Mpich,
    /// `srun`.
    Slurm,
    /// Another one that sets the variables of the process management interface.
    Unknown,
}

/// A process that a launcher started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Which launcher.
    pub launcher: Launcher,
    /// Which rank it is.
    pub rank: u32,
    /// How many there are.
    pub size: u32,
    /// Which of the ranks on this host it is, and how many those are, where that is known.
    pub local: Option<(u32, u32)>,
}

/// A launcher's variables: rank, size, rank on the host, ranks on the host.
type Names = [&'static str; 4];

/// A rank of Slurm's has a step with tasks; a batch script has none, although it has a `SLURM_PROCID`.
const LAUNCHERS: [(Launcher, Names); 4] = [
    (
        Launcher::OpenMpi,
        [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ],
    ),
    (Launcher::Mpich, ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
    (Launcher::Slurm, ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"]),
    (Launcher::Unknown, ["PMI_RANK", "PMI_SIZE", "", ""]),
];

impl Launched {
    /// What the variables say; nothing if no launcher started this process.
    pub fn from_env(variable: impl Fn(&str) -> Option<String>) -> Option<Launched> {
        LAUNCHERS.iter().find_map(|(launcher, names)| read(*launcher, names, &variable))
    }
}

fn read(launcher: Launcher, names: &Names, variable: &impl Fn(&str) -> Option<String>) -> Option<Launched> {
    let number = |name: &str| variable(name)?.parse::<u32>().ok();
    let [rank, size, local_rank, local_size] = names;
    let (rank, size) = (number(rank)?, number(size)?);
    // Slurm lists its nodes, like `2(x3),1`: only a list of one node, or of equal ones, describes this node.
    let per_node = |text: String| text.split('(').next().filter(|_| !text.contains(',')).map(str::to_string);
    let local_size = variable(local_size).and_then(per_node).and_then(|text| text.parse().ok());
    let local = number(local_rank).zip(local_size).filter(|(rank, size)| rank < size);
    // Under Slurm the same variables are set by a library that it loads for its ranks.
    if launcher == Launcher::Mpich && local.is_none() {
        return None;
    }
    (rank < size).then_some(Launched { launcher, rank, size, local })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads variables from a text like `A=1 B=2`.
    fn launched(text: &str) -> Option<Launched> {
        Launched::from_env(|name| {
            text.split(' ').find_map(|pair| Some(pair.strip_prefix(name)?.strip_prefix('=')?.to_string()))
        })
    }

    #[test]
    fn every_launcher_is_understood() {
        use Launcher::*;
        let ompi = "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                    OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_RANK=5";
        let hydra = "PMI_FD=6 PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2";
        let slurm = "SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 \
                     SLURM_STEP_TASKS_PER_NODE=2(x2)";
        let expect = |launcher, rank, size, local| Some(Launched { launcher, rank, size, local });
        for (variables, expected) in [
            (ompi.to_string(), expect(OpenMpi, 5, 8, Some((1, 4)))),
            (hydra.to_string(), expect(Mpich, 1, 2, Some((1, 2)))),
            (slurm.to_string(), expect(Slurm, 3, 4, Some((1, 2)))),
            (slurm.replace("2(x2)", "3,1"), expect(Slurm, 3, 4, None)),
            (format!("{slurm} PMI_RANK=3 PMI_SIZE=4"), expect(Slurm, 3, 4, Some((1, 2)))),
            // Launchers inside of an allocation: Slurm's variables describe their helpers.
            (format!("{slurm} {hydra}"), expect(Mpich, 1, 2, Some((1, 2)))),
            (format!("{slurm} {ompi}"), expect(OpenMpi, 5, 8, Some((1, 4)))),
            ("PMI_RANK=0 PMI_SIZE=3".into(), expect(Unknown, 0, 3, None)),
            ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1".into(), expect(OpenMpi, 0, 1, None)),
        ] {
            assert_eq!(launched(&variables), expected, "{variables}");
        }
    }

    #[test]
    fn without_a_launcher_there_is_no_rank() {
        for variables in [
            "",
            "PATH=/bin",
            // A batch script before it runs anything.
            "SLURM_JOB_ID=1 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0",
            "PMIX_RANK=0",
            "PMI_RANK=0",
            "PMI_RANK=x PMI_SIZE=2",
            "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=2",
        ] {
            assert_eq!(launched(variables), None, "{variables}");
        }
    }
}
