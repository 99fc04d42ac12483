use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::LearningRate;

/// A manifest of one matrix in two parts and one vector.
fn manifest() -> Value {
    let rate = LearningRate { peak: 0.003, floor: 0.0, warmup: 2, steps: 9 };
    json!({
        "format": 1,
        "run": {
            "step": 7, "tokens": 70, "loss": 1.5, "seed": u64::MAX, "learning_rate": rate, "model": {}, "config": {},
            "plan": "", "program": "00",
        },
        "tensors": [
            {"name": "w", "kind": "param", "dtype": "f32", "shape": [4, 6], "parts": [
                {"file": 0, "origin": [0, 0], "shape": [4, 2]},
                {"file": 1, "origin": [0, 2], "shape": [4, 4]},
            ]},
            {"name": "w.m", "kind": "state", "dtype": "f32", "shape": [3], "parts": [
                {"file": 0, "origin": [0], "shape": [3]},
            ]},
        ],
        "files": [
            {"name": "rank-0000.safetensors", "bytes": 200, "xxh3": "00"},
            {"name": "rank-0001.safetensors", "bytes": 200, "xxh3": "00"},
        ],
    })
}

fn parse(manifest: &Value) -> Result<Manifest, String> {
    Manifest::parse(manifest.to_string().as_bytes()).map_err(|error| error.to_string())
}

#[test]
fn a_manifest_is_read_back() {
    let read = parse(&manifest()).unwrap();
    assert_eq!((read.run.seed, read.run.loss), (u64::MAX, 1.5));
    assert_eq!(read.tensor("w").unwrap().key(&[0, 2]), "w@0,2");
    assert_eq!(read.tensor("w.m").unwrap().describe(), "state f32[3]");
    assert_eq!(Manifest::parse(&read.to_text().unwrap()).unwrap(), read);
}

#[test]
fn a_manifest_that_is_wrong_is_refused() {
    let big = u64::MAX;
    for (pointer, value, expected) in [
        ("/format", json!(2), "its format is 2, this build reads 1"),
        ("/run/step", json!(-1), "invalid value: integer `-1`, expected u64"),
        ("/files/1/name", json!("../x"), "it names the file `../x`"),
        ("/files/1/name", json!(""), "it names the file ``"),
        ("/files/1/name", json!("rank-0000.safetensors"), "it names the file `rank-0000.safetensors`"),
        ("/files/1/bytes", json!(63), "file `rank-0001.safetensors` has 63 bytes, its parts 64"),
        ("/tensors/1/name", json!("w"), "it names the tensor `w` twice"),
        ("/tensors/1/kind", json!("input"), "unknown variant `input`"),
        ("/tensors/0/dtype", json!("f8"), "tensor `w` is f8[4, 6], which is no tensor"),
        ("/tensors/0/shape", json!([big, big]), "which is no tensor"),
        ("/tensors/0/shape", json!([1, 1, 1, 1, 1, 1, 1]), "which is no tensor"),
        ("/tensors/0/shape", json!([4, 7]), "the parts of tensor `w` hold 24 elements once, it has 28"),
        ("/tensors/0/shape", json!([4, 5]), "tensor `w` of [4, 5] has a part of [4, 4] at [0, 2]"),
        ("/tensors/0/parts/0/file", json!(2), "in file 2 of 2"),
        ("/tensors/0/parts/0/origin", json!([0, 1]), "hold 8 elements once, it has 24"),
        ("/tensors/0/parts/0/origin", json!([0]), "has a part of [4, 2] at [0]"),
        ("/tensors/0/parts/0/origin", json!([big, 0]), "has a part of [4, 2] at [18446744073709551615, 0]"),
        ("/tensors/0/parts/0/shape", json!([0, 2]), "has a part of [0, 2]"),
        ("/tensors/1/parts", json!([]), "the parts of tensor `w.m` hold 0 elements once, it has 3"),
        ("/run", Value::Null, "invalid type: null"),
    ] {
        let mut wrong = manifest();
        *wrong.pointer_mut(pointer).unwrap() = value;
        let error = parse(&wrong).unwrap_err();
        assert!(error.contains(expected), "{pointer}: {error}");
    }
    for text in ["", "{", "[]", "{\"format\": 1}", "\u{0}"] {
        assert!(Manifest::parse(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn names_tell_steps() {
    assert_eq!(name_of(20), "step-00000020");
    let steps =
        ["step-00000020", "step-123456789", "step-20", "step-000000020", "step-", ".step-00000020.partial"];
    assert_eq!(steps.map(step_of), [Some(20), Some(123_456_789), None, None, None, None]);
}

#[test]
fn a_fault_strikes_once_where_it_can() {
    let dir = std::env::temp_dir().join(format!("phalanx-faulty-{}", std::process::id()));
    let faulty = Faulty::new(Some(Fault { kind: FaultKind::Sync, call: 2 }));
    faulty.create_dir(&dir).unwrap();
    faulty.create_dir(&dir).unwrap();
    assert_eq!(faulty.sync_dir(&dir).unwrap_err().raw_os_error(), Some(5));
    faulty.sync_dir(&dir).unwrap();
    assert_eq!(faulty.calls(), 4);
    let writer = Writer::new(Arc::new(Faulty::new(Some(Fault { kind: FaultKind::Short, call: 1 }))), &dir, 1);
    writer.prepare().unwrap();
    assert_eq!(Disk.list(&dir).unwrap(), Vec::<String>::new());
    Disk.remove(&dir).unwrap();
}
