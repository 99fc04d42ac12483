use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::train::TrainConfig;

/// A checksum.
const SUM: &str = "0123456789abcdef0123456789abcdef";

/// A manifest of one matrix in two parts and one vector.
fn manifest() -> Value {
    let rate = TrainConfig::default().lr(0.003).lr_floor(0.0).warmup(2).steps(9).learning_rate();
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
            {"name": "rank-0000.safetensors", "bytes": 200, "xxh3": SUM},
            {"name": "rank-0001.safetensors", "bytes": 200, "xxh3": SUM},
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
        ("/format", json!(3), "`format` is 3, this build reads 1 and 2: take the version that wrote it"),
        ("/run/step", json!(-1), "`run.step`: invalid value: integer `-1`, expected u64"),
        ("/run/loss", json!(1e39), "`run.loss` is inf: it must be a finite number"),
        ("/files/1/name", json!("../x"), "`files[1].name` is \"../x\": it must be the plain name of a file"),
        ("/files/1/name", json!(""), "`files[1].name` is \"\""),
        (
            "/files/1/name",
            json!("rank-0000.safetensors"),
            "`files[1].name` is `rank-0000.safetensors`, and so is",
        ),
        (
            "/files/1/bytes",
            json!(63),
            "`files[1].bytes` is 63: it must be at least the 64 bytes of the parts in it",
        ),
        ("/files/1/xxh3", json!("0F"), "`files[1].xxh3` is \"0F\": it must be 32 hexadecimal digits"),
        ("/tensors/1/name", json!("w"), "`tensors[1].name` is `w`, and so is `tensors[0].name`"),
        ("/tensors/1/kind", json!("input"), "`tensors[1].kind`: unknown variant `input`"),
        (
            "/tensors/0/dtype",
            json!("f8"),
            "`tensors[0]`, `w`, is f8[4, 6]: it must have a known element type",
        ),
        ("/tensors/0/shape", json!([big, big]), "less than 2^63 bytes"),
        ("/tensors/0/shape", json!([1, 1, 1, 1, 1, 1, 1]), "at most 6 extents"),
        ("/tensors/0/shape", json!([4, 7]), "`tensors[0].parts` hold 24 elements, the tensor has 28"),
        (
            "/tensors/0/shape",
            json!([4, 5]),
            "`tensors[0].parts[1]` is [4, 4] at [0, 2]: it must lie in the tensor, which is [4, 5]",
        ),
        ("/tensors/0/parts/0/file", json!(2), "`tensors[0].parts[0].file` is 2: it must be below 2"),
        (
            "/tensors/0/parts/0/origin",
            json!([0, 1]),
            "is [4, 4] at [0, 2] and overlaps `parts[0]`, [4, 2] at [0, 1]",
        ),
        ("/tensors/0/parts/0/origin", json!([0]), "is [4, 2] at [0]: it must lie"),
        ("/tensors/0/parts/0/origin", json!([big, 0]), "is [4, 2] at [18446744073709551615, 0]: it must lie"),
        ("/tensors/0/parts/0/shape", json!([0, 2]), "is [0, 2] at [0, 0]: it must lie"),
        ("/tensors/1/parts", json!([]), "`tensors[1].parts` hold 0 elements, the tensor has 3"),
        ("/run", Value::Null, "`run`: invalid type: null"),
    ] {
        let mut wrong = manifest();
        *wrong.pointer_mut(pointer).unwrap() = value;
        let error = parse(&wrong).unwrap_err();
        assert!(error.contains(expected), "{pointer}: {error}");
    }
    let part = json!({"file": 0, "origin": [0], "shape": [3]});
    let mut doubled = manifest();
    *doubled.pointer_mut("/tensors/1/parts").unwrap() = json!([part, part]);
    assert!(
        parse(&doubled).unwrap_err().contains("`tensors[1].parts[1]` is [3] at [0] and overlaps `parts[0]`")
    );
    *doubled.pointer_mut("/tensors/1/parts").unwrap() = Value::Array(vec![part; 4097]);
    let expected = "`tensors[1].parts` has 4097 parts: it must have at most 4096, one for each device";
    assert_eq!(parse(&doubled).unwrap_err(), expected);
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
fn a_directory_belongs_to_one_run_at_a_time() {
    let dir = std::env::temp_dir().join(format!("phalanx-claimed-{}", std::process::id()));
    let [first, second] = [(); 2].map(|()| Writer::new(Arc::new(Disk), &dir, 1));
    first.prepare().unwrap();
    first.clone().prepare().unwrap();
    let refused = second.prepare().unwrap_err().to_string();
    assert!(refused.starts_with("another run writes its checkpoints below "), "{refused}");
    drop(first);
    second.prepare().unwrap();
    Disk.remove(&dir).unwrap();
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
