use super::*;
use crate::Pin;
use crate::job::RankOptions;

/// A rank on a host of 8 cores that may use some of them.
fn hello(host: &str, cores: impl IntoIterator<Item = usize>) -> Hello {
    Hello {
        version: "1".into(),
        binary: "b".into(),
        isa: "i".into(),
        host: host.into(),
        host_cores: 8,
        process: 1,
        cores: cores.into_iter().collect(),
        options: RankOptions::default(),
    }
}

fn topology(hellos: &[Hello], devices: usize) -> RankLayout {
    RankLayout::new(hellos, 0, devices, None).unwrap()
}

#[test]
fn devices_are_dealt_in_even_blocks() {
    let cases: [(usize, usize, Option<usize>, &[u32]); 6] = [
        (4, 2, None, &[0, 0, 1, 1]),
        (5, 2, None, &[0, 0, 0, 1, 1]),
        (7, 3, None, &[0, 0, 0, 1, 1, 2, 2]),
        (1, 1, None, &[0]),
        (4, 2, Some(2), &[0, 0, 1, 1]),
        (4, 2, Some(3), &[0, 0, 0, 1]),
    ];
    for (devices, ranks, per_rank, expected) in cases {
        assert_eq!(
            deal_devices(devices, ranks, per_rank).unwrap(),
            expected,
            "{devices} {ranks} {per_rank:?}"
        );
    }
}

#[test]
fn devices_that_do_not_fit_are_refused_with_a_way_out() {
    let error = |devices, ranks, per_rank| deal_devices(devices, ranks, per_rank).unwrap_err().to_string();
    assert_eq!(
        error(2, 3, None),
        "the plan has 2 devices for 3 ranks, and rank 2 would have none: start at most 2 ranks, or take a plan of 3 devices"
    );
    assert_eq!(
        error(8, 2, Some(2)),
        "2 ranks with 2 devices each are not 8 devices, and rank 1 would have 6: start 4 ranks, or leave out --devices-per-rank"
    );
    assert_eq!(
        error(4, 3, Some(2)),
        "3 ranks with 2 devices each are not 4 devices, and rank 2 would have 0: start 2 ranks, or leave out --devices-per-rank"
    );
    assert!(error(4, 2, Some(0)).starts_with("2 ranks with 0 devices each are not 4 devices"));
}

#[test]
fn bound_ranks_keep_their_cores() {
    let all = topology(&[hello("a", 4..8), hello("a", 0..4)], 4);
    assert_eq!(all.cores, [[4, 5, 6, 7], [0, 1, 2, 3]]);
    assert_eq!((all.cores_per_device, &all.notes[..]), (2, &[][..]));
    let some = topology(&[hello("a", [0]), hello("a", [1])], 2);
    assert_eq!(some.cores, [[0], [1]]);
    assert_eq!(
        some.notes,
        ["a: the launcher bound ranks to 2 of 8 cores; with `--bind-to none` they share all"]
    );
}

#[test]
fn unbound_ranks_share_the_host_evenly() {
    let even = topology(&[hello("a", 0..8), hello("a", 0..8)], 2);
    assert_eq!(even.cores, [[0, 1, 2, 3], [4, 5, 6, 7]]);
    assert_eq!((even.cores_per_device, &even.notes[..]), (4, &[][..]));
    let uneven = topology(&[hello("a", 0..8), hello("a", 0..8), hello("a", 0..8)], 3);
    assert_eq!(uneven.cores, [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7]]);
    assert_eq!(uneven.cores_per_device, 2);
    assert_eq!(
        uneven.notes,
        ["ranks have 2 to 3 cores for a device; all devices use 2, since they run one program"]
    );
}

#[test]
fn ranks_bound_to_a_socket_share_it() {
    let masks = [0..4, 4..8, 0..4, 4..8].map(|cores| hello("a", cores));
    let topology = topology(&masks, 4);
    assert_eq!(topology.cores, [[0, 1], [4, 5], [2, 3], [6, 7]]);
    assert_eq!((topology.cores_per_device, &topology.notes[..]), (2, &[][..]));
}

#[test]
fn overlapping_bindings_are_dealt_anew() {
    let topology = topology(&[hello("a", 0..4), hello("a", 2..8)], 2);
    assert_eq!(topology.cores, [[0, 1, 2, 3], [4, 5, 6, 7]]);
    assert_eq!(
        topology.notes,
        ["a: the launcher bound ranks to cores that partly overlap; they share all evenly"]
    );
}

#[test]
fn hosts_are_dealt_by_themselves() {
    let hellos = [hello("a", 0..8), hello("b", 0..2), hello("a", 0..8), hello("b", 0..2)];
    let topology = RankLayout::new(&hellos, 2, 4, None).unwrap();
    let host = |name: &str, ranks: [u32; 2]| Host { name: name.into(), ranks: ranks.to_vec() };
    assert_eq!(topology.hosts, [host("a", [0, 2]), host("b", [1, 3])]);
    assert_eq!(topology.cores, [vec![0, 1, 2, 3], vec![0], vec![4, 5, 6, 7], vec![1]]);
    assert_eq!(topology.own_cores(), [4, 5, 6, 7]);
    assert_eq!(topology.cores_per_device, 1);
    assert_eq!(topology.cores_of_device(2), [4]);
}

#[test]
fn more_ranks_than_cores_take_turns() {
    let topology = topology(&[hello("a", 0..2), hello("a", 0..2), hello("a", 0..2)], 3);
    assert_eq!(topology.cores, [[0], [1], [0]]);
    assert_eq!(topology.cores_per_device, 1);
    assert_eq!(topology.notes, ["a has 2 cores for 3 ranks, which take turns: start fewer there"]);
}

#[test]
fn devices_of_a_rank_have_cores_of_their_own_if_there_are_enough() {
    let hellos = [hello("a", 0..4), hello("a", 4..8)];
    let topology = RankLayout::new(&hellos, 1, 4, None).unwrap();
    assert_eq!(topology.devices_of(1).collect::<Vec<_>>(), [2, 3]);
    assert_eq!([2, 3].map(|device| topology.cores_of_device(device).to_vec()), [[4, 5], [6, 7]]);
    let crowded = RankLayout::new(&hellos, 1, 12, None).unwrap();
    assert_eq!(crowded.cores_of_device(6), [4]);
    assert_eq!(crowded.cores_of_device(11), [4, 5, 6, 7]);
    assert_eq!(crowded.notes, ["rank 0 has 6 devices of 1 core on 4 cores: they take turns"]);
}

#[test]
fn what_ranks_are_told_is_kept() {
    let few = Hello { options: RankOptions { cores: 3, ..RankOptions::default() }, ..hello("a", 0..8) };
    let narrow =
        Hello { options: RankOptions { cores_per_device: 2, ..RankOptions::default() }, ..hello("b", 0..8) };
    let topology = topology(&[few, narrow.clone()], 2);
    assert_eq!(topology.cores[0], [0, 1, 2]);
    assert_eq!(topology.cores_per_device, 2);
    let wide =
        Hello { options: RankOptions { cores_per_device: 16, ..RankOptions::default() }, ..hello("a", 0..8) };
    let wide = self::topology(&[wide], 1);
    assert_eq!(wide.cores_per_device, 16);
    assert_eq!(wide.notes, ["rank 0 has 1 device of 16 cores on 8 cores: they take turns"]);
}

#[test]
fn a_topology_is_told_in_a_few_lines() {
    let hellos = [hello("a", [0]), hello("a", [1])].map(|hello| Hello { host_cores: 2, ..hello });
    let two = topology(&hellos, 2);
    assert_eq!(
        two.describe(Pin::Auto, "Open MPI 4.1.4"),
        "2 ranks on 1 host (a): 1 device each, 1 core per device, pinned to cores 0 | 1, Open MPI 4.1.4\n"
    );
    assert_eq!(
        two.describe(Pin::Off, "threads"),
        "2 ranks on 1 host (a): 1 device each, 1 core per device, not pinned, threads\n"
    );
    let hellos = [hello("a", 0..8), hello("a", 0..8), hello("b", [0, 1, 5])];
    assert_eq!(
        topology(&hellos, 4).describe(Pin::Auto, "MPICH 4.0"),
        "3 ranks on 2 hosts: 1 or 2 devices each, 2 cores per device, pinned, MPICH 4.0\n  \
           a: ranks 0-1, cores 0-3 | 4-7\n  \
           b: rank 2, cores 0-1,5\n  \
           ranks have 2 to 4 cores for a device; all devices use 2, since they run one program\n"
    );
}
