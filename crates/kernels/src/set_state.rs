//! Sets a state of the model to its new value: reads `x[n]`, writes `state[n]`.

use phalanx_ir::tasks::TaskView;

use crate::spmd::{Launch, by_work};
use crate::{Kernel, params, signature};

params! {
    /// The parameters of `set_state`.
    pub struct SetState {
        /// Number of elements.
        pub n: usize,
    }
}

/// `state[i] = x[i]`.
pub fn set_state_reference(state: &mut [f32], x: &[f32], params: SetState) {
    for (state, x) in state[..params.n].iter_mut().zip(x) {
        *state = *x;
    }
}

/// The fast version of [`set_state_reference`].
pub fn set_state(state: &mut [f32], x: &[f32], params: SetState, launch: &mut Launch<'_>) {
    let x = &x[..params.n];
    launch.for_each_part(&mut state[..params.n], 16, |first, state| {
        state.copy_from_slice(&x[first..first + state.len()]);
    });
}

impl Kernel for SetState {
    signature!("set_state": x => state by set_state_reference, set_state);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        Ok(SetState { n: task.write(0)?.elements() })
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.n, cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Words;
    use crate::samples::{Case, values};

    #[test]
    fn every_element_is_copied() {
        for n in [1, 15, 17, 100, 40_001] {
            let case = Case::new("set_state", SetState { n }.to_words());
            case.read(values(n, 1)).write(values(n, 2)).check(0.0);
        }
    }
}
