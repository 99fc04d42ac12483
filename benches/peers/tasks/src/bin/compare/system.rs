//! The measured systems: how each is built, and how it is asked for one point.

use std::env::consts::EXE_SUFFIX;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use task_peers::Point;

/// The name of our own system, the first one where it is measured.
pub const OURS: &str = "phalanx";

const RAYON: &str = "rayon";

/// Environment variables.
type Variables = &'static [(&'static str, &'static str)];

/// A program that answers points.
pub struct System {
    /// Its name in tables.
    pub name: &'static str,
    program: PathBuf,
    args: &'static [&'static str],
    /// Settings of which none is best everywhere; each point is measured with all and the best one counts.
    settings: &'static [Variables],
}

/// A peer in C or C++.
struct Source {
    name: &'static str,
    compiler: &'static str,
    file: &'static str,
    flags: &'static [&'static str],
    /// Names by which pkg-config may know its library.
    libraries: &'static [&'static str],
    settings: &'static [Variables],
    install: &'static str,
}

const SOURCES: [Source; 3] = [
    Source {
        name: "openmp",
        compiler: "gcc",
        file: "openmp.c",
        flags: &["-std=gnu11", "-fopenmp"],
        libraries: &[],
        settings: &[&[("OMP_WAIT_POLICY", "active")], &[("OMP_WAIT_POLICY", "passive")]],
        install: "apt-get install gcc",
    },
    Source {
        name: "taskflow",
        compiler: "g++",
        file: "taskflow.cpp",
        flags: &["-std=c++17", "-pthread"],
        libraries: &[],
        settings: &[&[]],
        install: "apt-get install g++ libtaskflow-cpp-dev (Debian 13 or later; only headers, so they suit older ones)",
    },
    Source {
        name: "starpu",
        compiler: "gcc",
        file: "starpu.c",
        flags: &["-std=gnu11"],
        libraries: &["starpu-1.4", "starpu-1.3"],
        settings: &[&[("STARPU_SCHED", "lws")], &[("STARPU_SCHED", "eager")]],
        install: "apt-get install gcc pkg-config libstarpu-dev",
    },
];

/// All systems that answer, or only the named `peers`, ours first if its program is given; says on standard error what is
/// missing.
pub fn systems(ours: Option<&str>, peers: &[String]) -> Result<Vec<System>, String> {
    let names = || SOURCES.iter().map(|source| source.name).chain([RAYON]);
    if let Some(stranger) = peers.iter().find(|peer| names().all(|name| name != peer.as_str())) {
        let known = names().collect::<Vec<_>>().join(", ");
        return Err(format!("--peers {stranger}: there is no such peer; there are {known}"));
    }
    let wanted = |name: &str| peers.is_empty() || peers.iter().any(|peer| peer == name);
    let here =
        std::env::current_exe().map_err(|error| format!("cannot find this program's folder: {error}"))?;
    let folder = here.with_file_name("");
    let system = |name, program, args| System { name, program, args, settings: &[&[]] };
    let mut found = Vec::new();
    if let Some(ours) = ours {
        found.push(Ok(system(OURS, ours.into(), &["bench", "tasks", "--point", "--json"])));
    }
    if wanted(RAYON) {
        found.push(Ok(system(RAYON, folder.join(format!("{RAYON}{EXE_SUFFIX}")), &[])));
    }
    found.extend(SOURCES.iter().filter(|source| wanted(source.name)).map(|source| source.build(&folder)));
    let answering = found.into_iter().map(|system| system.and_then(System::probed));
    let note = |problem| eprintln!("not measured: {problem}");
    let systems: Vec<System> = answering.filter_map(|system| system.map_err(note).ok()).collect();
    if systems.is_empty() { Err("no system can be measured".into()) } else { Ok(systems) }
}

impl Source {
    fn build(&self, folder: &Path) -> Result<System, String> {
        let Self { name, compiler, file, install, settings, .. } = *self;
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(file);
        let program = folder.join(format!("{name}{EXE_SUFFIX}"));
        let fix = |problem: String| format!("{name}: {problem}\n  needs: {install}");
        let library = self.library().map_err(fix)?;
        let mut command = Command::new(compiler);
        // No contraction: a fused multiply-add would make the bodies shorter than those in Rust.
        command
            .args(["-O3", "-ffp-contract=off"])
            .args(self.flags)
            .arg(file)
            .arg("-o")
            .arg(&program)
            .args(library);
        output(&mut command).map_err(fix)?;
        Ok(System { name, program, args: &[], settings })
    }

    /// The compiler's options for the library.
    fn library(&self) -> Result<Vec<String>, String> {
        let ask = |name| output(Command::new("pkg-config").args(["--cflags", "--libs", name]));
        let Some(first) = self.libraries.first() else { return Ok(Vec::new()) };
        let found = self.libraries.iter().find_map(|name| ask(name).ok()).map_or_else(|| ask(first), Ok)?;
        Ok(found.split_whitespace().map(String::from).collect())
    }
}

impl System {
    /// The system, if it answers a small point.
    fn probed(self) -> Result<Self, String> {
        let args = "--pattern stencil_1d --width 3 --steps 4 --workers 1 --grain 1 --repeat 1";
        let args: Vec<String> = args.split(' ').map(String::from).collect();
        self.run(&Point::from_args(&args)?).map(|_| self)
    }

    /// The median time of a point's graph, with the setting that suits it best.
    pub fn run(&self, point: &Point) -> Result<Duration, String> {
        let mut best = Duration::MAX;
        for &variables in self.settings {
            let mut command = pinned(&self.program, point.workers);
            command.args(self.args).args(point.to_args()).envs(variables.iter().copied());
            let problem = |problem| format!("{}: {problem}", self.name);
            best = best.min(output(&mut command).and_then(|text| seconds(&text, point)).map_err(problem)?);
        }
        Ok(best)
    }
}

/// A command that may use only as many cores as it has workers.
fn pinned(program: &Path, workers: usize) -> Command {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if workers >= cores {
        return Command::new(program);
    }
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &format!("0-{}", workers - 1)]).arg(program);
    command
}

/// What a command prints; what it complains about, if it fails.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let Output { status, stdout, stderr } =
        command.output().map_err(|error| format!("cannot run {name}: {error}"))?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&stderr);
    Err(format!("{name} ended with {status}: {}", complaint.lines().next().unwrap_or("it says nothing")))
}

/// The time in an answer, if the answer is about the point's graph.
fn seconds(answer: &str, point: &Point) -> Result<Duration, String> {
    let field = |name: &str| {
        let value =
            answer.split(&format!("\"{name}\":")).nth(1).and_then(|rest| rest.split([',', '}']).next());
        value.ok_or_else(|| format!("no \"{name}\" in the answer `{}`", answer.trim()))
    };
    let (graph, meant) = (field("graph")?.trim_matches('"'), format!("{:016x}", point.shape.digest()));
    if graph != meant {
        return Err(format!("it ran the graph {graph}; {:?} is {meant}", point.shape));
    }
    let text = field("seconds")?;
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| format!("`{text}` is no time in seconds"))
}
