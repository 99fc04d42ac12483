//! Storage that fails on purpose: one call of it, once, in a chosen way.

use std::fs::File;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};

use super::{Disk, Storage};

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The process is killed, as by `kill -9`; a write has written half of its bytes.
    Kill,
    /// The process is stopped, as by `kill -STOP`; the call is made when it is continued.
    Stop,
    /// No space is left.
    NoSpace,
    /// The device fails.
    Device,
    /// A write takes only half of the bytes. It is no error: the rest can be written after it.
    Short,
    /// A file or directory cannot be synced.
    Sync,
    /// A rename fails.
    Rename,
}

impl FaultKind {
    /// Every kind and what users call it.
    pub const ALL: [(&'static str, FaultKind); 7] = [
        ("kill", FaultKind::Kill),
        ("stop", FaultKind::Stop),
        ("enospc", FaultKind::NoSpace),
        ("eio", FaultKind::Device),
        ("short", FaultKind::Short),
        ("sync", FaultKind::Sync),
        ("rename", FaultKind::Rename),
    ];

    /// Whether a call can fail like this.
    fn suits(self, call: Call) -> bool {
        match self {
            FaultKind::Kill | FaultKind::Stop | FaultKind::NoSpace | FaultKind::Device => true,
            FaultKind::Short => call == Call::Write,
            FaultKind::Sync => call == Call::Sync,
            FaultKind::Rename => call == Call::Rename,
        }
    }
}

impl FromStr for FaultKind {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        FaultKind::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, kind)| kind).ok_or(())
    }
}

/// Which call fails, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// How.
    pub kind: FaultKind,
    /// Which call, from 1; if it cannot fail like this, the first one after it that can.
    pub call: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Write,
    Sync,
    Rename,
    Other,
}

/// The file system with at most one fault.
#[derive(Debug)]
pub struct Faulty {
    fault: Option<Fault>,
    calls: AtomicU64,
    struck: AtomicBool,
}

impl Faulty {
    /// Nothing fails without a fault: calls are only counted.
    pub fn new(fault: Option<Fault>) -> Faulty {
        Faulty { fault, calls: AtomicU64::new(0), struck: AtomicBool::new(false) }
    }

    /// Calls made so far.
    pub fn calls(&self) -> u64 {
        // Relaxed, here and below: the numbers stand alone.
        self.calls.load(Relaxed)
    }

    /// Counts a call; how it is to fail.
    fn strike(&self, call: Call) -> Option<FaultKind> {
        let number = self.calls.fetch_add(1, Relaxed) + 1;
        let fault = self.fault.filter(|fault| number >= fault.call && fault.kind.suits(call))?;
        let strikes = !self.struck.swap(true, Relaxed);
        if strikes && fault.kind == FaultKind::Stop {
            // The process stands still in this call; if there is no such signal, nothing happens.
            _ = kill_process(getpid(), Signal::STOP);
            return None;
        }
        strikes.then_some(fault.kind)
    }

    /// Counts a call that is not a write, and makes it unless it is to fail.
    fn pass<T>(&self, call: Call, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self.strike(call) {
            None => make(),
            Some(kind) => Err(fail(kind)),
        }
    }
}

/// The error of a fault, if the process survives it.
fn fail(kind: FaultKind) -> io::Error {
    match kind {
        FaultKind::NoSpace => Errno::NOSPC.into(),
        FaultKind::Kill => match kill_process(getpid(), Signal::KILL) {
            // The signal is on its way.
            Ok(()) => loop {
                std::thread::park();
            },
            Err(error) => error.into(),
        },
        FaultKind::Device | FaultKind::Short | FaultKind::Sync | FaultKind::Rename | FaultKind::Stop => {
            Errno::IO.into()
        }
    }
}

impl Storage for Faulty {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.pass(Call::Other, || Disk.create_dir(dir))
    }

    fn create_file(&self, path: &Path) -> io::Result<File> {
        self.pass(Call::Other, || Disk.create_file(path))
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize> {
        let half = &bytes[..bytes.len().div_ceil(2)];
        match self.strike(Call::Write) {
            None => Disk.write(file, bytes),
            Some(FaultKind::Short) => Disk.write(file, half),
            Some(kind) => {
                Disk.write(file, half)?;
                Err(fail(kind))
            }
        }
    }

    fn sync_file(&self, file: &File) -> io::Result<()> {
        self.pass(Call::Sync, || Disk.sync_file(file))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.pass(Call::Sync, || Disk.sync_dir(dir))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.pass(Call::Rename, || Disk.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.pass(Call::Other, || Disk.remove(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.pass(Call::Other, || Disk.list(dir))
    }
}
