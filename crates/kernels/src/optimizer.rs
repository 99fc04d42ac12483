//! Parameter updates: AdamW and SGD with momentum, as PyTorch defines them.
//!
//! `adamw` reads grad `[n]`, hyper `[8]` (learning rate, 1 - beta1^t, 1 - beta2^t, ...) and, with `clip`, clip `[2]`
//! (norm, scale); it reads and writes p, m and v. `sgd` reads grad, hyper and clip alike; it reads and writes p and,
//! with momentum, the velocity. `scale_rate` reads hyper and writes it with another learning rate, for parameters whose rate
//! is a multiple of the others'. Every element is updated by itself, so these are their own references up to speed.

use phalanx_ir::tasks::TaskView;
use phalanx_ir::{Names, names};

use crate::spmd::{Launch, by_work};
use crate::{Call, Kernel, Sizes, Work, dispatch, params, signature};

params! {
    /// Settings of `adamw`.
    pub struct AdamW {
        /// How many elements.
        pub n: usize,
        /// Decay of the first moment.
        pub beta1: f32,
        /// Decay of the second moment.
        pub beta2: f32,
        /// Added to the denominator.
        pub eps: f32,
        /// Strength of the decay of parameters.
        pub weight_decay: f32,
        /// Whether the decay acts on the parameters directly (AdamW) or through the gradient (Adam).
        pub decoupled: bool,
        /// Whether the gradient is scaled by the clip input.
        pub clip: bool,
    }
}

params! {
    /// Settings of `sgd`.
    pub struct Sgd {
        /// How many elements.
        pub n: usize,
        /// Decay of the velocity; zero for none.
        pub momentum: f32,
        /// Strength of the decay of parameters, through the gradient.
        pub weight_decay: f32,
        /// Whether the velocity looks one step ahead.
        pub nesterov: bool,
        /// Whether the gradient is scaled by the clip input.
        pub clip: bool,
    }
}

params! {
    /// Settings of `scale_rate`.
    pub struct ScaleRate {
        /// What the learning rate is multiplied by.
        pub factor: f32,
    }
}

/// What an update reads once per step.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Learning rate, 1 - beta1^t, 1 - beta2^t; the rest is not read here.
    pub hyper: &'a [f32],
    /// The factor on every gradient element.
    pub grad_scale: f32,
}

/// One AdamW step: p, m, v are read and written.
pub fn adamw_reference([p, m, v]: [&mut [f32]; 3], grad: &[f32], step: Step<'_>, params: AdamW) {
    let AdamW { n, beta1, beta2, eps, weight_decay, decoupled, .. } = params;
    let [lr, correction1, correction2] = [step.hyper[0], step.hyper[1], step.hyper[2]];
    for i in 0..n {
        let mut g = grad[i] * step.grad_scale;
        if decoupled {
            p[i] *= 1.0 - lr * weight_decay;
        } else {
            g += weight_decay * p[i];
        }
        m[i] = beta1 * m[i] + (1.0 - beta1) * g;
        v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
        p[i] -= lr / correction1 * m[i] / (v[i].sqrt() / correction2.sqrt() + eps);
    }
}

/// One AdamW step, fast; arguments as for [`adamw_reference`].
pub fn adamw(
    [p, m, v]: [&mut [f32]; 3],
    grad: &[f32],
    step: Step<'_>,
    params: AdamW,
    launch: &mut Launch<'_>,
) {
    let outs = [(p, 1), (m, 1), (v, 1)];
    launch.split_rows(params.n, outs, |range, outs, _| {
        adamw_part(outs, &grad[range], step, params);
    });
}

dispatch! {
    fn adamw_part(state: [&mut [f32]; 3], grad: &[f32], step: Step<'_>, params: AdamW) {
        let AdamW { beta1, beta2, eps, weight_decay, decoupled, .. } = params;
        let [lr, correction1, correction2] = [step.hyper[0], step.hyper[1], step.hyper[2]];
        let (rate, root) = (lr / correction1, correction2.sqrt());
        let (keep, pull) = if decoupled { (1.0 - lr * weight_decay, 0.0) } else { (1.0, weight_decay) };
        let [p, m, v] = state;
        for (((p, m), v), grad) in p.iter_mut().zip(m).zip(v).zip(grad) {
            let g = pull.mul_add(*p, grad * step.grad_scale);
            *m = (1.0 - beta1).mul_add(g, beta1 * *m);
            *v = ((1.0 - beta2) * g).mul_add(g, beta2 * *v);
            *p = *p * keep - rate * *m / (v.sqrt() / root + eps);
        }
    }
}

/// One SGD step: p and the velocity (empty without momentum) are read and written.
pub fn sgd_reference([p, velocity]: [&mut [f32]; 2], grad: &[f32], step: Step<'_>, params: Sgd) {
    let Sgd { n, momentum, weight_decay, nesterov, .. } = params;
    for i in 0..n {
        let mut g = grad[i] * step.grad_scale + weight_decay * p[i];
        if momentum > 0.0 {
            velocity[i] = momentum * velocity[i] + g;
            g = if nesterov { g + momentum * velocity[i] } else { velocity[i] };
        }
        p[i] -= step.hyper[0] * g;
    }
}

/// One SGD step, fast; arguments as for [`sgd_reference`].
pub fn sgd(
    [p, velocity]: [&mut [f32]; 2],
    grad: &[f32],
    step: Step<'_>,
    params: Sgd,
    launch: &mut Launch<'_>,
) {
    let width = usize::from(params.momentum > 0.0);
    let outs = [(p, 1), (velocity, width)];
    launch.split_rows(params.n, outs, |range, outs, _| {
        sgd_part(outs, &grad[range], step, params);
    });
}

dispatch! {
    fn sgd_part(state: [&mut [f32]; 2], grad: &[f32], step: Step<'_>, params: Sgd) {
        let Sgd { momentum, weight_decay, nesterov, .. } = params;
        let (lr, [p, velocity]) = (step.hyper[0], state);
        let gradient = |p: f32, grad: f32| weight_decay.mul_add(p, grad * step.grad_scale);
        if momentum <= 0.0 {
            p.iter_mut().zip(grad).for_each(|(p, grad)| *p = (-lr).mul_add(gradient(*p, *grad), *p));
            return;
        }
        for ((p, velocity), grad) in p.iter_mut().zip(velocity).zip(grad) {
            let g = gradient(*p, *grad);
            *velocity = momentum.mul_add(*velocity, g);
            let ahead = if nesterov { momentum.mul_add(*velocity, g) } else { *velocity };
            *p = (-lr).mul_add(ahead, *p);
        }
    }
}

/// The step inputs of a call: hyper, and the clip scale if `clip`.
fn step<'a>(call: &Call<'a>, clip: bool) -> Step<'a> {
    Step { hyper: call.read(1), grad_scale: if clip { call.read::<f32>(2)[1] } else { 1.0 } }
}

fn sgd_state<'a>(call: &mut Call<'a>, params: Sgd) -> [&'a mut [f32]; 2] {
    [call.write(0), if params.momentum > 0.0 { call.write(1) } else { &mut [] }]
}

/// Parameters and moments are read as well as written.
fn work_of(flops: f64, sizes: &Sizes<'_>) -> Work {
    let Work { flops, bytes } = sizes.work(flops * sizes.result(0), false);
    Work { flops, bytes: bytes + sizes.written() }
}

impl Kernel for AdamW {
    const NAME: &'static str = "adamw";

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        Ok(AdamW {
            n: task.write(0)?.elements(),
            beta1: task.attr("beta1")?,
            beta2: task.attr("beta2")?,
            eps: task.attr("eps")?,
            weight_decay: task.attr("decay")?,
            decoupled: task.is("decoupled"),
            clip: task.is("clip"),
        })
    }

    fn arguments(&self) -> Names {
        names!(grad, hyper, clip if self.clip => param, m, v)
    }

    fn reference(&self, call: &mut Call<'_>) {
        let state = [0, 1, 2].map(|index| call.write(index));
        adamw_reference(state, call.read(0), step(call, self.clip), *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        let state = [0, 1, 2].map(|index| call.write(index));
        adamw(state, call.read(0), step(call, self.clip), *self, &mut call.launch);
    }

    /// The gradient's scale if it is clipped, decay, both moments (7), the update (6).
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        work_of(15.0 - f64::from(self.decoupled) + f64::from(self.clip), sizes)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.n, cores)
    }
}

impl Kernel for Sgd {
    const NAME: &'static str = "sgd";

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        Ok(Sgd {
            n: task.write(0)?.elements(),
            momentum: task.attr("momentum")?,
            weight_decay: task.attr("decay")?,
            nesterov: task.is("nesterov"),
            clip: task.is("clip"),
        })
    }

    fn arguments(&self) -> Names {
        names!(grad, hyper, clip if self.clip => param, velocity if self.momentum > 0.0)
    }

    fn reference(&self, call: &mut Call<'_>) {
        sgd_reference(sgd_state(call, *self), call.read(0), step(call, self.clip), *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        sgd(sgd_state(call, *self), call.read(0), step(call, self.clip), *self, &mut call.launch);
    }

    /// Scale, decay (2), momentum (2, looking ahead 2 more), the update (2).
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        let ahead = if self.nesterov { 4.0 } else { 2.0 };
        let momentum = if self.momentum != 0.0 { ahead } else { 0.0 };
        let decay = if self.weight_decay != 0.0 { 2.0 } else { 0.0 };
        work_of(2.0 + decay + momentum + f64::from(self.clip), sizes)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.n, cores)
    }
}

impl Kernel for ScaleRate {
    signature!("scale_rate": hyper => scaled);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        Ok(ScaleRate { factor: task.attr("factor")? })
    }

    fn reference(&self, call: &mut Call<'_>) {
        let scaled: &mut [f32] = call.write(0);
        scaled.copy_from_slice(call.read(0));
        scaled[0] *= self.factor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Case, assert_close, values};
    use crate::{Team, Words};

    /// A dozen roundings to 2^-24 per element.
    const TOLERANCE: f32 = 2e-6;

    fn with_step(case: Case, n: usize, clip: bool) -> Case {
        let case = case.read(values(n, 1)).read(vec![0.01, 0.271, 0.002_997, 3.0, 0.0, 0.0, 0.0, 0.0]);
        if clip { case.read(vec![4.0, 0.25]) } else { case }
    }

    fn adamw_case(n: usize, decoupled: bool, clip: bool) -> Case {
        let params = AdamW { n, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1, decoupled, clip };
        let second = values(n, 4).iter().map(|x| x.abs()).collect();
        with_step(Case::new("adamw", params.to_words()), n, clip)
            .write(values(n, 2))
            .write(values(n, 3))
            .write(second)
    }

    fn sgd_case(n: usize, momentum: f32, nesterov: bool, clip: bool) -> Case {
        let params = Sgd { n, momentum, weight_decay: 0.1, nesterov, clip };
        let case = with_step(Case::new("sgd", params.to_words()), n, clip).write(values(n, 2));
        if momentum > 0.0 { case.write(values(n, 3)) } else { case }
    }

    #[test]
    fn fast_equals_reference() {
        for n in [1, 2, 3, 5, 7, 15, 16, 17, 33, 100, 40_000] {
            for clip in [false, true] {
                adamw_case(n, false, clip).check(TOLERANCE);
                adamw_case(n, true, clip).check(TOLERANCE);
                sgd_case(n, 0.0, false, clip).check(TOLERANCE);
                sgd_case(n, 0.9, false, clip).check(TOLERANCE);
                sgd_case(n, 0.9, true, clip).check(TOLERANCE);
            }
        }
    }

    #[test]
    fn bits_are_the_same_for_every_team_and_instruction_set() {
        adamw_case(40_001, true, true).check_bits();
        adamw_case(40_001, false, false).check_bits();
        sgd_case(40_001, 0.9, true, true).check_bits();
    }

    #[test]
    fn a_rate_is_scaled_and_the_rest_stays() {
        let words = ScaleRate { factor: 0.25 }.to_words();
        let hyper = vec![0.5, 0.1, 0.2, 3.0, 4.0, 0.0, 0.0, 0.0];
        let case = Case::new("scale_rate", words).read(hyper).write(vec![9.0; 8]);
        case.check_bits();
        assert_eq!(case.fast(&Team::new(1))[0], [0.125, 0.1, 0.2, 3.0, 4.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn the_first_adamw_step_moves_by_the_learning_rate() {
        // After one step m / correction1 = g and sqrt(v / correction2) = |g|: the step is lr * sign(g).
        let params = AdamW {
            n: 4,
            beta1: 0.5,
            beta2: 0.75,
            eps: 0.0,
            weight_decay: 0.5,
            decoupled: true,
            clip: false,
        };
        let case = Case::new("adamw", params.to_words())
            .read(vec![3.0, -2.0, 0.5, -0.25])
            .read(vec![0.125, 0.5, 0.25])
            .write(vec![1.0; 4])
            .write(vec![0.0; 4])
            .write(vec![0.0; 4]);
        let decayed = 1.0 - 0.125 * 0.5;
        let want = [-1.0, 1.0, -1.0, 1.0].map(|sign| decayed + sign * 0.125);
        assert_close(&case.fast(&Team::new(1))[0], &want, TOLERANCE, "p");
    }

    /// The parameter after each gradient, from zero state, at this learning rate; worked out by hand.
    fn follow(
        kernel: &'static str,
        words: Vec<u64>,
        start: f32,
        gradients: &[f32],
        rate: f32,
        states: usize,
    ) -> Vec<f32> {
        let mut held: Vec<Vec<f32>> = std::iter::once(vec![start]).chain(vec![vec![0.0]; states]).collect();
        let mut after = Vec::new();
        for (step, &gradient) in gradients.iter().enumerate() {
            let correction = |beta: f32| 1.0 - beta.powi(step as i32 + 1);
            let hyper = vec![rate, correction(0.9), correction(0.999), 0.0, 0.0, 0.0, 0.0, 0.0];
            let case = Case::new(kernel, words.clone()).read(vec![gradient]).read(hyper);
            let case = held.iter().fold(case, |case, values| case.write(values.clone()));
            held = case.fast(&Team::new(1));
            after.push(held[0][0]);
        }
        after
    }

    #[test]
    fn updates_give_the_numbers_worked_out_by_hand() {
        let close = |found: Vec<f32>, want: &[f32]| assert_close(&found, want, TOLERANCE, "updates");
        let sgd = |weight_decay, nesterov| {
            Sgd { n: 1, momentum: 0.9, weight_decay, nesterov, clip: false }.to_words()
        };
        close(follow("sgd", sgd(0.0, false), 1.0, &[0.5, 0.5], 0.1, 1), &[0.95, 0.855]);
        close(follow("sgd", sgd(0.0, true), 1.0, &[0.5, 0.5], 0.1, 1), &[0.905, 0.7695]);
        close(follow("sgd", sgd(0.01, false), 2.0, &[0.5, 0.5], 0.1, 1), &[1.948, 1.849_252]);
        let adam = AdamW {
            n: 1,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            decoupled: false,
            clip: false,
        };
        let want = [0.999_000_000_6, 0.998_733_663_7, 0.998_075_552_3];
        close(
            follow("adamw", adam.to_words(), 1.0, &[0.5, -0.25, 1.0], 0.001, 2),
            &want.map(|x: f64| x as f32),
        );
    }
}
