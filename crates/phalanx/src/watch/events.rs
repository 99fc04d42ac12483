//! TensorBoard's event files, of scalars only.
//!
//! A file is a row of records: the length of an event, a checksum of the length, the event, a checksum of the event. An
//! event is a message in protocol buffers, of which no more than five fields are needed, so they are written by hand.
//! Each record is handed to the system at once and in one piece: a process that is killed loses none that it has written.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Why there is no event file.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}; choose another directory with --log-dir", path.display())]
pub struct EventError {
    /// The file.
    pub path: PathBuf,
    /// What the system says.
    pub source: io::Error,
}

/// A file of numbers by name and step.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// A file in `dir` whose name tells when, where and by which process it was made. It is continued if it is there.
    pub fn create(dir: &Path) -> Result<EventFile, EventError> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = format!("events.out.tfevents.{:010}.{host}.{}", unix_time() as u64, std::process::id());
        let path = dir.join(name);
        let opened =
            std::fs::create_dir_all(dir).and_then(|()| File::options().create(true).append(true).open(&path));
        let file = opened.map_err(|source| EventError { path: path.clone(), source })?;
        let mut events = EventFile { path, file };
        let mut head = Message::default();
        head.double(1, unix_time());
        head.bytes(3, b"brain.Event:2");
        events.write(&head)?;
        Ok(events)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds the numbers of a step.
    pub fn scalars<'a>(
        &mut self,
        step: u64,
        numbers: impl IntoIterator<Item = (&'a str, f32)>,
    ) -> Result<(), EventError> {
        let mut summary = Message::default();
        for (name, number) in numbers {
            let mut value = Message::default();
            value.bytes(1, name.as_bytes());
            value.float(2, number);
            summary.bytes(1, &value.0);
        }
        let mut event = Message::default();
        event.double(1, unix_time());
        event.number(2, step);
        event.bytes(5, &summary.0);
        self.write(&event)
    }

    fn write(&mut self, event: &Message) -> Result<(), EventError> {
        let length = (event.0.len() as u64).to_le_bytes();
        let mut record = Vec::with_capacity(event.0.len() + 16);
        record.extend(length);
        record.extend(checksum(&length).to_le_bytes());
        record.extend(&event.0);
        record.extend(checksum(&event.0).to_le_bytes());
        self.file.write_all(&record).map_err(|source| EventError { path: self.path.clone(), source })
    }
}

/// CRC-32C, turned and shifted so that a checksum of bytes that hold a checksum is nothing special.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// A message in protocol buffers: each field is a key, which holds the field's number and form, and its value.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn number(&mut self, field: u8, number: u64) {
        self.0.push(field << 3);
        self.varint(number);
    }

    fn double(&mut self, field: u8, number: f64) {
        self.0.push(field << 3 | 1);
        self.0.extend(number.to_le_bytes());
    }

    fn bytes(&mut self, field: u8, bytes: &[u8]) {
        self.0.push(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn float(&mut self, field: u8, number: f32) {
        self.0.push(field << 3 | 5);
        self.0.extend(number.to_le_bytes());
    }

    /// Seven bits a byte, lowest first; all bytes but the last have the highest bit set.
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}
