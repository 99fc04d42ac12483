//! Draws a run on a screen of any size.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, LineGauge, Paragraph, Sparkline};

use super::view::{Health, RankView, RunView};
use crate::output;

/// Screens at least this wide have the curves side by side.
const WIDE: u16 = 120;

/// The most rows for lanes and ranks, with their frame.
const MOST_ROWS: usize = 10;

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, view: &RunView) {
    let listed = view.lanes.len().max(view.ranks.len()).clamp(1, MOST_ROWS - 2) as u16 + 2;
    let rows = [Constraint::Length(4), Constraint::Min(3), Constraint::Length(listed)];
    let [head, curves, lists] = Layout::vertical(rows).areas(frame.area());
    draw_head(frame, head, view);
    let [losses, speeds] = match curves.width >= WIDE {
        true => Layout::horizontal([Constraint::Fill(2), Constraint::Fill(1)]).areas(curves),
        false => Layout::vertical([Constraint::Min(3), Constraint::Max(curves.height / 3)]).areas(curves),
    };
    draw_losses(frame, losses, view);
    draw_speeds(frame, speeds, view);
    let [lanes, ranks] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(lists);
    draw_lanes(frame, lanes, view);
    draw_ranks(frame, ranks, view);
}

fn color(health: Health) -> Color {
    match health {
        Health::Running | Health::Finished => Color::Green,
        Health::Waiting | Health::Behind | Health::Stopped => Color::Yellow,
        Health::Silent => Color::Red,
    }
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, view: &RunView) {
    let [title, progress, numbers, machine] = Layout::vertical([Constraint::Length(1); 4]).areas(area);
    let health = Span::from(view.health.word()).fg(color(view.health));
    let leave = Line::from("q leaves").right_aligned().dark_gray();
    frame.render_widget(Line::from(vec![Span::from(view.dir.clone()).bold(), "  ".into(), health]), title);
    frame.render_widget(leave, title);
    let ratio = view.steps.map_or(0.0, |steps| view.step as f64 / (steps as f64).max(1.0)).clamp(0.0, 1.0);
    let gauge =
        LineGauge::default().ratio(ratio).filled_symbol("━").filled_style(Style::new().fg(Color::Cyan));
    frame.render_widget(gauge.unfilled_symbol("─").label(progress_text(view)), progress);
    frame.render_widget(Line::from(join(&loss_numbers(view))), numbers);
    frame.render_widget(Line::from(join(&machine_numbers(view))), machine);
}

fn progress_text(view: &RunView) -> String {
    let step = output::grouped(view.step);
    let of = view.steps.map_or(String::new(), |steps| format!("/{}", output::grouped(steps)));
    let left = view.seconds_left.map_or(String::new(), |seconds| format!(", {} left", duration(seconds)));
    format!("step {step}{of}{left}")
}

fn loss_numbers(view: &RunView) -> Vec<String> {
    let eval = view.eval_loss.map(|loss| match view.eval_perplexity {
        Some(perplexity) => format!("eval loss {loss:.4} (perplexity {perplexity:.2})"),
        None => format!("eval loss {loss:.4}"),
    });
    let numbers = [
        view.loss.map(|loss| format!("loss {loss:.4}")),
        eval,
        view.best_eval_loss.map(|loss| format!("best {loss:.4}")),
        view.lr.map(|lr| format!("lr {lr:.2e}")),
    ];
    numbers.into_iter().flatten().collect()
}

fn machine_numbers(view: &RunView) -> Vec<String> {
    let numbers = [
        view.tokens_per_s.map(|speed| format!("{} tokens/s", output::grouped(speed as u64))),
        view.arena_bytes.map(|bytes| format!("arena {}", output::bytes(bytes))),
        view.resident_bytes.map(|bytes| format!("resident {}", output::bytes(bytes))),
        view.gradient_norm.map(|norm| format!("gradient norm {norm:.3}")),
    ];
    numbers.into_iter().flatten().collect()
}

fn join(numbers: &[String]) -> String {
    numbers.join("  ")
}

fn draw_losses(frame: &mut Frame<'_>, area: Rect, view: &RunView) {
    let losses = thinned(&view.losses, 2 * usize::from(area.width));
    let both = || losses.iter().chain(&view.eval_losses);
    let span = |axis: fn(&(f64, f64)) -> f64| {
        let (low, high) = both()
            .map(axis)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        if low < high {
            [low, high]
        } else if low.is_finite() {
            [low - 0.5, low + 0.5]
        } else {
            [0.0, 1.0]
        }
    };
    let (x, y) = (span(|point| point.0), span(|point| point.1));
    let curve = |color: Color, kind: GraphType, marker: Marker| {
        Dataset::default().graph_type(kind).marker(marker).style(Style::new().fg(color))
    };
    let datasets = vec![
        curve(Color::Cyan, GraphType::Line, Marker::Braille).data(&losses),
        curve(Color::Yellow, GraphType::Scatter, Marker::Dot).data(&view.eval_losses),
    ];
    let middle = |[low, high]: [f64; 2]| [low, (low + high) / 2.0, high];
    let steps = [x[0].max(0.0), x[1]].map(|step| output::grouped(step.round() as u64));
    let chart = Chart::new(datasets)
        .block(Block::bordered().title("loss by step; • held-back data"))
        .legend_position(None)
        .x_axis(Axis::default().bounds(x).labels(steps))
        .y_axis(Axis::default().bounds(y).labels(middle(y).map(|loss| format!("{loss:.3}"))));
    frame.render_widget(chart, area);
}

fn draw_speeds(frame: &mut Frame<'_>, area: Rect, view: &RunView) {
    let columns = usize::from(area.width.saturating_sub(2)).max(1);
    let points: Vec<(f64, f64)> = view.speeds.iter().map(|&speed| (0.0, speed)).collect();
    let speeds = thinned(&points, columns);
    let data: Vec<u64> = speeds.iter().map(|&(_, speed)| speed as u64).collect();
    let highest = data.iter().copied().max().unwrap_or(0);
    let title = format!("tokens/s, up to {}", output::grouped(highest));
    let spark = Sparkline::default().data(data).style(Style::new().fg(Color::Blue));
    frame.render_widget(spark.block(Block::bordered().title(title)), area);
}

fn draw_lanes(frame: &mut Frame<'_>, area: Rect, view: &RunView) {
    let inner = usize::from(area.width.saturating_sub(2));
    let width = view.lanes.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let bar = inner.saturating_sub(width + 7);
    let row = |(name, share): &(String, f64)| {
        let filled = (share * bar as f64).round() as usize;
        let bar = "█".repeat(filled) + &"░".repeat(bar.saturating_sub(filled));
        Line::from(vec![
            format!("{name:width$} ").into(),
            Span::from(bar).fg(Color::Magenta),
            format!(" {:3.0} %", 100.0 * share).into(),
        ])
    };
    let rows = view.lanes.iter().map(row).collect();
    draw_list(frame, area, "busy lanes", rows, "not logged yet");
}

fn draw_ranks(frame: &mut Frame<'_>, area: Rect, view: &RunView) {
    let row = |rank: &RankView| {
        let age = match rank.age_seconds.filter(|_| rank.health.goes_on() || rank.health == Health::Silent) {
            Some(age) => format!(", {} ago", duration(age)),
            None => String::new(),
        };
        let text = format!("rank {:<3}step {:<8}", rank.rank, output::grouped(rank.step));
        Line::from(vec![text.into(), Span::from(rank.health.word()).fg(color(rank.health)), age.into()])
    };
    // Those that need a look come first.
    let mut ranks: Vec<&RankView> = view.ranks.iter().collect();
    ranks.sort_by_key(|rank| !matches!(rank.health, Health::Behind | Health::Silent));
    draw_list(frame, area, "ranks", ranks.into_iter().map(row).collect(), "none");
}

/// A frame with as many rows as it has room for, and how many are left out.
fn draw_list(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &'static str,
    mut rows: Vec<Line<'_>>,
    empty: &'static str,
) {
    let room = usize::from(area.height.saturating_sub(2));
    if rows.is_empty() {
        rows.push(Line::from(empty).dark_gray());
    }
    let block = Block::bordered().title(title);
    let block = match rows.len().checked_sub(room) {
        Some(hidden @ 1..) => block.title_bottom(Line::from(format!("{hidden} more")).right_aligned()),
        _ => block,
    };
    rows.truncate(room);
    frame.render_widget(Paragraph::new(rows).block(block), area);
}

/// At most `most` points: means of equal stretches.
fn thinned(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    let stretch = points.len().div_ceil(most.max(1)).max(1);
    let mean = |points: &[(f64, f64)]| {
        let count = points.len() as f64;
        let sum = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
        (sum.0 / count, sum.1 / count)
    };
    points.chunks(stretch).map(mean).collect()
}

/// Hours, minutes and seconds.
fn duration(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}
