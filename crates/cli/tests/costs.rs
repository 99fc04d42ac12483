//! `costs`: what is measured, kept, shown and merged. Times are not judged.
#![allow(clippy::unwrap_used)]

use crate::common::{Dir, SMALL, error, json_lines, phalanx, stdout};

/// Measures the small model into `file` and tells how many times were taken.
fn measure(file: &str, plan: &[&str]) -> u64 {
    let args =
        [&["costs", "measure", "--json", "--cores-per-device", "1", "--out", file], SMALL, plan].concat();
    let report = &json_lines(&args)[0];
    assert_eq!(report["file"], file);
    assert_eq!(report["fallbacks"].as_array().unwrap().len(), 0, "{report}");
    assert_eq!(report["estimated_tasks"], 0, "{report}");
    assert!(report["device_ns"].as_array().unwrap().iter().all(|ns| ns.as_u64().unwrap() > 0), "{report}");
    report["measured"].as_u64().unwrap()
}

#[test]
fn measured_once_shown_by_time_and_changed_by_hand() {
    let dir = Dir::new("costs");
    let file = dir.path("a.json");
    let first = measure(&file, &[]);
    assert!(first > 10);
    assert_eq!(measure(&file, &[]), 0, "the file knows everything");
    let more = measure(&file, &["--plan", "dp2"]);
    let shown = &json_lines(&["costs", "show", &file, "--json"])[0];
    let entries = shown["entries"].as_array().unwrap();
    assert_eq!(entries.len() as u64, first + more);
    let ns: Vec<_> = entries.iter().map(|entry| entry["ns"].as_u64().unwrap()).collect();
    assert!(ns.is_sorted_by(|a, b| a >= b), "{ns:?}");
    for entry in entries {
        let is_product =
            ["matmul", "attention", "attention_grad"].contains(&entry["kernel"].as_str().unwrap());
        assert_eq!(entry["gflops"].is_number(), is_product, "{entry}");
        assert_eq!(entry["gb_per_s"].is_null(), is_product, "{entry}");
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let line = text.lines().find(|line| line.contains("\"link\"") && line.contains("[64]")).unwrap();
    let ns = line.rsplit(' ').next().unwrap().trim_end_matches(['}', ',']);
    std::fs::write(&file, text.replace(line, &line.replace(&format!("\"ns\": {ns}"), "\"ns\": 987654321")))
        .unwrap();
    assert_eq!(measure(&file, &["--plan", "dp2"]), 0);
    let table = stdout(&["costs", "show", &file]);
    let row: Vec<_> = table.lines().nth(2).unwrap().split_whitespace().collect();
    assert_eq!(row[..9], ["link", "64", "B", "->", "64", "B", "1", "987", "654"], "{table}");
    assert!(table.contains(" GFLOP/s") && table.contains(" GB/s"), "{table}");
}

#[test]
fn files_of_machines_are_merged_by_the_median() {
    let dir = Dir::new("costs-merge");
    let entry = |kernel: &str, ns: u64| {
        format!(
            "{{\"kernel\":\"{kernel}\",\"words\":[],\"reads\":[8],\"writes\":[8],\"cores\":1,\"ns\":{ns}}}"
        )
    };
    let book = |name: &str, entries: &[String]| {
        let head = format!("\"format\":1,\"cpu\":\"{name}\",\"isa\":\"avx2\",\"version\":\"1\"");
        dir.write(name, format!("{{{head},\"entries\":[{}]}}", entries.join(",")))
    };
    let files = [
        book("a", &[entry("copy", 50), entry("fill", 1)]),
        book("b", &[entry("copy", 20)]),
        book("c", &[entry("copy", 30), entry("fill", 3)]),
    ];
    let out = dir.path("out.json");
    let text = stdout(&["costs", "merge", &files[0], &files[1], &files[2], "--out", &out]);
    assert!(text.starts_with("2 times of 3 files in "), "{text}");
    let shown = &json_lines(&["costs", "show", &out, "--json"])[0];
    assert_eq!(shown["cpu"], "a + b + c");
    let times: Vec<_> = shown["entries"].as_array().unwrap().iter().map(|entry| &entry["ns"]).collect();
    assert_eq!(times, [30, 1]);
    let merged = std::fs::read(&out).unwrap();
    stdout(&["costs", "merge", &files[2], &files[0], &files[1], "--out", &out]);
    assert_eq!(std::fs::read(&out).unwrap(), merged, "the order of files plays no part");
}

#[test]
fn this_machines_times_are_kept_in_the_cache() {
    let dir = Dir::new("costs-cache");
    let run = |args: &[&str]| {
        let output = phalanx().args(args).env("XDG_CACHE_HOME", dir.path("cache")).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, text) = run(&["costs", "show"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("phalanx costs measure"), "{text}");
    let (code, text) = run(&[&["costs", "measure", "--cores", "1"], SMALL].concat());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("measured in") && text.contains("cache/phalanx/costs-"), "{text}");
    assert!(run(&[&["costs", "measure", "--cores", "1"], SMALL].concat()).1.contains("measured before"));
    assert!(run(&["costs", "show"]).1.contains("adamw"));
}

#[test]
fn wrong_files_are_named() {
    let dir = Dir::new("costs-wrong");
    let junk = dir.write("junk.json", "{\n  \"format\": \"new\"\n}\n");
    for (args, parts) in [
        (&["costs", "show", &junk][..], &["junk.json", "line 2", "correct"][..]),
        (&["costs", "show", "/nonexistent.json"], &["/nonexistent.json"]),
        (&["costs", "merge", &junk, "--out", "/tmp/never"], &["junk.json", "line 2"]),
        (&["costs", "merge", "--out", "x"], &["FILE"]),
        (&["costs", "measure", "--out", &junk], &["junk.json", "line 2"]),
        (&["costs", "measure", "--plan", "magic"], &["magic"]),
    ] {
        let message = error(args, 2);
        assert!(parts.iter().all(|part| message.contains(part)), "{args:?}: {message}");
    }
}

#[test]
fn a_home_that_cannot_be_written_is_a_note() {
    let run = [&["train", "--steps", "2", "--plan", "dp2", "--link", "1ms,1Gbit", "--json"], SMALL].concat();
    let text = "the quick brown fox jumps over the lazy dog. ".repeat(20);
    let dir = Dir::new("no_home");
    let data = dir.write("data.txt", text);
    for home in ["/proc", "/dev/null"] {
        let output = phalanx()
            .args(&run)
            .args(["--data", &data])
            .env("HOME", home)
            .env_remove("XDG_CACHE_HOME")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert!(text.contains(&format!("note: cannot write beside {home}/.cache/phalanx/costs-")), "{text}");
        assert_eq!(text.matches("nothing is cached").count(), 1, "{text}");
    }
}
