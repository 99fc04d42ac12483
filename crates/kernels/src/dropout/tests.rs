use super::*;
use crate::isa::Isa;
use crate::{Team, Words};

const HYPER: [f32; 8] = [0.1, 0.2, 0.3, 17.0, 0.0, 0.0, 0.0, 0.0];

fn params(n: usize, start: u64, accumulate: bool) -> DropoutParams {
    tile([1, 1, 1, n], [0, 0, 0, 1], start, accumulate)
}

/// A tile of a larger tensor.
fn tile(extents: [usize; 4], strides: [u64; 4], start: u64, accumulate: bool) -> DropoutParams {
    let mask = Mask { rate: 0.3, seed: 11, salt: 5, extents, strides, start };
    DropoutParams { n: extents.iter().product(), accumulate, mask }
}

fn run(params: DropoutParams, cores: usize) -> Vec<f32> {
    let x: Vec<f32> = (0..params.n).map(|i| i as f32 * 0.25 + 1.0).collect();
    let mut y = vec![3.0; params.n];
    dropout(&mut y, &x, &HYPER, params, &mut Launch::plain(&Team::new(cores)));
    y
}

#[test]
fn fast_equals_reference_in_every_bit() {
    for n in [0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 200] {
        for (start, accumulate) in [(0, false), (1, true), (64, false), (1000, true)] {
            let params = params(n, start, accumulate);
            let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.25 + 1.0).collect();
            let mut want = vec![3.0; n];
            dropout_reference(&mut want, &x, &HYPER, params);
            assert_eq!(run(params, 1), want, "{n} elements from {start}");
        }
    }
}

#[test]
fn bits_are_the_same_for_every_team_tile_and_instruction_set() {
    let n = crate::spmd::ALONE + 77;
    let want = run(params(n, 0, false), 1);
    for cores in 2..5 {
        assert_eq!(run(params(n, 0, false), cores), want, "{cores} cores");
    }
    let tail: Vec<f32> = run(params(n - 100, 100, false), 2).iter().map(|y| f32::from(*y != 0.0)).collect();
    assert_eq!(tail, want[100..].iter().map(|y| f32::from(*y != 0.0)).collect::<Vec<_>>());
    for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
        Isa::select(isa);
        assert_eq!(run(params(n, 0, false), 1), want, "{isa:?}");
    }
    Isa::select(Isa::best());
}

#[test]
fn the_rate_is_met_and_steps_differ() {
    let n = 1 << 16;
    // Five standard deviations of a binomial: 5 sqrt(0.3 · 0.7 / n).
    const DEVIATION: f64 = 0.009;
    let y = run(params(n, 0, false), 1);
    let dropped = y.iter().filter(|&&y| y == 0.0).count() as f64 / n as f64;
    assert!((dropped - 0.3).abs() < DEVIATION, "dropped {dropped}");
    let (mut other, mut hyper) = (vec![0.0; n], HYPER);
    hyper[STEP] = 18.0;
    let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.25 + 1.0).collect();
    dropout(&mut other, &x, &hyper, params(n, 0, false), &mut Launch::plain(&Team::new(1)));
    assert_ne!(other, y);
    // Steps that a float cannot tell apart draw other masks too.
    let mut late = HYPER;
    late[STEP + 1] = 1.0;
    let mut other = vec![0.0; n];
    dropout(&mut other, &x, &late, params(n, 0, false), &mut Launch::plain(&Team::new(1)));
    assert_ne!(other, y);
}

/// The factors that `params` gives a tile.
fn mask(params: DropoutParams, cores: usize) -> Vec<f32> {
    let mut y = vec![0.0; params.n];
    dropout(&mut y, &vec![1.0; params.n], &HYPER, params, &mut Launch::plain(&Team::new(cores)));
    let mut want = vec![0.0; params.n];
    dropout_reference(&mut want, &vec![1.0; params.n], &HYPER, params);
    assert_eq!(y, want, "{params:?}");
    y
}

#[test]
fn a_tile_has_its_part_of_the_mask_of_the_whole() {
    const DIMS: [usize; 4] = [4, 6, 8, 20];
    const STRIDES: [u64; 4] = [6 * 8 * 20, 8 * 20, 20, 1];
    let whole = mask(params(4 * 6 * 8 * 20, 0, false), 1);
    let cuts = [[1, 1, 1, 1], [2, 1, 1, 1], [1, 3, 1, 1], [1, 1, 4, 1], [1, 1, 1, 2], [1, 1, 1, 20]];
    let cuts =
        cuts.into_iter().chain([[4, 2, 1, 1], [2, 1, 2, 4], [4, 6, 8, 1], [4, 1, 8, 20], [1, 6, 1, 20]]);
    for cut in cuts {
        let extents: [usize; 4] = std::array::from_fn(|i| DIMS[i] / cut[i]);
        let n = extents.iter().product();
        for number in 0..cut.iter().product() {
            let place = |index: usize, dims: [usize; 4]| -> [usize; 4] {
                let below = |i: usize| dims[i + 1..].iter().product::<usize>();
                std::array::from_fn(|i| index / below(i) % dims[i])
            };
            let index = |place: [usize; 4]| -> usize { (0..4).map(|i| place[i] * STRIDES[i] as usize).sum() };
            let corner = place(number, cut);
            let start = index(std::array::from_fn(|i| corner[i] * extents[i]));
            let got = mask(tile(extents, STRIDES, start as u64, false), 2);
            let want: Vec<f32> = (0..n).map(|i| whole[start + index(place(i, extents))]).collect();
            assert_eq!(got, want, "tile {number} of {cut:?}");
        }
    }
}

#[test]
fn large_tiles_have_the_same_bits_for_every_team() {
    let tile = tile([1, 3, 70, 400], [0, 90_000, 900, 1], 77, true);
    assert!(tile.n > crate::spmd::ALONE, "large enough to be shared");
    let want = run(tile, 1);
    (2..5).for_each(|cores| assert_eq!(run(tile, cores), want, "{cores} cores"));
}

#[test]
fn words_keep_every_setting() {
    let tile = tile([2, 3, 5, 7], [900, 90, 9, 1], 77, true);
    assert_eq!(DropoutParams::from_words(&tile.to_words()), tile);
}
