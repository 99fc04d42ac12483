//! A made-up step of a transformer on four devices: weights are gathered a layer ahead, gradients reduced behind.
//!
//! Times are plausible and follow from a fixed sequence of numbers; nothing is simulated.

use phalanx::internals::timeline::{
    Alive, MemoryCurve, SpanKind, Timeline, TimelineLane, TimelineLaneKind, TimelineReport, TimelineSpan,
    Totals, TransferRow,
};

/// How many devices the example has.
pub const DEVICES: u32 = 4;

/// A name that would end the page's script and begin its own if it were not escaped.
pub const HOSTILE: &str =
    "</script><script>document.title='broken'</script><img src=x onerror=alert(1)> {{data}} \u{2028}";

const FORWARD: [(&str, u64); 9] = [
    ("layer_norm", 60),
    ("linear q", 210),
    ("linear k", 210),
    ("linear v", 210),
    ("attention", 340),
    ("linear out", 215),
    ("layer_norm", 60),
    ("linear gelu", 830),
    ("linear", 820),
];

/// Pseudo-random numbers, always the same.
struct Numbers(u64);

impl Numbers {
    /// `value` with up to a fifth more or less.
    fn near(&mut self, value: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        value * (800 + (self.0 >> 33) % 401) / 1000
    }
}

/// One device while its spans are laid out.
struct Device {
    numbers: Numbers,
    /// How far compute and transfers have come.
    now: u64,
    link: u64,
    compute: Vec<TimelineSpan>,
    transfers: Vec<TimelineSpan>,
}

impl Device {
    fn compute(&mut self, kernel: &str, layer: &str, micros: u64) {
        let end = self.now + self.numbers.near(micros * 1000);
        let name = format!("{kernel} {layer}");
        self.compute.push(span(name, layer, SpanKind::Compute, (self.now, end)));
        self.now = end;
    }

    /// One side of a movement, from `start` on.
    fn transfer(&mut self, kind: SpanKind, movement: &Movement, start: u64, share: u64) {
        let end = start + self.numbers.near(movement.micros * share);
        let mut span =
            span(format!("{} {}", movement.kind, movement.layer), movement.layer, kind, (start, end));
        (span.bytes, span.movement) = (movement.micros * 9_000, Some(movement.number));
        self.transfers.push(span);
        self.link = end;
    }

    /// Does nothing until all that was received by now is there.
    fn wait(&mut self, movement: u32, layer: &str) {
        if self.link > self.now {
            let mut span = span(format!("wait {layer}"), layer, SpanKind::Wait, (self.now, self.link));
            span.movement = Some(movement);
            self.compute.push(span);
            self.now = self.link;
        }
    }
}

/// What all devices exchange.
struct Movement<'a> {
    number: u32,
    kind: &'a str,
    layer: &'a str,
    micros: u64,
}

fn span(name: String, layer: &str, kind: SpanKind, (start, end): (u64, u64)) -> TimelineSpan {
    TimelineSpan { name, layer: layer.to_string(), kind, start, end, bytes: 0, movement: None }
}

/// The example with this many layers; a layer is about 31 spans a device and timeline.
pub fn report(layers: u32) -> TimelineReport {
    let predicted = timeline("predicted", layers, 1);
    let measured = timeline("measured", layers, 7);
    let step = predicted.lanes.iter().flat_map(|lane| &lane.spans).map(|span| span.end).max().unwrap_or(0);
    let memory: Vec<MemoryCurve> = (0..DEVICES).map(|device| curve(device, layers, step)).collect();
    let peak = memory.iter().map(|curve| curve.peak).max().unwrap_or(0);
    let compute = step * 93 / 100;
    let after = Totals { step, exposed: step / 25, compute, lower_bound: step * 95 / 100, peak };
    let before = Totals { step: step * 118 / 100, exposed: step * 22 / 100, peak: peak * 97 / 100, ..after };
    TimelineReport {
        title: "GPT-2 small, one training step".to_string(),
        subtitle: "12 layers, width 768, batch 8 × 256 · plan fsdp on 4 devices · link 12 GB/s, 4 µs"
            .to_string(),
        transfers: transfers(layers),
        timelines: vec![predicted, measured],
        memory,
        before,
        after,
        clock_bound: None,
    }
}

fn timeline(name: &str, layers: u32, seed: u64) -> Timeline {
    let device = |number: u64| {
        let (compute, transfers) = (Vec::new(), Vec::new());
        Device { numbers: Numbers(seed * 1000 + number), now: 0, link: 0, compute, transfers }
    };
    let mut devices: Vec<Device> = (0..DEVICES.into()).map(device).collect();
    forward(&mut devices, layers);
    backward(&mut devices, layers);
    let lanes = (0..).zip(devices).flat_map(|(device, Device { compute, transfers, .. })| {
        let lane = |kind, spans| TimelineLane { device, rank: None, kind, spans };
        [lane(TimelineLaneKind::Compute, compute), lane(TimelineLaneKind::Transfers, transfers)]
    });
    Timeline { name: name.to_string(), lanes: lanes.collect() }
}

fn forward(devices: &mut [Device], layers: u32) {
    let gather = |devices: &mut [Device], number: u32| {
        let layer = format!("h.{number}");
        exchange(devices, &Movement { number, kind: "all-gather", layer: &layer, micros: 1900 });
    };
    gather(devices, 0);
    for number in 0..layers {
        let layer = format!("h.{number}");
        devices.iter_mut().for_each(|device| device.wait(number, &layer));
        if number + 1 < layers {
            gather(devices, number + 1);
        }
        for device in &mut *devices {
            FORWARD.iter().for_each(|&(kernel, micros)| device.compute(kernel, &layer, micros));
        }
    }
}

fn backward(devices: &mut [Device], layers: u32) {
    devices.iter_mut().for_each(|device| device.compute("cross_entropy", HOSTILE, 2400));
    for number in (0..layers).rev() {
        let layer = format!("h.{number}");
        for device in &mut *devices {
            for (kernel, micros) in FORWARD.into_iter().rev() {
                device.compute(&format!("{kernel} input grad"), &layer, micros);
                device.compute(&format!("{kernel} weight grad"), &layer, micros);
            }
        }
        let number = layers + number;
        exchange(devices, &Movement { number, kind: "reduce-scatter", layer: &layer, micros: 2600 });
    }
    for device in devices {
        device.wait(layers, "h.0");
        device.compute("adamw", "", 1800);
    }
}

/// Every device sends as soon as it can, and receives when all have sent.
fn exchange(devices: &mut [Device], movement: &Movement) {
    for device in &mut *devices {
        device.transfer(SpanKind::Send, movement, device.link.max(device.now), 100);
    }
    let sent = devices.iter().map(|device| device.link).max().unwrap_or(0);
    for device in devices {
        device.transfer(SpanKind::Receive, movement, sent, 900);
    }
}

fn transfers(layers: u32) -> Vec<TransferRow> {
    let limits = ["nothing left", "data dependency", "memory", "order", "bandwidth"];
    let row = |movement: u32| {
        let (kind, micros) = if movement < layers { ("all-gather", 1900) } else { ("reduce-scatter", 2600) };
        let limit = limits[movement as usize * 7 % limits.len()];
        let time = micros * 1000 + u64::from(movement) * 1733;
        let hidden = if limit == "nothing left" { time } else { time * u64::from(movement % 9) / 9 };
        TransferRow {
            movement,
            kind: kind.to_string(),
            layer: format!("h.{}", movement % layers),
            bytes: micros * 9_000 * 4,
            devices: DEVICES,
            time,
            hidden,
            moves: i64::from(movement % 23) - 6,
            limit: limit.to_string(),
        }
    };
    (0..2 * layers).map(row).collect()
}

fn curve(device: u32, layers: u32, step: u64) -> MemoryCurve {
    let (weights, kept) = (148 << 20, (23 << 20) + u64::from(device) * (1 << 20));
    let moments = u64::from(3 * layers);
    // Activations pile up in the first third and are used up in the rest.
    let level = |moment: u64| match moment {
        moment if moment <= u64::from(layers) => weights + moment * kept,
        moment => weights + (moments - moment) * kept / 2 + (moment % 2) * (9 << 20),
    };
    let points: Vec<(u64, u64)> =
        (0..=moments).map(|moment| (step * moment / moments, level(moment))).collect();
    let (peak_at, peak) = points.iter().copied().max_by_key(|&(_, bytes)| bytes).unwrap_or_default();
    let entry = |name: String, bytes, role: &str| Alive { name, bytes, role: role.to_string() };
    let mut alive = vec![entry("transformer.wte.weight".to_string(), weights, "parameter")];
    alive.extend((0..layers).map(|layer| entry(format!("h.{layer}.mlp.fc"), kept, "activation")));
    MemoryCurve { device, points, peak, peak_at, budget: Some(480 << 20), alive }
}
