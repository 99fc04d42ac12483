//! Programs cut into parts for several ranks, and certificates that the parts fit together.

#[path = "slices/certificates.rs"]
mod certificates;
#[path = "slices/cuts.rs"]
mod cuts;
#[path = "slices/machine.rs"]
mod machine;
#[path = "slices/mutants.rs"]
mod mutants;
#[path = "slices/whole.rs"]
mod whole;

use phalanx_program::{Certificate, Placement, Program};
use phalanx_testkit::cases;

use machine::execute;
use whole::{kept, random_whole};

/// Numbers below a bound, always the same ones.
pub struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

/// Two devices, each on a rank of its own.
fn two_ranks() -> Placement {
    Placement { ranks: 2, of_device: vec![0, 1] }
}

fn random_placement(random: &mut Random, devices: u32) -> Placement {
    let ranks = 1 + random.below(devices.into()) as u32;
    Placement { ranks, of_device: (0..devices).map(|_| random.below(ranks.into()) as u32).collect() }
}

fn certified(parts: &[Program]) -> Certificate {
    Certificate::new(parts).unwrap_or_else(|errors| panic!("{errors:?}"))
}

/// Compares what the parts did, in any order, with what the whole program did alone.
fn check_meaning(whole: &Program, placement: &Placement, parts: &[Program], random: &mut Random) -> usize {
    let runs = 3;
    let alone = execute(std::slice::from_ref(whole), runs, random);
    let together = execute(parts, runs, random);
    for (rank, part) in parts.iter().enumerate() {
        let devices =
            (0..placement.of_device.len()).filter(|&device| placement.of_device[device] == rank as u32);
        for (lane, device) in devices.enumerate() {
            assert_eq!(part.lanes()[lane].device, device as u32);
            for ((_, start, end), (device, ..)) in kept(lane).into_iter().zip(kept(device)) {
                let (expected, found) = (&alone.arenas[0][device], &together.arenas[rank][lane]);
                assert_eq!(expected[start..end], found[start..end], "dev{device} {start} of {whole}\n{part}");
            }
        }
    }
    for ((run, rank, name, at), found) in &together.results {
        // The tiles of `y` are not copies of each other: the whole fetches its first one, a rank the first one it has.
        let port = whole.ports().iter().find(|port| port.name == *name).expect("a port of the whole");
        let ranks = port.tiles.iter().map(|tile| placement.of_device[tile.slice.lane as usize] as usize);
        let first = ranks.into_iter().position(|of_tile| of_tile == *rank).expect("a tile of the rank");
        let slice = port.tiles[first].slice;
        let expected = match (name.as_str(), first) {
            ("y", 1..) if *run + 1 < runs => continue,
            ("y", 1..) => alone.arenas[0][slice.lane as usize][slice.offset as usize + at],
            _ => alone.results[&(*run, 0, name.clone(), *at)],
        };
        assert_eq!(expected, *found, "{name} on rank {rank}");
    }
    together.results.len()
}

#[test]
fn parts_in_any_order_mean_what_the_whole_means() {
    let mut random = Random(1);
    let (mut messages, mut results) = (0, 0);
    for _ in 0..cases(400) {
        let devices = 2 + random.below(4) as u32;
        let count = 4 + random.below(40);
        let whole = random_whole(&mut random, devices, count);
        let placement = random_placement(&mut random, devices);
        let parts = whole.parts(&placement).unwrap_or_else(|errors| panic!("{errors:?} of {whole}"));
        for (rank, part) in (0..).zip(&parts) {
            assert_eq!(part.part(), Some((rank, placement.ranks)));
            assert_eq!(part.whole(), Some(whole.hash()));
            assert_eq!(part.to_string().parse().as_ref(), Ok(part));
            assert_eq!(whole.slice(&placement, rank).as_ref(), Ok(part));
            messages +=
                part.operations().iter().map(|operation| part.messages(operation).len()).sum::<usize>();
        }
        let certificate = certified(&parts);
        assert_eq!(certificate.to_string().parse().as_ref(), Ok(&certificate));
        results += check_meaning(&whole, &placement, &parts, &mut random);
    }
    assert!(
        messages > cases(5000) as usize && results > cases(100_000) as usize,
        "{messages} messages, {results} bytes of results"
    );
}
