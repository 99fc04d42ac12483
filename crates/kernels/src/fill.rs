//! Fill: writes one value everywhere. Reads nothing, writes `y[n]`.

use phalanx_ir::names;

use crate::call::{Call, Kernel, no_workspace};
use crate::params;
use crate::spmd::{Launch, by_work};

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

fn call_reference(call: &mut Call<'_>) {
    let y = call.write(0);
    fill_reference(y, FillParams::from_words(call.params));
}

fn call_fast(call: &mut Call<'_>) {
    let y = call.write(0);
    fill(y, FillParams::from_words(call.params), &mut call.launch);
}

/// The kernels of this file.
pub const KERNELS: &[Kernel] = &[Kernel {
    task: None,
    work: None,
    name: "fill",
    arguments: |_| names!(=> y),
    fast: call_fast,
    reference: call_reference,
    blocks: |params, cores| by_work(FillParams::from_words(params).n, cores),
    workspace: no_workspace,
}];

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
