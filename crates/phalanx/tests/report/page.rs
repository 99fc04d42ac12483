//! The page, as text and in a browser that does with it what people do.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use phalanx::internals::timeline::{MemoryCurve, TimelineReport, html};
use serde_json::Value;

use super::example::{self, HOSTILE};

/// What a Chromium may be called.
const BROWSERS: [&str; 5] =
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];

/// Does what people do and writes what they see into an element called `probe`.
const PROBE: &str = include_str!("probe.js");

fn page(report: &TimelineReport) -> String {
    let mut bytes = Vec::new();
    html::write(report, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// The JSON that a page holds.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once(r#"<script type="application/json" id="data">"#).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn browser() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let named = |dir: PathBuf| BROWSERS.map(|name| dir.join(name));
    std::env::split_paths(&path).flat_map(named).find(|file| file.is_file()).unwrap_or_else(|| {
        panic!("this test needs one of {BROWSERS:?}; on Debian, `cargo xtask test` installs chromium")
    })
}

/// What the page called `name` looks like to its own scripts after a while, with `script` added at its end.
fn dom(name: &str, page: &str, script: &str) -> String {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("report.html");
    std::fs::write(&file, format!("{page}<script type=\"module\">{script}</script>")).unwrap();
    let output = Command::new(browser())
        // No sandbox: it is our own page, and containers have none to give. A profile of its own: tests run at once.
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"])
        .args(["--no-first-run", "--disable-extensions", "--window-size=1280,900"])
        .arg(format!("--user-data-dir={}", dir.join("profile").display()))
        .args(["--virtual-time-budget=10000", "--dump-dom"])
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the browser ended with {}:\n{errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// What the probe saw on a page.
fn probed(name: &str, report: &TimelineReport) -> Value {
    let dom = dom(name, &page(report), PROBE);
    let (_, rest) = dom.split_once("<pre id=\"probe\">").unwrap_or_else(|| panic!("no probe in\n{dom}"));
    serde_json::from_str(rest.split_once("</pre>").unwrap().0).unwrap()
}

#[test]
fn the_page_holds_the_report() {
    let report = example::report(12);
    let data = data(&page(&report));
    assert_eq!(data["title"], report.title);
    assert_eq!(data["before"]["step"], report.before.step);
    assert_eq!(data["memory"][3]["peak"], report.memory[3].peak);
    assert_eq!(data["transfers"][23]["limit"], report.transfers[23].limit);
    let rows = data["timelines"][1]["rows"].as_array().unwrap();
    let lanes = &report.timelines[1].lanes;
    assert_eq!(rows.len(), lanes.len());
    for (row, lane) in rows.iter().zip(lanes) {
        let starts: Vec<u64> = lane.spans.iter().map(|span| span.start).collect();
        assert_eq!((&row["device"], &row["start"]), (&lane.device.into(), &starts.into()));
        let words = &data["words"];
        let names: Vec<&Value> = row["name"].as_array().unwrap().iter().collect();
        for (name, span) in names.into_iter().zip(&lane.spans) {
            assert_eq!(words[name.as_u64().unwrap() as usize], span.name);
        }
    }
}

#[test]
fn names_cannot_leave_the_data() {
    let mut report = example::report(1);
    report.title = HOSTILE.to_string();
    let page = page(&report);
    assert_eq!(data(&page)["title"], HOSTILE);
    assert!(page.contains("<title>&lt;/script&gt;&lt;script&gt;"));
    // The data, the script and nothing else.
    assert_eq!(page.matches("</script").count(), 2);
    assert_eq!(page.matches("<img").count(), 0);
    assert!(page.contains("default-src 'none'"), "the page may load nothing");
}

/// The example under a hostile title, and what the probe saw of it.
static EXAMPLE: LazyLock<(TimelineReport, Value)> = LazyLock::new(|| {
    let mut report = example::report(12);
    report.title = HOSTILE.to_string();
    report.after.step = 104_249_600;
    report.before.step = 123_000_000;
    let seen = probed("example", &report);
    (report, seen)
});

#[test]
fn the_page_works_in_a_browser() {
    let (report, seen) = &*EXAMPLE;
    assert_eq!((&seen["error"], &seen["errorAfter"]), (&"".into(), &"".into()), "{seen}");
    assert_eq!(seen["loaded"], Value::Array(vec![]));
    assert_eq!(seen["heading"], HOSTILE);
    assert_eq!(seen["totals"][0], "104 ms");
    assert_eq!(seen["before"][0], "before 123 ms −15 %");
    assert_eq!(seen["before"][2], "unchanged");
    let spans: usize = report.timelines.iter().flat_map(|t| &t.lanes).map(|lane| lane.spans.len()).sum();
    let spans = format!("{},{:03}", spans / 1000, spans % 1000);
    assert_eq!(seen["note"], format!("{spans} spans on 4 devices"));
    assert_eq!((&seen["curves"], &seen["budgets"], &seen["wide"]), (&4.into(), &4.into(), &false.into()));
}

#[test]
fn spans_smaller_than_a_pixel_are_drawn_together() {
    let report = example::report(220);
    let seen = probed("many", &report);
    assert_eq!(seen["error"], "");
    let spans: usize = report.timelines.iter().flat_map(|t| &t.lanes).map(|lane| lane.spans.len()).sum();
    assert!(spans > 50_000, "{spans}");
    // Sixteen rows of at most 1156 pixels.
    let drawn = seen["drawn"].as_u64().unwrap();
    assert!((1000..16 * 1156).contains(&drawn), "{drawn}");
}

#[test]
fn pointer_wheel_and_keys_do_what_they_say() {
    let (_, seen) = &*EXAMPLE;
    let number = |key: &str| seen[key].as_u64().unwrap();
    assert!(number("drawnOfOne") < number("drawn") && number("drawnZoomed") < number("drawn") / 4, "{seen}");
    assert!(number("drawnZoomed") > 0);
    assert!((1..number("drawn") / 4).contains(&number("drawnRange")), "{seen}");
    assert_ne!(number("drawnDragged"), number("drawnRange"));
    assert_eq!(number("drawnFitted"), number("drawn"));
    assert_eq!((&seen["scrollsPage"], &seen["zooms"]), (&true.into(), &true.into()));
    assert!(seen["chosen"].as_str().unwrap().starts_with("layer_norm h.0 · compute on dev0"), "{seen}");
    assert!(seen["below"].as_str().unwrap().starts_with("all-gather h.1 · send on dev0"), "{seen}");
    assert_eq!(seen["pinnedRow"], Value::from(vec!["1"]));
    assert!(seen["tip"].as_str().unwrap().contains("limit: "), "{seen}");
    assert_eq!((&seen["tipGone"], &seen["nothingPinned"]), (&true.into(), &true.into()));
}

#[test]
fn the_table_sorts_and_points_at_spans() {
    let (_, seen) = &*EXAMPLE;
    let words = |key: &str| -> Vec<String> { serde_json::from_value(seen[key].clone()).unwrap() };
    assert_eq!(seen["rows"], 24);
    assert_eq!(seen["sortedAtFirst"][0][0], "Exposed");
    let mut numbers: Vec<String> = (0..24).map(|movement| movement.to_string()).collect();
    assert_eq!(words("rising"), numbers);
    numbers.reverse();
    assert_eq!(words("falling"), numbers);
    assert!(words("limits").is_sorted());
    assert_eq!(seen["sorted"], serde_json::json!([["Limit", "ascending"]]));
    assert_eq!(words("chosenRow"), ["bandwidth"]);
    // Six of thirteen at first.
    assert_eq!((&seen["alive"], &seen["allAlive"]), (&6.into(), &13.into()));
}

#[test]
fn reports_without_anything_in_them_are_pages_too() {
    let still = MemoryCurve { device: 0, ..MemoryCurve::default() };
    for (name, memory) in [("empty", vec![]), ("still", vec![still])] {
        let dom = dom(name, &page(&TimelineReport { memory, ..TimelineReport::default() }), "");
        assert!(dom.contains(r#"data-ready="yes""#), "{dom}");
        assert!(dom.contains("Nothing changes devices in this step."));
    }
}
