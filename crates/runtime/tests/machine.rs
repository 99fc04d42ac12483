//! Machines and queries about them.

use phalanx_runtime::ProcessorId;
use phalanx_runtime::machine::{
    Affinity, Machine, MachineError, Memory, MemoryId, MemoryKind, Place, Processor, ProcessorKind,
};

const HOST: MemoryId = MemoryId(0);
const NEAR: MemoryId = MemoryId(1);
const TWIN: MemoryId = MemoryId(2);

fn affinity(bandwidth: u64, latency: u64) -> Affinity {
    Affinity { bandwidth, latency }
}

/// Four cores and two devices; a memory of the host and one of each device, of which the first device reaches both
/// equally well.
fn machine() -> Machine {
    let mut machine = Machine::default();
    for (kind, cores) in [(ProcessorKind::Cpu, 2), (ProcessorKind::Cpu, 4), (ProcessorKind::Device, 1)] {
        machine.add_processor(Processor { kind, cores });
    }
    for (kind, capacity) in [(MemoryKind::Host, 1000), (MemoryKind::Device, 300), (MemoryKind::Device, 200)] {
        machine.add_memory(Memory { kind, capacity });
    }
    let connections = [
        (Place::from(ProcessorId(0)), HOST, affinity(50, 9)),
        (ProcessorId(1).into(), HOST, affinity(50, 5)),
        (ProcessorId(2).into(), NEAR, affinity(900, 3)),
        (ProcessorId(2).into(), TWIN, affinity(900, 3)),
        (ProcessorId(2).into(), HOST, affinity(20, 30)),
        (HOST.into(), NEAR, affinity(12, 40)),
    ];
    for (place, memory, affinity) in connections {
        machine.connect(place, memory, affinity).expect("both are there");
    }
    machine
}

#[test]
fn kinds_cores_and_capacities_filter() {
    let machine = machine();
    assert_eq!((machine.processors().count(), machine.memories().count()), (3, 3));
    let cpus = machine.processors().of_kind(ProcessorKind::Cpu);
    assert_eq!(cpus.iter().collect::<Vec<_>>(), [ProcessorId(0), ProcessorId(1)]);
    assert_eq!(cpus.with_cores(3).iter().collect::<Vec<_>>(), [ProcessorId(1)]);
    assert_eq!(machine.memories().with_capacity(300).iter().collect::<Vec<_>>(), [HOST, NEAR]);
    assert_eq!(machine.memories().of_kind(MemoryKind::Device).with_capacity(300).first(), Some(NEAR));
    assert_eq!(machine.memories().of_kind(MemoryKind::File).first(), None);
}

#[test]
fn first_and_next_go_the_way_of_iter() {
    let machine = machine();
    let query = machine.memories().with_affinity(ProcessorId(2));
    let stepped: Vec<_> = std::iter::successors(query.first(), |&id| query.next(id)).collect();
    assert_eq!(stepped, query.iter().collect::<Vec<_>>());
    assert_eq!((stepped.len(), query.count()), (3, 3));
    let devices = query.of_kind(MemoryKind::Device);
    assert_eq!(devices.next(HOST), Some(NEAR), "after one that is not left");
    assert_eq!(devices.next(TWIN), None);
}

#[test]
fn the_best_have_the_highest_bandwidth_then_the_lowest_latency_and_ties_keep_their_order() {
    let machine = machine();
    let best = machine.processors().best(HOST);
    assert_eq!(best.iter().collect::<Vec<_>>(), [ProcessorId(1)]);
    let twins = machine.memories().best(ProcessorId(2));
    assert_eq!(twins.iter().collect::<Vec<_>>(), [NEAR, TWIN]);
    let large = machine.memories().with_capacity(1000).best(ProcessorId(2));
    assert_eq!(large.iter().collect::<Vec<_>>(), [HOST], "the best of those that are left");
    let unreachable = machine.processors().of_kind(ProcessorKind::Cpu).best(TWIN);
    assert_eq!(unreachable.count(), 0);
}

#[test]
fn a_copy_of_a_query_goes_its_own_way() {
    let machine = machine();
    let query = machine.memories().with_affinity(ProcessorId(2));
    let narrowed = query.clone().with_capacity(1000);
    assert_eq!((query.count(), narrowed.count()), (3, 1));
}

#[test]
fn affinities_hold_both_ways_and_the_last_word_counts() {
    let mut machine = machine();
    assert_eq!(machine.affinity(NEAR, HOST), machine.affinity(HOST, NEAR));
    assert_eq!(machine.affinity(TWIN, HOST), None);
    machine.connect(NEAR, HOST, affinity(24, 20)).expect("both are there");
    assert_eq!(machine.affinity(HOST, NEAR), Some(affinity(24, 20)));
}

#[test]
fn what_is_not_there_cannot_be_connected() {
    let mut machine = machine();
    let missing =
        machine.connect(ProcessorId(3), HOST, affinity(1, 1)).expect_err("there are three processors");
    let place = Place::Processor(ProcessorId(3));
    assert_eq!(missing, MachineError::NoSuchPlace { place, processors: 3, memories: 3 });
    let (a, b) = (ProcessorId(0), ProcessorId(1));
    let direct = machine.connect(a, b, affinity(1, 1)).expect_err("neither is a memory");
    assert_eq!(direct, MachineError::NoMemory(a.into(), b.into()));
}
