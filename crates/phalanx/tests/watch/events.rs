//! Event files are read back by a decoder that shares nothing with the writer.

use std::collections::BTreeMap;
use std::path::PathBuf;

use phalanx::internals::watch::{Board, EventFile};
use phalanx::train::Run;

use super::{on, small};

/// A directory that is removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(test: &str) -> Dir {
        Dir(std::env::temp_dir().join(format!("phalanx-events-{test}-{}", std::process::id())))
    }

    /// The events of the only file.
    fn events(&self) -> Vec<Event> {
        let files: Vec<_> = std::fs::read_dir(&self.0).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        decode(&std::fs::read(&files[0]).unwrap())
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(Debug, Default, PartialEq)]
struct Event {
    time: f64,
    step: u64,
    version: String,
    numbers: BTreeMap<String, f32>,
}

/// CRC-32C bit by bit, as its definition has it, masked.
fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
        }
    }
    (!crc).rotate_right(15).wrapping_add(0xA282_EAD8)
}

/// All records of a file, which must be whole.
fn decode(mut file: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while !file.is_empty() {
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let crc = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        assert_eq!(crc(8), checksum(&file[..8]), "of a length");
        assert_eq!(crc(12 + length), checksum(&file[12..12 + length]), "of an event");
        events.push(event(&file[12..12 + length]));
        file = &file[16 + length..];
    }
    events
}

/// A field of a message.
enum Field<'a> {
    Number(u64),
    Double(f64),
    Bytes(&'a [u8]),
    Float(f32),
}

fn fields(mut message: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut message)),
            1 => Field::Double(f64::from_le_bytes(take(&mut message, 8).try_into().unwrap())),
            2 => {
                let length = varint(&mut message) as usize;
                Field::Bytes(take(&mut message, length))
            }
            5 => Field::Float(f32::from_le_bytes(take(&mut message, 4).try_into().unwrap())),
            form => panic!("form {form}"),
        };
        fields.push((key >> 3, field));
    }
    fields
}

fn take<'a>(message: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (taken, rest) = message.split_at(length);
    *message = rest;
    taken
}

fn varint(message: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let byte = take(message, 1)[0];
        number |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            break;
        }
    }
    number
}

fn event(message: &[u8]) -> Event {
    let mut event = Event::default();
    for field in fields(message) {
        match field {
            (1, Field::Double(time)) => event.time = time,
            (2, Field::Number(step)) => event.step = step,
            (3, Field::Bytes(version)) => event.version = String::from_utf8(version.into()).unwrap(),
            (5, Field::Bytes(summary)) => event.numbers = summary_of(summary),
            (number, _) => panic!("field {number} of an event"),
        }
    }
    event
}

fn summary_of(message: &[u8]) -> BTreeMap<String, f32> {
    let number = |(field, value): (u64, Field<'_>)| {
        let (1, Field::Bytes(value)) = (field, value) else { panic!("field {field} of a summary") };
        match fields(value)[..] {
            [(1, Field::Bytes(name)), (2, Field::Float(number))] => {
                (String::from_utf8(name.into()).unwrap(), number)
            }
            _ => panic!("a value is a name and a number"),
        }
    };
    fields(message).into_iter().map(number).collect()
}

#[test]
fn checksums_are_those_of_the_standard() {
    // The check value of CRC-32C is 0xE3069283 for these digits.
    let masked = 0xE306_9283_u32.rotate_right(15).wrapping_add(0xA282_EAD8);
    assert_eq!(checksum(b"123456789"), masked);
}

#[test]
fn numbers_come_back_with_names_and_steps() {
    let dir = Dir::new("numbers");
    let mut file = EventFile::create(&dir.0).unwrap();
    let name = file.path().file_name().unwrap().to_str().unwrap().to_string();
    assert!(name.starts_with("events.out.tfevents."), "{name}");
    assert!(name.ends_with(&format!(".{}", std::process::id())), "{name}");
    let long = "x".repeat(200);
    file.scalars(1, [("loss", 2.5), (long.as_str(), f32::MAX)]).unwrap();
    file.scalars(1 << 40, [("loss", f32::NEG_INFINITY)]).unwrap();
    let events = dir.events();
    assert_eq!(events.len(), 3);
    assert_eq!((events[0].version.as_str(), events[0].numbers.len()), ("brain.Event:2", 0));
    assert!(events[0].time > 1.6e9 && events[2].time >= events[1].time);
    let numbers = |list: &[(&str, f32)]| list.iter().map(|&(name, it)| (name.into(), it)).collect();
    assert_eq!((events[1].step, &events[1].numbers), (1, &numbers(&[("loss", 2.5), (&long, f32::MAX)])));
    assert_eq!((events[2].step, &events[2].numbers), (1 << 40, &numbers(&[("loss", f32::NEG_INFINITY)])));
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let error = EventFile::create("/proc/none".as_ref()).unwrap_err().to_string();
    assert!(error.contains("/proc/none/events.out.tfevents.") && error.contains("--log-dir"), "{error}");
}

#[test]
fn every_step_of_a_run_is_on_the_board() {
    for (plan, devices) in [("dp", 1), ("dp", 2), ("fsdp", 2)] {
        let dir = Dir::new(&format!("{plan}{devices}"));
        let mut config = on(plan, devices, small());
        (config.eval_every, config.eval_batches) = (Some(2), 1);
        (config.steps, config.link) = (4, (devices > 1).then(|| "20ms,1Gbit".into()));
        let mut run = Run::new(config).unwrap();
        let mut board = Board::open(&dir.0).unwrap();
        let mut reports = Vec::new();
        while !run.is_done() {
            reports.push(run.step().unwrap());
            board.step(&run, reports.last().unwrap()).unwrap();
        }
        let events = dir.events();
        assert_eq!(events.len(), 5, "a head and four steps");
        for (event, report) in events[1..].iter().zip(&reports) {
            let number = |name: &str| event.numbers.get(name).copied();
            assert_eq!(event.step, report.step);
            assert_eq!([number("loss"), number("lr")], [Some(report.loss), Some(report.lr)]);
            assert_eq!(
                [number("gradient_norm"), number("eval_loss")],
                [report.gradient_norm, report.eval_loss]
            );
            assert_eq!(number("eval_loss").is_some(), report.step % 2 == 0);
            assert_eq!(number("tokens_per_s"), Some(report.tokens_per_s as f32));
            let arena = run.trainer().session().arena_bytes() as f32;
            assert_eq!(number("memory/arena_bytes"), Some(arena));
            assert!(number("memory/eval_arena_bytes").unwrap() < arena, "no gradients, no optimizer");
            assert!(number("memory/resident_bytes").unwrap() > arena);
            let exposed = number("exposed_communication_s");
            assert_eq!(exposed.is_some(), devices > 1, "{plan}");
            // A step computes for less than a link takes, so at least one transfer cannot be hidden.
            assert!(exposed.is_none_or(|seconds| seconds > 4e-3), "{plan}: {exposed:?}");
        }
    }
}
