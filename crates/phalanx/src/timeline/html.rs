//! A report as one page that needs nothing but a browser: no file beside it, no network.
//!
//! The page holds the report as JSON and a script that draws it. Text of a report reaches the page in two ways only: as JSON
//! without `<`, so that no name ends the element around it, and as the page's title, escaped. The script puts text into
//! the page as text, never as markup. The page's own policy forbids it to load anything.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;

use super::arrows::{Place, arrows};
use super::rows::rows;
use super::{MemoryCurve, Timeline, TimelineLane, TimelineReport, TimelineSpan, Totals, TransferRow};

/// The page with a name in double braces wherever something is to be filled in.
const PAGE: &str = include_str!("report.html");
const STYLE: &str = include_str!("report.css");
/// The script's parts, in the order in which they use one another.
const SCRIPT: [&str; 7] = [
    include_str!("report/format.js"),
    include_str!("report/paint.js"),
    include_str!("report/facts.js"),
    include_str!("report/lanes.js"),
    include_str!("report/memory.js"),
    include_str!("report/transfers.js"),
    include_str!("report.js"),
];

/// Writes `report` to `out` as a page.
///
/// ```
/// let report = phalanx::internals::timeline::TimelineReport { title: "One step".to_string(), ..Default::default() };
/// let mut page = Vec::new();
/// phalanx::internals::timeline::html::write(&report, &mut page)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write(report: &TimelineReport, mut out: impl Write) -> io::Result<()> {
    // What is filled in is not looked at again, so braces in names stay as they are.
    let mut parts = PAGE.split("{{");
    out.write_all(parts.next().unwrap_or_default().as_bytes())?;
    for part in parts {
        let (name, rest) = part.split_once("}}").expect("the page closes its braces");
        match name {
            "title" => out.write_all(escape(&report.title).as_bytes())?,
            "style" => out.write_all(STYLE.as_bytes())?,
            "data" => out.write_all(data(report)?.as_bytes())?,
            "script" => out.write_all(SCRIPT.concat().as_bytes())?,
            _ => unreachable!("the page has nothing called `{name}`"),
        }
        out.write_all(rest.as_bytes())?;
    }
    out.flush()
}

/// `text` as the text of an element.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The report as JSON for the inside of a script element. In JSON, `<` is only ever a part of a string.
fn data(report: &TimelineReport) -> io::Result<String> {
    let mut words = Words::default();
    let timelines = report.timelines.iter().map(|timeline| timeline_data(timeline, &mut words)).collect();
    let TimelineReport { title, subtitle, memory, transfers, before, after, .. } = report;
    let page =
        PageData { title, subtitle, timelines, memory, transfers, before, after, words: words.by_number };
    Ok(serde_json::to_string(&page)?.replace('<', "\\u003c"))
}

/// What the script reads.
#[derive(Serialize)]
struct PageData<'a> {
    title: &'a str,
    subtitle: &'a str,
    words: Vec<&'a str>,
    timelines: Vec<TimelineData<'a>>,
    memory: &'a [MemoryCurve],
    transfers: &'a [TransferRow],
    before: &'a Totals,
    after: &'a Totals,
}

#[derive(Serialize)]
struct TimelineData<'a> {
    name: &'a str,
    rows: Vec<RowData>,
    /// Row and position of the sender, then of the receiver.
    arrows: Vec<[usize; 4]>,
}

/// A row of a lane, by columns: tens of thousands of spans are small and quick to read that way.
#[derive(Serialize)]
struct RowData {
    device: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    kind: &'static str,
    /// Names and layers are numbers of words.
    name: Vec<usize>,
    layer: Vec<usize>,
    /// Numbers of `SpanKind`, in its order.
    what: Vec<u8>,
    start: Vec<u64>,
    duration: Vec<u64>,
    bytes: Vec<u64>,
    /// No movement is -1.
    movement: Vec<i64>,
}

/// Every word once.
#[derive(Default)]
struct Words<'a> {
    by_number: Vec<&'a str>,
    numbers: HashMap<&'a str, usize>,
}

impl<'a> Words<'a> {
    fn number(&mut self, word: &'a str) -> usize {
        *self.numbers.entry(word).or_insert_with(|| {
            self.by_number.push(word);
            self.by_number.len() - 1
        })
    }
}

fn timeline_data<'a>(timeline: &'a Timeline, words: &mut Words<'a>) -> TimelineData<'a> {
    let mut data = TimelineData { name: &timeline.name, rows: Vec::new(), arrows: Vec::new() };
    let mut places: HashMap<Place, [usize; 2]> = HashMap::new();
    let mut lanes: Vec<(usize, &TimelineLane)> = timeline.lanes.iter().enumerate().collect();
    lanes.sort_by_key(|(_, lane)| lane.device);
    for (lane_idx, lane) in lanes {
        for row in rows(&lane.spans) {
            for (position, &span_idx) in row.iter().enumerate() {
                places.insert((lane_idx, span_idx), [data.rows.len(), position]);
            }
            let spans: Vec<&TimelineSpan> = row.iter().map(|&span_idx| &lane.spans[span_idx]).collect();
            data.rows.push(row_data(lane, &spans, words));
        }
    }
    for arrow in arrows(timeline) {
        let ([from_row, from], [to_row, to]) = (places[&arrow.from], places[&arrow.to]);
        data.arrows.push([from_row, from, to_row, to]);
    }
    data
}

fn row_data<'a>(lane: &TimelineLane, spans: &[&'a TimelineSpan], words: &mut Words<'a>) -> RowData {
    RowData {
        device: lane.device,
        rank: lane.rank,
        kind: lane.kind.name(),
        name: spans.iter().map(|span| words.number(&span.name)).collect(),
        layer: spans.iter().map(|span| words.number(&span.layer)).collect(),
        what: spans.iter().map(|span| span.kind as u8).collect(),
        start: spans.iter().map(|span| span.start).collect(),
        duration: spans.iter().map(|span| span.duration()).collect(),
        bytes: spans.iter().map(|span| span.bytes).collect(),
        movement: spans.iter().map(|span| span.movement.map_or(-1, i64::from)).collect(),
    }
}
