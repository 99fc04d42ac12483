//! What takes time before the first step, for progress on a terminal or in a log.

/// What a run does before its first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartPhase<'a> {
    /// Makes text into tokens.
    Tokenizing {
        /// How many bytes are done.
        done: u64,
        /// Of how many.
        total: u64,
    },
    /// Measures kernels whose times are not known.
    Measuring {
        /// How many are done.
        done: usize,
        /// Of how many.
        total: usize,
        /// Which is next.
        kernel: &'a str,
    },
    /// Compiles the model, which includes the search for a schedule.
    Compiling {
        /// For so many devices.
        devices: usize,
    },
}

/// Called whenever a phase begins or has come further.
pub type StartProgress<'a> = dyn FnMut(StartPhase<'_>) + 'a;

/// Progress of measuring as that of a start.
pub(crate) fn measuring(progress: &mut StartProgress<'_>) -> impl FnMut(usize, usize, &str) {
    |done, total, kernel| progress(StartPhase::Measuring { done, total, kernel })
}

/// Progress of encoding as that of a start.
pub(crate) fn tokenizing(progress: &mut StartProgress<'_>) -> impl FnMut(u64, u64) {
    |done, total| progress(StartPhase::Tokenizing { done, total })
}
