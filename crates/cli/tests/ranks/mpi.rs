//! Starting a job and waiting for its end, however it ends.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

/// How ranks are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    OpenMpi,
    Mpich,
}

/// When a job counts as hanging: far above what any takes, on a busy machine too. How soon jobs end is measured by
/// `cargo xtask soak --faults`.
pub const LIMIT: Duration = Duration::from_secs(900);

/// How a job ended.
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Launcher {
    /// Both. A missing one fails the test, unless `PHALANX_WITHOUT_MPI` says that tests are to do without what is missing.
    pub fn installed() -> Vec<Launcher> {
        let works = |launcher: &Launcher| {
            let tried = Command::new(launcher.program()).arg("--version").output();
            let there = tried.is_ok_and(|output| output.status.success());
            assert!(
                there || std::env::var_os("PHALANX_WITHOUT_MPI").is_some(),
                "{} is not installed: `cargo xtask test` installs it; PHALANX_WITHOUT_MPI=1 leaves its tests out",
                launcher.program()
            );
            there
        };
        [Launcher::OpenMpi, Launcher::Mpich].into_iter().filter(works).collect()
    }

    pub fn program(self) -> &'static str {
        match self {
            Launcher::OpenMpi => "mpirun.openmpi",
            Launcher::Mpich => "mpiexec.mpich",
        }
    }

    /// The launcher with what it needs to start more ranks than there are cores, as anybody.
    pub fn command(self) -> Command {
        let mut command = Command::new(self.program());
        if self == Launcher::OpenMpi {
            command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
        }
        command
    }

    /// Runs `phalanx` with these arguments on so many ranks.
    pub fn run(self, ranks: u32, args: &[&str]) -> Ended {
        let mut command = self.command();
        command.args(["-n", &ranks.to_string(), env!("CARGO_BIN_EXE_phalanx")]).args(args);
        run(command)
    }

    /// Runs two different commands as ranks 0 and 1.
    pub fn run_two(self, first: &[&str], second: &[&str]) -> Ended {
        let mut command = self.command();
        command.args(["-n", "1"]).args(first).args([":", "-n", "1"]).args(second);
        run(command)
    }
}

/// One job at a time: several would take each other's cores. Under nextest, `.config/nextest.toml` says the same.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs a launcher to its end. One that takes too long is killed with all it has started, and the test fails.
pub fn run(mut command: Command) -> Ended {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    command
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = command.spawn().unwrap();
    let read = |mut from: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut text = String::new();
            _ = from.read_to_string(&mut text);
            text
        })
    };
    let stdout = read(Box::new(child.stdout.take().unwrap()));
    let stderr = read(Box::new(child.stderr.take().unwrap()));
    let (group, (ended, end)) = (child.id(), mpsc::channel());
    thread::spawn(move || ended.send(child.wait().unwrap()));
    let status = end.recv_timeout(LIMIT);
    if status.is_err() {
        _ = Command::new("kill").args(["-KILL", "--", &format!("-{group}")]).status();
    }
    let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
    let Ok(status) = status else { panic!("{command:?} did not end:\n{stdout}\n{stderr}") };
    Ended { code: status.code(), stdout, stderr }
}

impl Ended {
    /// The last line of JSON of a job that must have ended well.
    pub fn json(&self) -> serde_json::Value {
        assert_eq!(self.code, Some(0), "{}\n{}", self.stdout, self.stderr);
        serde_json::from_str(self.stdout.lines().last().unwrap()).unwrap()
    }

    /// The output of a job that must have failed and name `words`.
    pub fn fails(&self, words: &[&str]) -> String {
        let text = format!("{}\n{}", self.stdout, self.stderr);
        assert_ne!(self.code, Some(0), "{text}");
        words.iter().for_each(|word| assert!(text.contains(word), "`{word}` is missing in: {text}"));
        text
    }

    /// The one message of a job that must have failed, without `error: ` and the lines that follow it indented.
    pub fn message(&self) -> String {
        let text = self.fails(&["error: "]);
        assert_eq!(text.matches("error: ").count(), 1, "one message: {text}");
        let start = text.find("error: ").map_or(0, |at| at + "error: ".len());
        let mut lines = text[start..].lines();
        let first = lines.next().unwrap_or_default();
        let rest = lines.take_while(|line| line.starts_with("  "));
        std::iter::once(first).chain(rest).collect::<Vec<_>>().join("\n")
    }
}
