//! Shows how far the work has come that is done before anything else: text that becomes tokens, kernels that are measured.
//!
//! On a terminal it is a bar that goes away; elsewhere a line on standard error now and then, and none if all is quick.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use phalanx::train::Preparation;

use crate::output;

/// How often a line of progress is printed where there is no terminal.
pub const LINE_EVERY: Duration = Duration::from_secs(10);

/// Shows how far `work` has come.
pub fn shown<T>(work: impl FnOnce(&mut dyn FnMut(Preparation<'_>)) -> T) -> T {
    let mut bar: Option<(ProgressBar, bool)> = None;
    let mut pace = Pace { last: Instant::now() };
    let is_terminal = io::stderr().is_terminal();
    let done = work(&mut |preparation| {
        if !is_terminal {
            if pace.is_due(Instant::now()) {
                eprintln!("{}", line(preparation));
            }
            return;
        }
        let is_tokenizing = matches!(preparation, Preparation::Tokenizing { .. });
        if bar.as_ref().is_none_or(|(_, of_tokenizing)| *of_tokenizing != is_tokenizing) {
            bar.take().iter().for_each(|(bar, _)| bar.finish_and_clear());
            bar = Some((new_bar(preparation), is_tokenizing));
        }
        bar.iter().for_each(|(bar, _)| update(bar, preparation));
    });
    bar.iter().for_each(|(bar, _)| bar.finish_and_clear());
    done
}

/// Shows how far measuring has come.
pub fn measuring<T>(measure: impl FnOnce(&mut dyn FnMut(usize, usize, &str)) -> T) -> T {
    shown(|show| measure(&mut |done, total, kernel| show(Preparation::Measuring { done, total, kernel })))
}

/// Shows how much text has been encoded.
pub fn tokenizing<T>(encode: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T) -> T {
    shown(|show| encode(&mut |done, total| show(Preparation::Tokenizing { done, total })))
}

/// Decides when a line is printed.
struct Pace {
    last: Instant,
}

impl Pace {
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now.duration_since(self.last) >= LINE_EVERY;
        if is_due {
            self.last = now;
        }
        is_due
    }
}

fn line(preparation: Preparation<'_>) -> String {
    match preparation {
        Preparation::Tokenizing { done, total } => {
            format!("tokenizing: {} of {}", output::bytes(done), output::bytes(total))
        }
        Preparation::Measuring { done, total, kernel } => {
            format!("measuring kernel {done}/{total}: {kernel}")
        }
    }
}

fn new_bar(preparation: Preparation<'_>) -> ProgressBar {
    let template = match preparation {
        Preparation::Tokenizing { .. } => {
            "tokenizing {bytes}/{total_bytes} {bar:24} {binary_bytes_per_sec}, {eta} left"
        }
        Preparation::Measuring { .. } => "measuring kernel {pos}/{len} {bar:24} {msg}",
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

fn update(bar: &ProgressBar, preparation: Preparation<'_>) {
    let (done, total) = match preparation {
        Preparation::Tokenizing { done, total } => (done, total),
        Preparation::Measuring { done, total, kernel } => {
            bar.set_message(kernel.to_string());
            (done as u64, total as u64)
        }
    };
    bar.set_length(total);
    bar.set_position(done);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_work_has_a_line_every_ten_seconds() {
        let start = Instant::now();
        let mut pace = Pace { last: start };
        let seconds = [0, 3, 9, 10, 12, 19, 20, 45, 46];
        let due = seconds.map(|second| pace.is_due(start + Duration::from_secs(second)));
        assert_eq!(due, [false, false, false, true, false, false, true, true, false]);
        let text = line(Preparation::Tokenizing { done: 3 << 20, total: 3 << 29 });
        assert_eq!(text, "tokenizing: 3.0 MiB of 1.5 GiB");
        let text = line(Preparation::Measuring { done: 1, total: 9, kernel: "matmul" });
        assert_eq!(text, "measuring kernel 1/9: matmul");
    }
}
