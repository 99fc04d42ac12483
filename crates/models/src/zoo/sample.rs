//! Data that is made, not read: numbers that depend on a seed, the step and their place alone.

/// Values for one input.
#[derive(Clone, Debug, PartialEq)]
pub enum SampleData {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 64-bit integers.
    I64(Vec<i64>),
}

/// A source of random numbers for one batch.
#[derive(Debug)]
pub struct Samples {
    /// Samples in the batch.
    pub batch: usize,
    state: u64,
}

impl Samples {
    /// The source of a step.
    pub fn new(seed: u64, step: u64, batch: usize) -> Samples {
        Samples { batch, state: mix(seed ^ mix(step.wrapping_add(0x9e37_79b9_7f4a_7c15))) }
    }

    /// An integer in `0..below`.
    pub fn below(&mut self, below: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.state) % below.max(1) as u64) as usize
    }

    /// Images of stripes, channels innermost: their direction and how far apart they are is the class, where they begin is
    /// not.
    pub(super) fn stripes(&mut self, side: usize, classes: usize) -> Vec<(String, SampleData)> {
        let (mut images, mut labels) = (Vec::new(), Vec::new());
        for _ in 0..self.batch {
            let (label, shift) = (self.below(classes), self.below(side));
            labels.push(label as i64);
            for place in 0..side * side {
                let (row, column) = (place / side + shift, place % side);
                let bright = [row, column, row + column][label % 3] / (1 + label / 3) % 2;
                let noise = 0.1 * self.signed();
                images.extend([bright as f32 - 0.5 + noise, 0.5 - bright as f32, noise]);
            }
        }
        vec![("images".into(), SampleData::F32(images)), ("labels".into(), SampleData::I64(labels))]
    }

    /// A number in -1 to 1.
    pub fn signed(&mut self) -> f32 {
        self.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// A sign for each id of a table, the same in every step: what a model can learn about a category.
pub(super) fn sign(table: usize, id: usize) -> f32 {
    if mix((table as u64) << 32 | id as u64).is_multiple_of(2) { 1.0 } else { -1.0 }
}

/// Spreads the bits of a number (splitmix64).
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
