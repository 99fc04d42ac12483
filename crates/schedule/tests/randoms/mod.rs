//! Random lists: groups, blocking collectives, renames, fake dependencies, costs of zero.

use phalanx_schedule::model::{Graph, InputSpec, Kind, NodeSpec, OutputSpec, Spec};

/// Numbers that look random, the same for the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// A list of up to 40 nodes.
pub fn graph(seed: u64) -> Graph {
    let mut lists =
        Lists { numbers: Numbers(seed * 2 + 1), names: Vec::new(), collectives: Vec::new(), leaves: 0 };
    (0..8).for_each(|_| _ = lists.numbers.below(2));
    let input = |at: usize, lists: &mut Lists| {
        lists.names.push(format!("in{at}"));
        InputSpec {
            name: format!("in{at}"),
            size: lists.numbers.below(50),
            freeable: lists.numbers.one_in(2),
        }
    };
    let inputs = (0..3).map(|at| input(at, &mut lists)).collect();
    let count = 1 + lists.numbers.below(40);
    let nodes = (0..count).map(|_| lists.node()).collect();
    let outputs = lists.names.iter().skip(3).step_by(5).cloned().collect();
    Graph::build(&Spec { inputs, outputs, nodes, global_ordering: lists.numbers.one_in(3) }).unwrap()
}

struct Lists {
    numbers: Numbers,
    /// Everything that can be read.
    names: Vec<String>,
    /// Outputs of collectives.
    collectives: Vec<String>,
    leaves: usize,
}

impl Lists {
    fn node(&mut self) -> NodeSpec {
        if !self.numbers.one_in(6) {
            return self.leaf();
        }
        let members: Vec<NodeSpec> = (0..=self.numbers.below(3)).map(|_| self.leaf()).collect();
        let cost = members.iter().map(|member| member.cost).sum();
        NodeSpec { name: format!("group{}", self.leaves), cost, members, ..NodeSpec::default() }
    }

    fn leaf(&mut self) -> NodeSpec {
        let (numbers, at) = (&mut self.numbers, self.leaves);
        self.leaves += 1;
        let kind = match numbers.below(8) {
            0 => Kind::SyncCollective,
            1 | 2 => Kind::Collective,
            3 | 4 if !self.collectives.is_empty() => Kind::Wait,
            _ => Kind::Compute,
        };
        let mut pick = |from: &[String]| from[numbers.below(from.len() as u64) as usize].clone();
        let of = (kind == Kind::Wait).then(|| pick(&self.collectives));
        let mut reads = vec![of.clone().unwrap_or_else(|| pick(&self.names))];
        let other = pick(&self.names);
        let fakes = if numbers.one_in(4) { vec![other.clone()] } else { Vec::new() };
        reads.extend(numbers.one_in(3).then_some(other));
        let name = format!("buf{at}");
        let size = if of.is_some() { 0 } else { numbers.below(100) };
        let output = OutputSpec { name: name.clone(), alloc: size, free: size, renames: of };
        let cost = if numbers.one_in(3) { 0.0 } else { numbers.below(1000) as f64 };
        self.names.push(name.clone());
        if kind.is_collective() {
            self.collectives.push(name);
        }
        let (name, outputs, group) = (format!("op{at}"), vec![output], numbers.below(2) as u32);
        NodeSpec { name, kind: Some(kind), cost, group, reads, fakes, outputs, ..NodeSpec::default() }
    }
}
