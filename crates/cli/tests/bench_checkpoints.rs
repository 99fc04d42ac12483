//! `bench checkpoints`: what it prints, and that it leaves nothing behind. Times are not judged.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Dir, SMALL, error, json_lines, stdout};

fn args<'a>(dir: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["bench", "checkpoints", "--every", "2", "--rounds", "3", "--cores", "1", "--dir", dir];
    [&fixed[..], SMALL, extra].concat()
}

#[test]
fn both_sides_have_a_rate_a_round() {
    let dir = Dir::new("bench_checkpoints");
    let lines = json_lines(&args(&dir.path(""), &["--json"]));
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(line["every"], 2);
    for part in [&line["training"], &line["writing"]] {
        let rates = |side: &str| -> Vec<f64> {
            part[side].as_array().unwrap().iter().map(|rate| rate.as_f64().unwrap()).collect()
        };
        let (rates, reference) = (rates("rates"), rates("reference"));
        assert!(
            [&rates, &reference].iter().all(|side| side.len() == 3 && side.iter().all(|rate| *rate > 0.0))
        );
        let mut ratios: Vec<f64> =
            rates.iter().zip(&reference).map(|(rate, reference)| rate / reference).collect();
        ratios.sort_by(f64::total_cmp);
        assert!((part["median_ratio"].as_f64().unwrap() - ratios[1]).abs() < 1e-9, "{part}");
    }
    // 7664 weights and two moments of each, in four bytes, and the list of tensors.
    let bytes = line["writing"]["bytes"].as_u64().unwrap();
    assert!((7664 * 12..7664 * 12 + 20_000).contains(&bytes), "{bytes}");
    assert_eq!(std::fs::read_dir(dir.path("")).unwrap().count(), 0);
}

#[test]
fn people_get_both_ratios_and_mistakes_are_named() {
    let dir = Dir::new("bench_checkpoints_text");
    let text = stdout(&args(&dir.path(""), &[]));
    assert_eq!(text.matches("ratio of a round").count(), 2, "{text}");
    assert!(text.contains("a checkpoint every 2 steps") && text.contains("plain file"), "{text}");
    let file = dir.write("file", "");
    let message = error(&args(&file, &[]), 2);
    assert!(message.contains("--dir") && message.contains("file"), "{message}");
}
