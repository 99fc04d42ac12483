//! Movements against a naive reference: element by element, tree by recursion.

use phalanx_program::rect::Tile;

use super::*;

/// A small generator, so that the cases are the same every time.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    /// Values of very different size, so that another order of a sum gives other bits.
    fn float(&mut self) -> f32 {
        let scale = [1e-3, 1.0, 1e4, 3e7][self.below(4)];
        (self.below(20_001) as f32 - 10_000.0) * scale
    }
}

/// A tile with its own vectors.
#[derive(Clone, Debug)]
struct Owned {
    origin: Vec<usize>,
    extents: Vec<usize>,
}

impl Owned {
    fn tile(&self) -> Tile<'_> {
        Tile { origin: &self.origin, extents: &self.extents }
    }

    fn elements(&self) -> usize {
        self.extents.iter().product()
    }

    /// The position of the element at global coordinates `at`.
    fn position(&self, at: &[usize]) -> usize {
        let dims = self.extents.iter().zip(&self.origin).zip(at);
        dims.fold(0, |sum, ((extent, origin), at)| sum * extent + at - origin)
    }

    /// A random tile around this one, inside a tensor that reaches `room` further on both sides.
    fn around(&self, rng: &mut Rng, room: usize) -> Owned {
        let before: Vec<_> = self.origin.iter().map(|&origin| rng.below(origin.min(room) + 1)).collect();
        let origin = self.origin.iter().zip(&before).map(|(origin, before)| origin - before).collect();
        let extents = self
            .extents
            .iter()
            .zip(&before)
            .map(|(extent, before)| extent + before + rng.below(room + 1))
            .collect();
        Owned { origin, extents }
    }
}

fn tree_sum(values: &[f32]) -> f32 {
    match values {
        [only] => *only,
        _ => {
            let (left, right) = values.split_at(values.len().next_power_of_two() / 2);
            tree_sum(left) + tree_sum(right)
        }
    }
}

/// Arenas with one tile each at offset 64, and the slices of these tiles.
fn arenas(
    tiles: &[Owned],
    element: usize,
    mut value: impl FnMut(usize) -> Vec<u8>,
) -> (Vec<Arena>, Vec<Slice>) {
    let place = |(lane, tile): (usize, &Owned)| {
        let bytes = (tile.elements() * element) as u64;
        let slice = Slice { lane: lane as u32, offset: 64, bytes };
        let mut arena = Arena::new(64 + bytes);
        arena.get_mut(slice).copy_from_slice(&value(bytes as usize));
        (arena, slice)
    };
    tiles.iter().enumerate().map(place).unzip()
}

/// A piece with `parts` parts in a random rectangle of rank `rank`; element by element against the definition.
fn check(rng: &mut Rng, rank: usize, parts: usize, element: usize) {
    let numbers = |rng: &mut Rng, n| (0..rank).map(|_| rng.below(n)).collect::<Vec<_>>();
    let rect =
        Owned { origin: numbers(rng, 4), extents: numbers(rng, 5).iter().map(|extent| extent + 1).collect() };
    // The first tile is the target.
    let tiles: Vec<_> = (0..=parts)
        .map(|_| {
            let room = rng.below(3);
            rect.around(rng, room)
        })
        .collect();
    let (arenas, slices) = arenas(&tiles, element, |bytes| match element {
        4 => (0..bytes / 4).flat_map(|_| rng.float().to_ne_bytes()).collect(),
        _ => (0..bytes).map(|_| rng.below(256) as u8).collect(),
    });
    let before = arenas[0].get(slices[0]).to_vec();
    let sources: Vec<_> =
        tiles[1..].iter().enumerate().map(|(read, tile)| (read as u32, tile.tile())).collect();
    let piece = Piece::new(element, rect.tile(), (0, tiles[0].tile()), &sources);
    // SAFETY: the arenas are this test's, each tile has its own, and nothing else is borrowed.
    let mut operands = unsafe { Operands::new((&arenas, &slices[1..]), (&arenas, &slices[..1])) };
    // SAFETY: the tiles fill their slices.
    unsafe { execute(&[piece], &mut operands) };

    let mut expected = before;
    walk(&rect.extents, |index| {
        let at: Vec<_> = index.iter().zip(&rect.origin).map(|(i, origin)| i + origin).collect();
        let bytes = |lane: usize| {
            let position = tiles[lane].position(&at) * element;
            &arenas[lane].get(slices[lane])[position..position + element]
        };
        let to = tiles[0].position(&at) * element;
        let value = match parts {
            1 => bytes(1).to_vec(),
            _ => {
                let values: Vec<_> = (1..=parts)
                    .map(|lane| f32::from_ne_bytes(bytes(lane).try_into().expect("four bytes")))
                    .collect();
                tree_sum(&values).to_ne_bytes().to_vec()
            }
        };
        expected[to..to + element].copy_from_slice(&value);
    });
    assert_eq!(arenas[0].get(slices[0]), expected, "{rect:?} from {tiles:?}");
}

#[test]
fn pieces_are_what_they_are_defined_to_be() {
    let mut rng = Rng(7);
    for rank in 0..=4 {
        for parts in 1..=8 {
            (0..25).for_each(|_| check(&mut rng, rank, parts, 4));
        }
        for element in [1, 2, 8] {
            (0..10).for_each(|_| check(&mut rng, rank, 1, element));
        }
    }
}

#[test]
fn long_runs_are_summed_in_chunks() {
    let mut rng = Rng(11);
    for (len, parts) in [(CHUNK, 2), (CHUNK + 1, 3), (3 * CHUNK - 1, 7), (1000, 100)] {
        let rect = Owned { origin: vec![0], extents: vec![len] };
        let tiles = vec![rect.clone(); parts + 1];
        let (arenas, slices) =
            arenas(&tiles, 4, |bytes| (0..bytes / 4).flat_map(|_| rng.float().to_ne_bytes()).collect());
        let sources: Vec<_> = (0..parts).map(|read| (read as u32, rect.tile())).collect();
        let piece = Piece::new(4, rect.tile(), (0, rect.tile()), &sources);
        assert_eq!((piece.nest.run, piece.nest.extents.len()), (4 * len, 0), "one run, no dimensions");
        // SAFETY: as above.
        let mut operands = unsafe { Operands::new((&arenas, &slices[1..]), (&arenas, &slices[..1])) };
        // SAFETY: as above.
        unsafe { execute(&[piece], &mut operands) };
        let float = |lane: usize, i: usize| {
            let bytes = &arenas[lane].get(slices[lane])[4 * i..4 * i + 4];
            f32::from_ne_bytes(bytes.try_into().expect("four bytes"))
        };
        for i in 0..len {
            let values: Vec<_> = (1..=parts).map(|lane| float(lane, i)).collect();
            assert_eq!(
                float(0, i).to_bits(),
                tree_sum(&values).to_bits(),
                "element {i} of {len}, {parts} parts"
            );
        }
    }
}

#[test]
fn several_pieces_make_several_tiles() {
    // Two tiles, the second one of two halves from different lanes.
    let tiles: Vec<_> = [4, 4, 2, 2].map(|n| Owned { origin: vec![0], extents: vec![n] }).into();
    let mut next = 0u8;
    let (arenas, slices) = arenas(&tiles, 1, |bytes| {
        (0..bytes)
            .map(|_| {
                next += 1;
                next
            })
            .collect()
    });
    let half = |start| Owned { origin: vec![start], extents: vec![2] };
    let (low, high, whole) = (half(0), half(2), &tiles[0]);
    let piece = |write, target: &Owned, rect: &Owned, read, part: &Owned| {
        Piece::new(1, rect.tile(), (write, target.tile()), &[(read, part.tile())])
    };
    let pieces =
        [piece(0, whole, &low, 2, &low), piece(0, whole, &high, 1, &high), piece(1, &low, &low, 0, whole)];
    let target = Slice { lane: 2, ..slices[2] };
    let spare = Arena::new(128);
    let arenas: Vec<Arena> = arenas.into_iter().chain([spare]).collect();
    let reads = [slices[1], slices[3], target];
    let writes = [slices[0], Slice { lane: 4, offset: 64, bytes: 2 }];
    // SAFETY: as above.
    let mut operands = unsafe { Operands::new((&arenas, &reads), (&arenas, &writes)) };
    // SAFETY: as above.
    unsafe { execute(&pieces, &mut operands) };
    assert_eq!(arenas[0].get(writes[0]), [9, 10, 11, 12]);
    assert_eq!(arenas[4].get(writes[1]), [5, 6]);
}
