//! Random flows: the compiled one orders what was declared, no more and no less.

use phalanx_testkit::{Rng, cases};

use crate::checker::check;
use crate::declared::{Recipe, random};
use crate::machine::execute;

#[test]
fn compiled_order_is_declared_order() {
    for seed in 0..cases(6000) {
        let mut rng = Rng::new(seed);
        let recipe = Recipe {
            n: 1 + rng.below(60),
            processors: 1 + rng.below(4) as u32,
            density: rng.below(30),
            pipelined: rng.chance(50),
        };
        let declared = random(&mut rng, recipe);
        check(&declared, &declared.flow());
    }
}

#[test]
fn every_schedule_keeps_every_declared_order() {
    for seed in 0..cases(1000) {
        let mut rng = Rng::new(1_000_000 + seed);
        let recipe = Recipe {
            n: 1 + rng.below(60),
            processors: 1 + rng.below(8) as u32,
            density: rng.below(20),
            pipelined: rng.chance(60),
        };
        let declared = random(&mut rng, recipe);
        execute(&declared, &declared.flow(), &mut rng, 4);
    }
}

#[test]
fn large_dense_flows_keep_every_declared_order() {
    for (seed, n) in [16, 100, 400, 1000, 2000].into_iter().enumerate() {
        for density in [5, 30] {
            let mut rng = Rng::new(2_000_000 + seed as u64 * 100 + density as u64);
            let recipe = Recipe { n, processors: 1 + rng.below(8) as u32, density, pipelined: true };
            let declared = random(&mut rng, recipe);
            execute(&declared, &declared.flow(), &mut rng, 2);
        }
    }
}

#[test]
fn the_same_declaration_gives_the_same_flow() {
    let recipe = Recipe { n: 50, processors: 3, density: 10, pipelined: true };
    let declared = random(&mut Rng::new(7), recipe);
    assert_eq!(declared.flow(), declared.flow());
}
