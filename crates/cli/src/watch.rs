//! `phalanx watch`: a run as it goes on, or as it went, from its log directory.
//!
//! It only reads: a run does not know whether it is watched, and watching can begin and end at any time.

mod draw;
mod follow;
mod view;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal;

use crate::failure::Failure;
use crate::output;
use follow::RunLog;
use view::RunView;

/// Watch a run: curves, speed, memory, lanes and ranks.
///
/// Reads what `train --log-dir` writes, while it is written or later. `q`, Esc or Ctrl-C leave; the run goes on. Where there
/// is no terminal, one picture is printed as text.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  phalanx train --log-dir runs/a &
  phalanx watch runs/a
  phalanx watch runs/a --once               # one picture, as text
  phalanx watch runs/a --json               # the numbers of now")]
pub struct Args {
    /// Directory that `train --log-dir` writes to
    dir: PathBuf,
    /// Print one picture and end
    #[arg(long)]
    once: bool,
    /// Print the current state as one line of JSON and end
    #[arg(long, conflicts_with = "once")]
    json: bool,
}

/// How often the logs are looked at.
const REFRESH: Duration = Duration::from_millis(500);

/// Columns and rows of a picture where there is no terminal.
const PLAIN: (u16, u16) = (80, 24);

/// Shows the run until it is left.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut log = RunLog::open(&args.dir)?;
    if args.json {
        output::json(&RunView::new(&log, now()))?;
    } else if args.once || !io::stdout().is_terminal() {
        let size = if io::stdout().is_terminal() { terminal::size()? } else { PLAIN };
        output::line(picture(&RunView::new(&log, now()), size)?)?;
    } else {
        let mut screen = ratatui::try_init()?;
        let shown = show(&mut screen, &mut log);
        ratatui::restore();
        shown?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Draws what the logs say until a key asks to leave.
fn show(screen: &mut ratatui::DefaultTerminal, log: &mut RunLog) -> Result<(), Failure> {
    loop {
        log.poll()?;
        let view = RunView::new(log, now());
        screen.draw(|frame| draw::draw(frame, &view))?;
        if event::poll(REFRESH)? && is_leaving(&event::read()?) {
            return Ok(());
        }
    }
}

fn is_leaving(event: &Event) -> bool {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = *event else {
        return false;
    };
    let is_control_c = code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL);
    matches!(code, KeyCode::Char('q') | KeyCode::Esc) || is_control_c
}

/// A picture as lines of text.
fn picture(view: &RunView, (width, height): (u16, u16)) -> Result<String, Failure> {
    let mut screen = Terminal::new(TestBackend::new(width, height)).unwrap_or_else(|error| match error {});
    screen.draw(|frame| draw::draw(frame, view)).unwrap_or_else(|error| match error {});
    let cells = screen.backend().buffer().content();
    let row = |cells: &[ratatui::buffer::Cell]| {
        let text: String = cells.iter().map(|cell| cell.symbol()).collect();
        text.trim_end().to_string()
    };
    Ok(cells.chunks(usize::from(width).max(1)).map(row).collect::<Vec<_>>().join("\n"))
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests;
