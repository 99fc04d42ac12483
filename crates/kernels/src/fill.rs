//! Fill: writes one value everywhere. Reads nothing, writes `y[n]`.

use phalanx_ir::tasks::TaskView;

use crate::spmd::{Launch, by_work};
use crate::{Call, Kernel, params, signature};

params! {
    /// The parameters of `fill`.
    pub struct FillParams {
        /// Number of elements.
        pub n: usize,
        /// What every element becomes.
        pub value: f32,
    }
}

/// `y[i] = value`.
pub fn fill_reference(y: &mut [f32], params: FillParams) {
    for y in &mut y[..params.n] {
        *y = params.value;
    }
}

/// The fast version of [`fill_reference`].
pub fn fill(y: &mut [f32], params: FillParams, launch: &mut Launch<'_>) {
    launch.for_each_part(&mut y[..params.n], 16, |_, y| y.fill(params.value));
}

impl Kernel for FillParams {
    signature!("fill": => y);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        Ok(FillParams { n: task.write(0)?.elements(), value: task.attr("value")? })
    }

    fn reference(&self, call: &mut Call<'_>) {
        fill_reference(call.write(0), *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        fill(call.write(0), *self, &mut call.launch);
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.n, cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Team;

    #[test]
    fn fast_equals_reference_and_writes_n_elements_only() {
        for n in [0, 1, 17, 100, crate::spmd::ALONE + 3] {
            for cores in 1..5 {
                let params = FillParams { n, value: 2.5 };
                let (mut got, mut want) = (vec![0.0; n + 1], vec![0.0; n + 1]);
                fill(&mut got, params, &mut Launch::plain(&Team::new(cores)));
                fill_reference(&mut want, params);
                assert_eq!(got, want);
            }
        }
    }
}
