//! Why a command ends early, in one line and one exit code.

use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
use phalanx::Error;
use phalanx::internals::costs::CostTableError;
use phalanx::internals::net::NetError;
use phalanx::job::JobError;
use phalanx_bench::parity::ParityError;

/// The exit code of a run that broke off.
pub const BROKEN: u8 = phalanx::job::FAILED as u8;

/// Why a command ends early.
#[derive(Debug)]
pub enum Failure {
    /// The command, its configuration or an input file is wrong: nothing ran.
    Input(String),
    /// It failed while running, and would again.
    Run(String),
    /// Something broke while it ran, an operation or the connection to another rank, that may hold the next time.
    Broken(String),
    /// The reader of the output has closed it: not an error.
    ClosedPipe,
}

impl Failure {
    /// Prints the error, if it is one, and gives the exit code.
    pub fn report(self) -> ExitCode {
        let Some((message, code)) = self.parts() else { return ExitCode::SUCCESS };
        // In one piece: several ranks may report into the same stream at the same time.
        let line = format!("error: {message}\n");
        eprint!("{line}");
        ExitCode::from(code)
    }

    /// The error in one line and the exit code, if it is one.
    pub fn parts(self) -> Option<(String, u8)> {
        match self {
            Failure::Input(message) => Some((one_line(&message), 2)),
            Failure::Run(message) => Some((one_line(&message), 1)),
            Failure::Broken(message) => Some((one_line(&message), BROKEN)),
            Failure::ClosedPipe => None,
        }
    }
}

/// What the library refuses before it runs anything is a wrong input. What goes wrong later, between ranks, or with what
/// it writes is not.
impl From<phalanx::hf::WriteError> for Failure {
    fn from(error: phalanx::hf::WriteError) -> Self {
        phalanx::Error::from(error).into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Diverged { .. }
            | Error::NotFinite { .. }
            | Error::HfWrite(_)
            | Error::Save(_)
            | Error::Costs(CostTableError::Write { .. })
            | Error::Job(JobError::Net(NetError::Mismatch { .. }))
            | Error::Job(JobError::Garbled { .. }) => Failure::Run(message),
            Error::Fault(_) | Error::Job(JobError::Net(NetError::Call { .. })) => Failure::Broken(message),
            Error::Build(_)
            | Error::Nn(_)
            | Error::Import(_)
            | Error::Training(_)
            | Error::Model(_)
            | Error::Compile(_)
            | Error::Port(_)
            | Error::Bounds(_)
            | Error::MissingTable { .. }
            | Error::Data(_)
            | Error::HfConfig(_)
            | Error::HfWeights(_)
            | Error::Config(_)
            | Error::Plan(_)
            | Error::Costs(_)
            | Error::Artifact(_)
            | Error::Ckpt(_)
            | Error::Job(_)
            | Error::ExecutionMode { .. }
            | Error::Generate(_)
            | Error::Memory { .. }
            | Error::NotTraining { .. }
            | Error::NotFed { .. }
            | Error::NoStep { .. }
            | Error::EvaluationMemory { .. } => Failure::Input(message),
        }
    }
}

impl From<ParityError> for Failure {
    fn from(error: ParityError) -> Self {
        match error {
            ParityError::Failed(error) => error.into(),
            ParityError::Write { .. } => Failure::Run(error.to_string()),
            _ => Failure::Input(error.to_string()),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ClosedPipe,
            _ => Failure::Run(format!("cannot write to standard output: {error}")),
        }
    }
}

/// The parser's message without its usage section.
impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            return Failure::Input("a command is missing; --help lists them".into());
        }
        let text = error.render().to_string();
        let is_news = |line: &str| !line.is_empty() && !line.starts_with("tip: to pass");
        let told =
            text.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
        let told: Vec<&str> = told.map(str::trim).filter(|line| is_news(line)).collect();
        let told = told.join(" ").replace(" tip: ", "; ");
        Failure::Input(format!("{}; --help shows the flags", told.trim_start_matches("error: ")))
    }
}

/// A message of several lines in one, without drawings of the place in a file.
fn one_line(message: &str) -> String {
    let is_drawing =
        |line: &str| line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').starts_with('|');
    let lines = message.lines().filter(|line| !is_drawing(line)).map(str::trim);
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_while_running_is_no_wrong_input() {
        let code = |error: Error| Failure::from(error).parts().map(|(_, code)| code);
        let rank = 1;
        let call = NetError::Call { rank, call: "MPI_Testsome", why: "the peer is gone".into() };
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let path = std::path::PathBuf::from("costs.json");
        assert_eq!(code(call.into()), Some(BROKEN));
        for error in [
            Error::Diverged { loss: f32::NAN, step: 3 },
            NetError::Mismatch { rank, problem: "3 bytes instead of 4".into() }.into(),
            JobError::Garbled { rank, what: "verdict" }.into(),
            CostTableError::Write { path: path.clone(), source: full }.into(),
        ] {
            let text = error.to_string();
            assert_eq!(code(error), Some(1), "{text}");
        }
        for error in [
            Error::NoStep { steps: 3 },
            Error::Memory { need: 2, have: 1 },
            NetError::Library("there is no MPI library".into()).into(),
            JobError::TooManyRanks { devices: 2, ranks: 3 }.into(),
            CostTableError::Format { path, found: 9 }.into(),
        ] {
            let text = error.to_string();
            assert_eq!(code(error), Some(2), "{text}");
        }
    }

    #[test]
    fn drawings_are_left_out_of_messages() {
        let message = "a.toml: TOML parse error at line 1, column 1\n  |\n1 | stepz = 3\n  | ^^^^^\nunknown field `stepz`\n";
        assert_eq!(one_line(message), "a.toml: TOML parse error at line 1, column 1: unknown field `stepz`");
    }
}
