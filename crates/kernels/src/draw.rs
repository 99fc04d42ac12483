//! Random numbers as a tensor. Reads `hyper[8]`, whose element 3 is the step number; writes `y[n]`.
//!
//! The elements are a tile of a larger tensor and are numbered as those of a dropout are: number `index` of (seed, salt,
//! step) is uniform in `[0, 1)` or standard normal, or one with probability `p` and else zero.

use phalanx_ir::tasks::{Mask as TaskMask, TaskView};

use crate::dropout::Mask;
use crate::spmd::{Launch, by_work};
use crate::{Kernel, Sizes, Work, params, random, signature};

params! {
    /// The parameters of `draw`.
    pub struct Draw {
        /// Number of elements, which is that of the mask's tile.
        pub n: usize,
        /// Whether numbers are standard normal.
        pub normal: bool,
        /// Whether numbers are ones with the probability `mask.rate` and else zeros; uniform if neither.
        pub bernoulli: bool,
        /// Which numbers.
        pub mask: Mask,
    }
}

/// Element by element.
pub fn draw_reference(y: &mut [f32], hyper: &[f32], params: Draw) {
    let Draw { n, normal, bernoulli, mask } = params;
    let seed = mask.at(hyper).seed();
    for (i, y) in y[..n].iter_mut().enumerate() {
        let index = mask.element(i).start;
        let uniform = random::uniform(seed, 0, index);
        *y = match (normal, bernoulli) {
            (true, _) => random::normal(seed, 0, index),
            (_, true) => f32::from(uniform < mask.rate),
            _ => uniform,
        };
    }
}

/// The fast version of [`draw_reference`].
pub fn draw(y: &mut [f32], hyper: &[f32], params: Draw, launch: &mut Launch<'_>) {
    let Draw { n, normal, bernoulli, mask } = params;
    assert_eq!(n, mask.extents.iter().product(), "the extents of a tile are those of its elements");
    let drawn = mask.at(hyper);
    let seed = drawn.seed();
    let fill = |y: &mut [f32], first: u64| match normal {
        true => random::fill_normal(y, seed, 0, first, 0.0, 1.0),
        false => random::fill_uniform(y, seed, 0, first, 0.0, 1.0),
    };
    launch.for_each_part(&mut y[..n], random::GROUP, |first, y| {
        drawn.for_each_run(first, y.len(), |part, start, stride| match stride {
            1 => fill(&mut y[part], start),
            _ => y[part].chunks_mut(1).zip(0u64..).for_each(|(y, i)| fill(y, start + i * stride)),
        });
        if bernoulli && !normal {
            y.iter_mut().for_each(|y| *y = f32::from(*y < mask.rate));
        }
    });
}

impl Kernel for Draw {
    signature!("draw": hyper => y by draw_reference, draw);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        let mask = TaskMask {
            rate: task.attr("rate")?,
            seed: task.attr("seed")?,
            salt: task.attr("salt")?,
            part: task.attr("part")?,
            parts: task.attr("parts")?,
            blocks: task.attr("blocks")?,
            axis: task.attr_or("batch", 0)?,
        };
        let (normal, bernoulli) = (task.is("normal"), task.is("bernoulli"));
        Ok(Draw { n: task.write(0)?.elements(), normal, bernoulli, mask: Mask::of(task, mask)? })
    }

    /// A few dozen operations a number, of integers; logarithm and sine for normal ones.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(sizes.result(0) * if self.normal { 60.0 } else { 20.0 }, false)
    }

    fn blocks(&self, cores: usize) -> i64 {
        by_work(self.n, cores)
    }

    fn anywhere(self) -> Self {
        Draw { mask: self.mask.anywhere(), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Words;
    use crate::samples::Case;

    fn case(extents: [usize; 4], strides: [u64; 4], kind: usize) -> Case {
        let mask = Mask { rate: 0.3, seed: 5, salt: 9, start: 77, extents, strides };
        let n = extents.iter().product();
        let params = Draw { n, normal: kind == 1, bernoulli: kind == 2, mask };
        let hyper = vec![0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0];
        Case::new("draw", params.to_words()).read(hyper).write(vec![0.5; n])
    }

    #[test]
    fn fast_equals_reference_in_every_bit() {
        for kind in 0..3 {
            for extents in [[1, 1, 1, 1], [1, 1, 3, 5], [2, 3, 5, 67], [1, 1, 1, 40_001]] {
                let [_, b, c, d] = extents.map(|extent| extent as u64);
                case(extents, [b * c * d, c * d, d, 1], kind).check(0.0);
                case(extents, [9 * b * c * d, 7 * c * d, 3 * d, 1], kind).check(0.0);
                case(extents, [9 * b * c * d, 7 * c * d, 3 * d, 3], kind).check(0.0);
            }
            case([1, 1, 5, 9001], [0, 0, 9001, 1], kind).check_bits();
        }
    }
}
