//! `profile`: the table, the JSON and what is refused. Times are not judged.
#![allow(clippy::unwrap_used)]

use crate::common::{SMALL, error, json_lines, phalanx, stdout};

const QUICK: &[&str] = &["profile", "--steps", "2", "--warmup", "1", "--cores-per-device", "1"];

#[test]
fn the_json_has_its_keys_and_shares_add_up() {
    for by in ["kernel", "layer", "operation"] {
        let found = &json_lines(&[QUICK, SMALL, &["--plan", "dp2", "--by", by, "--json"]].concat())[0];
        for key in ["steps", "devices", "fma_peak_gflops", "ms_per_step", "gflops", "peak_share", "idle_ms"] {
            assert!(found[key].as_f64().unwrap() > 0.0, "{key} in {found}");
        }
        assert_eq!(
            (&found["by"], found["devices"].as_u64(), found["steps"].as_u64()),
            (&by.into(), Some(2), Some(2))
        );
        for key in ["cores", "gflops", "gb_per_s"] {
            assert!(found["device_peaks"][key].as_f64().unwrap() > 0.0, "{key} in {found}");
        }
        let mut shares = found["idle_share"].as_f64().unwrap();
        for row in found["rows"].as_array().unwrap() {
            shares += row["share"].as_f64().unwrap();
            let limits = ["compute", "memory", "overhead"];
            assert!(limits.contains(&row["bound_by"].as_str().unwrap()), "{row}");
            for key in ["ms", "launches", "gflops", "gb_per_s", "roofline_share", "lost_ms"] {
                assert!(row[key].as_f64().unwrap() >= 0.0, "{key} in {row}");
            }
        }
        assert!((shares - 1.0).abs() < 1e-6, "{by}: {shares}");
        let lanes = found["lanes"].as_array().unwrap();
        assert_eq!(lanes.len(), 2, "{found}");
        for key in ["device", "computing_ms", "moving_ms", "idle_ms"] {
            assert!(lanes.iter().all(|lane| lane[key].is_number()), "{key} in {found}");
        }
    }
}

#[test]
fn the_table_tells_kernels_and_where_the_rest_goes() {
    let table = stdout(&[QUICK, SMALL].concat());
    for part in
        ["1 device of 1 core: FMA peak", "bound by", "\nmatmul ", "\nidle ", "\nstep ", "where the rest goes"]
    {
        assert!(table.contains(part), "{part} in {table}");
    }
    let layers = stdout(&[QUICK, SMALL, &["--by", "layer", "--plan", "dp2"]].concat());
    for part in ["2 devices of 1 core", "\nlayer ", "\nlane ", "\ndev1 "] {
        assert!(layers.contains(part), "{part} in {layers}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (flags, part) in [(["--by", "color"], "kernel, layer, operation"), (["--steps", "0"], "at least 1")] {
        let message = error(&[&["profile"], SMALL, &flags[..]].concat(), 2);
        assert!(message.contains(part), "{message}");
    }
    // Every rank would measure all devices.
    let rank = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
    let output = phalanx().arg("profile").args(SMALL).envs(rank).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(
        message.contains("this is one of 2 ranks") && message.contains("leave the launcher out"),
        "{message}"
    );
}
