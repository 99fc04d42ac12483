//! When bytes are there: devices hand out their bytes in the order of the units.
//!
//! A unit that adds bytes starts when enough of those that units before it hold are released, and not before a unit in
//! front of it got its own. So a device never holds more than its limit at any time, if the order keeps the limit.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use phalanx_ir::Id;

use super::instance::{Instance, UnitId};
use super::time::Time;

/// The bytes of one device.
#[derive(Clone, Default)]
struct Device {
    /// Bytes handed out, less those taken back.
    held: i64,
    /// Bytes that are released, by when.
    released: BinaryHeap<Reverse<(Time, i64)>>,
    /// When the unit asked for last gets its bytes.
    granted: f64,
    /// The unit that asked last.
    asked_by: Option<UnitId>,
    /// When the unit that ran last was done on this device.
    ended: f64,
}

/// The bytes of all devices.
pub(super) struct Grants<'a> {
    instance: &'a Instance<'a>,
    devices: Vec<Device>,
    /// By buffer: how many units that touch it are left, and when the others are done.
    left: Vec<(usize, f64)>,
}

impl<'a> Grants<'a> {
    /// None if nothing ever waits for bytes: nothing is limited, or units are issued in order by one lane, which frees
    /// bytes as it goes.
    pub fn new(instance: &'a Instance<'a>) -> Option<Self> {
        let waits = instance.is_limited() && !instance.problem.issued_in_order;
        waits.then(|| Grants { instance, devices: Vec::new(), left: Vec::new() })
    }

    /// Nothing has run.
    pub fn reset(&mut self) {
        let device = |&start| Device { held: start, ..Device::default() };
        self.devices.clear();
        self.devices.extend(self.instance.start.iter().map(device));
        self.left.clear();
        self.left.extend(self.instance.touched_by.iter().map(|units| (units.len(), 0.0)));
    }

    /// Asks for the bytes that the unit adds.
    pub fn ask(&mut self, unit: UnitId) {
        let instance = self.instance;
        for &id in instance.touches.row(unit.index()) {
            let buffer = &instance.problem.buffers[id];
            if self.left[id.index()].0 < instance.touched_by.row(id.index()).len() || buffer.from_start {
                continue;
            }
            let device = &mut self.devices[buffer.device];
            device.held += buffer.alloc;
            device.asked_by = Some(unit);
            while device.held > instance.limits[buffer.device]
                && let Some(Reverse((Time(when), bytes))) = device.released.pop()
            {
                device.held -= bytes;
                device.granted = device.granted.max(when);
            }
        }
    }

    /// When the unit, having asked, has its bytes of a device.
    pub fn granted(&self, unit: UnitId, device: usize) -> f64 {
        let device = &self.devices[device];
        if device.asked_by == Some(unit) { device.granted } else { 0.0 }
    }

    /// Gives back what no unit behind this one touches; its jobs ran at `times`.
    pub fn give_back(&mut self, unit: UnitId, times: &[(f64, f64)]) {
        let problem = self.instance.problem;
        let jobs = self.instance.jobs.row(unit.index());
        let device_of = |job: super::JobId| problem.lanes[problem.jobs[job].lane].device;
        jobs.iter().for_each(|&job| self.devices[device_of(job)].ended = 0.0);
        for &job in jobs {
            let device = &mut self.devices[device_of(job)];
            device.ended = device.ended.max(times[job.index()].1);
        }
        for &id in self.instance.touches.row(unit.index()) {
            let buffer = &problem.buffers[id];
            let device = &mut self.devices[buffer.device];
            let (left, done) = &mut self.left[id.index()];
            *left -= 1;
            *done = done.max(device.ended);
            if *left == 0 && !buffer.to_end {
                device.released.push(Reverse((Time(*done), buffer.free)));
            }
        }
    }
}
