//! Gradients of operators on images `[batch, space…, channels]` that add to several elements of their input: every block takes
//! some channels of one image, adds in memory of its own, and then writes.

use std::ops::Range;

use crate::spmd::{Launch, Parts, Workspace};

/// Channels that are handled together.
pub(crate) const LANES: usize = 16;

/// The input of such an operator.
#[derive(Clone, Copy)]
pub(crate) struct Images {
    /// How many.
    pub batch: usize,
    /// Elements of space.
    pub elements: usize,
    /// Channels of each.
    pub channels: usize,
}

impl Images {
    /// What [`Images::add`] works in.
    pub fn workspace(&self) -> Workspace {
        Workspace::of::<f32>(0, self.elements * LANES)
    }

    /// Calls `body` for every image and run of channels with zeros for each element of space, [`LANES`] apart, which it adds
    /// to; writes them to `dx`, or adds them.
    pub fn add(
        &self,
        dx: &mut [f32],
        accumulate: bool,
        launch: &mut Launch<'_>,
        body: impl Fn(&mut [[f32; LANES]], usize, Range<usize>) + Sync,
    ) {
        let &Images { batch, elements, channels } = self;
        assert_eq!(dx.len(), batch * elements * channels, "the gradient has its shape");
        let runs = channels.div_ceil(LANES);
        let dx = Parts::new(dx);
        launch.run(|mut block| {
            let sums = &mut block.own::<f32>()[..elements * LANES];
            let sums = sums.as_chunks_mut::<LANES>().0;
            for unit in block.share(batch * runs) {
                let (image, first) = (unit / runs, unit % runs * LANES);
                let lanes = first..channels.min(first + LANES);
                sums.fill([0.0; LANES]);
                body(sums, image, lanes.clone());
                for (element, sums) in sums.iter().enumerate() {
                    let at = (image * elements + element) * channels;
                    // SAFETY: these channels of this image belong to one block.
                    let dx = unsafe { dx.part(at + lanes.start..at + lanes.end) };
                    for (dx, sum) in dx.iter_mut().zip(sums) {
                        *dx = if accumulate { *dx + sum } else { *sum };
                    }
                }
            }
        });
    }
}
