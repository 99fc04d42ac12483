//! What people see of a step: [`trace`] writes it for Perfetto and Chrome, [`html`] as a page of its own.
//!
//! These are plain data and pure functions from data to text. Where the times come from, a simulation or a measurement,
//! is not known here. All times are nanoseconds since the step began, all sizes bytes.

mod arrows;
pub mod html;
mod rows;
pub mod trace;

use serde::Serialize;

/// All that is known of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TimelineReport {
    /// The headline.
    pub title: String,
    /// Model, plan and links, in a line of text.
    pub subtitle: String,
    /// The step as predicted, as measured, or both.
    pub timelines: Vec<Timeline>,
    /// Each device's memory over the step.
    pub memory: Vec<MemoryCurve>,
    /// What became of every transfer.
    pub transfers: Vec<TransferRow>,
    /// The step before transfers were moved.
    pub before: Totals,
    /// The step as it is.
    pub after: Totals,
    /// If it was measured by the clocks of several processes: by how many nanoseconds these may differ.
    pub clock_bound: Option<u64>,
}

/// One step, as predicted or as measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Timeline {
    /// What people call it: `predicted`, `measured`.
    pub name: String,
    /// Its lanes. They are shown by device, those of a device in this order.
    pub lanes: Vec<TimelineLane>,
}

/// What one device does of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimelineLane {
    /// The device's number.
    pub device: u32,
    /// The process that has the device, if there are several and it matters.
    pub rank: Option<u32>,
    /// What happens in it.
    pub kind: TimelineLaneKind,
    /// In any order. Spans that overlap are shown in rows of their own.
    pub spans: Vec<TimelineSpan>,
}

/// What happens in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TimelineLaneKind {
    /// Kernels.
    Compute,
    /// Bytes that come from or go to other devices.
    Transfers,
    /// Messages to other processes.
    Sends,
    /// Messages from other processes, from the moment their memory is free.
    Arrivals,
}

impl TimelineLaneKind {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            TimelineLaneKind::Compute => "compute",
            TimelineLaneKind::Transfers => "transfers",
            TimelineLaneKind::Sends => "sends",
            TimelineLaneKind::Arrivals => "arrivals",
        }
    }
}

/// Something that takes time. One that ends before it starts is shown as taking none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimelineSpan {
    /// The kernel and its layer.
    pub name: String,
    /// The layer of the model it belongs to; empty if it belongs to none.
    pub layer: String,
    /// What it is.
    pub kind: SpanKind,
    /// When it starts.
    pub start: u64,
    /// When it ends.
    pub end: u64,
    /// Bytes that change devices.
    pub bytes: u64,
    /// The movement that it sends, receives or waits for.
    pub movement: Option<u32>,
}

impl TimelineSpan {
    /// Nanoseconds from start to end.
    pub fn duration(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// What a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    /// A kernel.
    Compute,
    /// The sending side of a movement.
    Send,
    /// The receiving side of a movement.
    Receive,
    /// Nothing, for lack of what another one gives.
    Wait,
}

impl SpanKind {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            SpanKind::Compute => "compute",
            SpanKind::Send => "send",
            SpanKind::Receive => "receive",
            SpanKind::Wait => "wait",
        }
    }
}

/// Bytes in use on one device over the step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MemoryCurve {
    /// The device's number.
    pub device: u32,
    /// From each time on, this many bytes are alive; times ascend.
    pub points: Vec<(u64, u64)>,
    /// The most bytes that are alive at once.
    pub peak: u64,
    /// When that is first so.
    pub peak_at: u64,
    /// The bytes that may be alive, if that is limited.
    pub budget: Option<u64>,
    /// What is alive at the peak, largest first.
    pub alive: Vec<Alive>,
}

/// Something in memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alive {
    /// Its name in the model.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// What it is there for: `parameter`, `gradient`, `activation`, …
    pub role: String,
}

/// The verdict on one transfer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TransferRow {
    /// The movement's number, as spans have it.
    pub movement: u32,
    /// What it does: `all-reduce`, `all-gather`, …
    pub kind: String,
    /// The layer it serves.
    pub layer: String,
    /// Bytes that change devices.
    pub bytes: u64,
    /// Devices that take part.
    pub devices: u32,
    /// How long it takes.
    pub time: u64,
    /// How much of that passes while its devices compute.
    pub hidden: u64,
    /// How many places earlier it starts than it did before; negative if later.
    pub moves: i64,
    /// What keeps the rest from being hidden: `data dependency`, `memory`, `order`, `bandwidth`, or `nothing left`.
    pub limit: String,
}

impl TransferRow {
    /// The part of its time that is hidden, of one. A transfer that takes no time is hidden.
    pub fn hidden_share(&self) -> f64 {
        if self.time == 0 { 1.0 } else { self.hidden as f64 / self.time as f64 }
    }
}

/// A step in five numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// How long the step takes.
    pub step: u64,
    /// How much of that the device that waits longest waits for transfers.
    pub exposed: u64,
    /// How long the busiest device computes.
    pub compute: u64,
    /// What no order of the same work can beat.
    pub lower_bound: u64,
    /// The most bytes alive on one device.
    pub peak: u64,
}
