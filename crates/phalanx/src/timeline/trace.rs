//! A report as a trace that Perfetto's viewer and Chrome's `about:tracing` open: the JSON form of trace events.
//!
//! Every device of every timeline is a process, called with its rank if there are several, and every row of its lanes a
//! thread; memory is a process of its own with
//! one counter for each device. Process and thread numbers are all different and none is zero: Perfetto takes a thread
//! numbered like its process for the main one, and process zero for the kernel.
//!
//! Spans of a thread never overlap, because Perfetto drops those that do. An arrow's events directly follow their spans: a
//! viewer binds an arrow to the span it saw last at that time.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::arrows::{Place, arrows};
use super::rows::rows;
use super::{MemoryCurve, Timeline, TimelineLane, TimelineLaneKind, TimelineReport, TimelineSpan, Totals};

/// Writes `report` to `out`, one event a line.
///
/// ```
/// let report = phalanx::internals::timeline::TimelineReport { title: "One step".to_string(), ..Default::default() };
/// let mut trace = Vec::new();
/// phalanx::internals::timeline::trace::write(&report, &mut trace)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write(report: &TimelineReport, out: impl Write) -> io::Result<()> {
    let TimelineReport { title, subtitle, before, after, clock_bound, .. } = report;
    let limits = report.transfers.iter().map(|row| (row.movement, row.limit.as_str())).collect();
    let mut trace = Trace { out, separator: "", numbers: 0, flows: 0, limits };
    let about =
        serde_json::to_string(&OtherData { title, subtitle, before, after, clock_bound_ns: *clock_bound })?;
    writeln!(trace.out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{about},\"traceEvents\":[")?;
    for timeline in &report.timelines {
        trace.timeline(timeline)?;
    }
    trace.memory(&report.memory)?;
    writeln!(trace.out, "\n]}}")?;
    trace.out.flush()
}

/// What the trace says of itself as a whole.
#[derive(Serialize)]
struct OtherData<'a> {
    title: &'a str,
    subtitle: &'a str,
    before: &'a Totals,
    after: &'a Totals,
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_bound_ns: Option<u64>,
}

/// One event; times are microseconds.
#[derive(Serialize)]
#[serde(tag = "ph")]
enum Event<'a> {
    #[serde(rename = "M")]
    Metadata {
        name: &'static str,
        pid: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        tid: Option<u32>,
        args: About<'a>,
    },
    #[serde(rename = "X")]
    Complete { name: &'a str, cat: &'static str, pid: u32, tid: u32, ts: f64, dur: f64, args: Details<'a> },
    #[serde(rename = "s")]
    FlowStart { name: &'static str, cat: &'static str, id: u32, pid: u32, tid: u32, ts: f64 },
    #[serde(rename = "f")]
    FlowEnd { name: &'static str, cat: &'static str, id: u32, bp: &'static str, pid: u32, tid: u32, ts: f64 },
    #[serde(rename = "C")]
    Counter { name: &'a str, pid: u32, ts: f64, args: Level },
}

/// What a metadata event says of its process or thread.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum About<'a> {
    Name(&'a str),
    SortIndex(u32),
}

/// What viewers show of a chosen span besides its times.
#[derive(Serialize)]
struct Details<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    layer: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    movement: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'a str>,
}

/// A counter's value.
#[derive(Serialize)]
struct Level {
    bytes: u64,
}

/// One end of an arrow: the event to be written behind its span.
#[derive(Clone, Copy)]
enum End {
    Start { flow: u32, at: u64 },
    Finish { flow: u32, at: u64 },
}

/// The name and category of all arrows.
const FLOW: &str = "movement";

/// A trace that is being written, and what it has given out so far.
struct Trace<'a, W> {
    out: W,
    /// What stands between the last event and the next.
    separator: &'static str,
    /// The last number of a process or thread.
    numbers: u32,
    flows: u32,
    /// What keeps each movement from being hidden.
    limits: BTreeMap<u32, &'a str>,
}

impl<W: Write> Trace<'_, W> {
    fn timeline(&mut self, timeline: &Timeline) -> io::Result<()> {
        let ends = self.ends(timeline);
        let mut devices: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (lane_idx, lane) in timeline.lanes.iter().enumerate() {
            devices.entry(lane.device).or_default().push(lane_idx);
        }
        for (device, lanes) in devices {
            let rank = lanes.first().and_then(|&lane_idx| timeline.lanes[lane_idx].rank);
            let rank = rank.map_or(String::new(), |rank| format!("rank{rank} "));
            let pid = self.process(&format!("{} {rank}dev{device}", timeline.name))?;
            let mut named = BTreeMap::new();
            for lane_idx in lanes {
                let lane = &timeline.lanes[lane_idx];
                let before = named.entry(lane.kind.name()).or_insert(0);
                *before += self.lane(pid, lane, *before, |span_idx| ends.get(&(lane_idx, span_idx)))?;
            }
        }
        Ok(())
    }

    /// Writes the rows of a lane, before which the device has so many of the same kind; how many they are.
    fn lane<'e>(
        &mut self,
        pid: u32,
        lane: &TimelineLane,
        before: usize,
        ends: impl Fn(usize) -> Option<&'e Vec<End>>,
    ) -> io::Result<usize> {
        let rows = rows(&lane.spans);
        let n_rows = rows.len();
        for (row_idx, row) in rows.into_iter().enumerate() {
            let tid = self.thread(pid, &row_name(lane.kind, before + row_idx))?;
            for span_idx in row {
                self.span(pid, tid, &lane.spans[span_idx])?;
                for &end in ends(span_idx).into_iter().flatten() {
                    self.arrow_end(pid, tid, end)?;
                }
            }
        }
        Ok(n_rows)
    }

    /// The ends of all arrows by the span they belong to.
    fn ends(&mut self, timeline: &Timeline) -> BTreeMap<Place, Vec<End>> {
        let start = |place: Place| timeline.lanes[place.0].spans[place.1].start;
        let mut ends: BTreeMap<Place, Vec<End>> = BTreeMap::new();
        for arrow in arrows(timeline) {
            self.flows += 1;
            let (flow, sent) = (self.flows, start(arrow.from));
            // A receiver that waits may start before the sender does; its arrow must not point back in time.
            let received = start(arrow.to).max(sent);
            ends.entry(arrow.from).or_default().push(End::Start { flow, at: sent });
            ends.entry(arrow.to).or_default().push(End::Finish { flow, at: received });
        }
        ends
    }

    fn memory(&mut self, curves: &[MemoryCurve]) -> io::Result<()> {
        if curves.is_empty() {
            return Ok(());
        }
        let pid = self.process("memory")?;
        for curve in curves {
            let name = format!("dev{}", curve.device);
            for &(at, bytes) in &curve.points {
                self.event(&Event::Counter { name: &name, pid, ts: micros(at), args: Level { bytes } })?;
            }
        }
        Ok(())
    }

    fn process(&mut self, name: &str) -> io::Result<u32> {
        let pid = self.number();
        self.metadata("process_name", pid, None, About::Name(name))?;
        self.metadata("process_sort_index", pid, None, About::SortIndex(pid))?;
        Ok(pid)
    }

    fn thread(&mut self, pid: u32, name: &str) -> io::Result<u32> {
        let tid = self.number();
        self.metadata("thread_name", pid, Some(tid), About::Name(name))?;
        self.metadata("thread_sort_index", pid, Some(tid), About::SortIndex(tid))?;
        Ok(tid)
    }

    fn metadata(&mut self, name: &'static str, pid: u32, tid: Option<u32>, args: About) -> io::Result<()> {
        self.event(&Event::Metadata { name, pid, tid, args })
    }

    fn span(&mut self, pid: u32, tid: u32, span: &TimelineSpan) -> io::Result<()> {
        let args = Details {
            layer: &span.layer,
            bytes: (span.bytes > 0).then_some(span.bytes),
            movement: span.movement,
            limit: span.movement.and_then(|movement| self.limits.get(&movement).copied()),
        };
        let (ts, dur) = (micros(span.start), micros(span.duration()));
        self.event(&Event::Complete { name: &span.name, cat: span.kind.name(), pid, tid, ts, dur, args })
    }

    fn arrow_end(&mut self, pid: u32, tid: u32, end: End) -> io::Result<()> {
        let (name, cat) = (FLOW, FLOW);
        self.event(&match end {
            End::Start { flow, at } => Event::FlowStart { name, cat, id: flow, pid, tid, ts: micros(at) },
            End::Finish { flow, at } => {
                // `e`: the arrow ends at the span around this time, not at the next one.
                Event::FlowEnd { name, cat, id: flow, bp: "e", pid, tid, ts: micros(at) }
            }
        })
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        self.out.write_all(self.separator.as_bytes())?;
        self.separator = ",\n";
        serde_json::to_writer(&mut self.out, event)?;
        Ok(())
    }

    fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }
}

/// What the thread of a lane's row is called: rows after the first are numbered.
fn row_name(kind: TimelineLaneKind, row_idx: usize) -> String {
    match row_idx {
        0 => kind.name().to_string(),
        _ => format!("{} {}", kind.name(), row_idx + 1),
    }
}

/// Nanoseconds as the format's microseconds. For a month, a reader that rounds gets the same nanoseconds back.
fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}
