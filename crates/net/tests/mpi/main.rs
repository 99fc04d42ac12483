//! Jobs of several processes over every MPI that is installed: this test starts itself again as the ranks.
//!
//! Where no launcher is found, a test says so and passes.

#![allow(clippy::unwrap_used)]

mod exercises;

use std::env;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use phalanx_net::mpi::{Launcher, Mpi, Options};

/// Tells a process that it is a rank, and of what: `launcher:ranks:exercise`.
const RANK: &str = "PHALANX_NET_TEST_RANK";

/// A job that takes longer has stopped; it takes seconds.
const LIMIT: Duration = Duration::from_secs(900);

/// One job at a time: its ranks are threads enough.
static ONE: Mutex<()> = Mutex::new(());

struct Kind {
    launcher: Launcher,
    name: &'static str,
    program: &'static str,
    args: &'static [&'static str],
    /// What makes it use sockets between processes of one machine.
    sockets: &'static [(&'static str, &'static str)],
}

const OPEN_MPI: Kind = Kind {
    launcher: Launcher::OpenMpi,
    name: "open-mpi",
    program: "mpirun.openmpi",
    args: &["--allow-run-as-root", "--oversubscribe"],
    sockets: &[("OMPI_MCA_btl", "tcp,self")],
};

const MPICH: Kind = Kind {
    launcher: Launcher::Mpich,
    name: "mpich",
    program: "mpiexec.mpich",
    args: &[],
    sockets: &[("UCX_TLS", "tcp,self"), ("FI_PROVIDER", "tcp"), ("MPIR_CVAR_NOLOCAL", "1")],
};

/// Runs an exercise as a job and returns its exit code and what its ranks said; nothing if tests are to do without its
/// launcher.
fn job(kind: &Kind, ranks: u32, exercise: &str, variables: &[(&str, &str)]) -> Option<(Option<i32>, String)> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(kind.program);
    command.args(kind.args).args(["-n", &ranks.to_string()]).arg(env::current_exe().unwrap());
    command.args(["--exact", "rank", "--nocapture"]).envs(variables.iter().copied());
    command.env(RANK, format!("{}:{ranks}:{exercise}", kind.name)).stdin(Stdio::null());
    let spawned = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut child) = spawned else {
        let program = kind.program;
        assert!(
            env::var_os("PHALANX_WITHOUT_MPI").is_some(),
            "{program} is not installed: `cargo xtask test` installs it; PHALANX_WITHOUT_MPI=1 leaves its tests out"
        );
        return None;
    };
    let (tell, told) = mpsc::channel();
    let streams: [Box<dyn Read + Send>; 2] =
        [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
    for mut stream in streams {
        let tell = tell.clone();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            tell.send(String::from_utf8_lossy(&bytes).into_owned()).unwrap();
        });
    }
    let mut text = String::new();
    for _ in 0..2 {
        match told.recv_timeout(LIMIT) {
            Ok(stream) => text.push_str(&stream),
            Err(_) => {
                child.kill().unwrap();
                panic!("{exercise} on {ranks} ranks of {} takes longer than {LIMIT:?}: {text}", kind.name);
            }
        }
    }
    Some((child.wait().unwrap().code(), text))
}

/// Runs an exercise that every rank must come to the end of.
fn all_well(kind: &Kind, ranks: u32, exercise: &str, variables: &[(&str, &str)]) {
    let Some((code, text)) = job(kind, ranks, exercise, variables) else { return };
    assert_eq!(code, Some(0), "{exercise} on {ranks} ranks of {}: {text}", kind.name);
    for rank in 0..ranks {
        assert!(text.contains(&format!("rank {rank} of {ranks} is done")), "{text}");
    }
}

/// A rank of a job, if this process is one.
#[test]
fn rank() {
    let Ok(text) = env::var(RANK) else { return };
    let [kind, ranks, exercise] = text.splitn(3, ':').collect::<Vec<_>>()[..] else { panic!("{text}") };
    let launcher = [OPEN_MPI, MPICH].iter().find(|known| known.name == kind).unwrap().launcher;
    // Should the launcher be killed, the ranks must not stay.
    let (alive, watched) = mpsc::channel::<()>();
    thread::spawn(move || {
        if watched.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            std::process::exit(124);
        }
    });
    let library = env::var_os("PHALANX_MPI_LIBRARY").map(Into::into);
    let mpi = Mpi::start(Options { library, launcher }).unwrap();
    exercises::run(&mpi, ranks.parse().unwrap(), exercise);
    drop(mpi);
    // Hooks of it in the C library may still be called.
    let mapped = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(mapped.contains("/libmpi"), "the library stays");
    drop(alive);
}

#[test]
fn open_mpi_with_2_3_and_4_ranks() {
    for ranks in [2, 3, 4] {
        all_well(&OPEN_MPI, ranks, "everything", &[]);
    }
}

#[test]
fn mpich_with_2_3_and_4_ranks() {
    for ranks in [2, 3, 4] {
        all_well(&MPICH, ranks, "everything", &[]);
    }
}

#[test]
fn a_job_of_one() {
    all_well(&OPEN_MPI, 1, "everything", &[]);
    all_well(&MPICH, 1, "everything", &[]);
}

#[test]
fn over_sockets() {
    all_well(&OPEN_MPI, 2, "everything", OPEN_MPI.sockets);
    all_well(&MPICH, 2, "everything", MPICH.sockets);
}

/// A rank aborts while all others wait for something that never comes, and its own other thread waits too.
#[test]
fn an_abort_ends_all_ranks() {
    for kind in [OPEN_MPI, MPICH] {
        let Some((code, text)) = job(&kind, 3, "abort", &[]) else { continue };
        assert_eq!(code, Some(7), "{}: {text}", kind.name);
        assert!(!text.contains("is done"), "{text}");
    }
}
