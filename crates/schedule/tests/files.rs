//! The file tests of schedules: a task graph, then its schedule.

use std::fmt;
use std::path::Path;

use phalanx_ir::tasks::TaskGraph;
use phalanx_ir::text::ParseError;
use phalanx_schedule::{Owner, Schedule, ScheduleError, Style, TaskCosts, schedule_in};
use phalanx_testkit::filetest::{self, Level};

/// A task graph and its schedule.
#[derive(PartialEq)]
struct Scheduled {
    tasks: TaskGraph,
    schedule: Schedule,
}

impl fmt::Display for Scheduled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.tasks, self.schedule)
    }
}

impl Level for Scheduled {
    /// The second part is read behind empty lines, so that its errors keep their places.
    fn parse(text: &str) -> Result<Self, ParseError> {
        let at = text.lines().position(|line| line.starts_with("schedule")).unwrap_or(0);
        let tasks: String = text.lines().take(at).flat_map(|line| [line, "\n"]).collect();
        let schedule: String = text.lines().skip(at).flat_map(|line| [line, "\n"]).collect();
        let schedule = format!("{}{schedule}", "\n".repeat(at));
        Ok(Scheduled { tasks: tasks.parse()?, schedule: schedule.parse()? })
    }

    fn broken(&self) -> Vec<(String, String)> {
        let errors = self.schedule.verify(&self.tasks).err().unwrap_or_default();
        errors.iter().map(|error| (start(error), error.to_string())).collect()
    }
}

/// The start of the line that an error is about.
fn start(error: &ScheduleError) -> String {
    match error {
        ScheduleError::Tables { .. } | ScheduleError::Lanes { .. } => "schedule".into(),
        ScheduleError::Count { task, .. }
        | ScheduleError::Lane { task, .. }
        | ScheduleError::Wait { task, .. }
        | ScheduleError::Order { task, .. }
        | ScheduleError::Race { second: task, .. } => format!("run {task}"),
        ScheduleError::Cycle { tasks } => format!("run {}", tasks[0]),
        ScheduleError::Place { buffer, .. } => format!("place {buffer}"),
        ScheduleError::Workspace { task, .. } => format!("workspace {task}"),
        ScheduleError::Overlap { b: Owner::Buffer(buffer), .. } => format!("place {buffer}"),
        ScheduleError::Overlap { b: Owner::Workspace(task), .. } => format!("workspace {task}"),
    }
}

/// The schedule of a task graph whose tasks need this many bytes besides their buffers.
fn scheduled(text: &str, overlap: bool, workspace: u64) -> Result<String, String> {
    let tasks: TaskGraph = text.parse().map_err(|error| format!("{error}"))?;
    tasks.verify().map_err(|errors| errors[0].to_string())?;
    let costs = TaskCosts::modelled(&tasks, None);
    let schedule = schedule_in(&tasks, &costs, Style { overlap, prefetch: None }, |_| workspace);
    schedule.verify(&tasks).map_err(|errors| errors[0].to_string())?;
    Ok(schedule.to_string())
}

/// A name after `@` is a way to schedule that is not the usual one.
const PASSES: &[(&str, filetest::PassFn)] = &[
    ("schedule", |text| scheduled(text, false, 0)),
    ("schedule@workspace", |text| scheduled(text, false, 100)),
    ("schedule@overlap", |text| scheduled(text, true, 0)),
];

#[test]
fn schedules() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../filetests/schedule");
    filetest::check_level::<Scheduled>(&folder, PASSES);
}
