//! Random sound task graphs with a forward and a backward pass: activations through views, sums in place, movements,
//! weights gathered twice, updates that do not wait for the end.

use phalanx_ir::Unary;
use phalanx_ir::tasks::{BufferId, Role, TaskGraph, TaskOp};
use phalanx_ir::text::Attrs;
use phalanx_testkit::Rng;

use crate::generate::{Maker, plain};

struct Training {
    maker: Maker,
    rng: Rng,
    devices: usize,
    /// Of each device: parameters, activations, gradients.
    params: Vec<Vec<BufferId>>,
    activations: Vec<Vec<BufferId>>,
    gradients: Vec<Vec<BufferId>>,
}

/// A sound graph of some dozens of tasks on `devices` devices.
pub fn random_training(seed: u64, devices: usize) -> TaskGraph {
    let empty = || vec![Vec::new(); devices];
    let (params, activations, gradients) = (empty(), empty(), empty());
    let (maker, rng) = (Maker::new("training"), Rng::new(seed));
    let mut training = Training { maker, rng, devices, params, activations, gradients };
    training.feed();
    let steps = 4 + training.rng.below(12 * devices);
    (0..steps).for_each(|_| training.forward());
    for on in 0..devices {
        let read = vec![training.operand(on)];
        let gradient = training.maker.compute(on, gradient_of(), &read, 10);
        training.gradients[on].push(gradient);
    }
    (0..2 * steps).for_each(|_| training.backward());
    let Training { mut maker, .. } = training;
    maker.graph.buffers.iter_mut().for_each(|(id, buffer)| buffer.name = id.to_string().into());
    maker.graph.verify().unwrap_or_else(|errors| panic!("{errors:?}\n{}", maker.graph));
    maker.graph
}

fn gradient_of() -> TaskOp {
    TaskOp::UnaryGrad { kind: Unary::Exp, accumulate: false, rounded: false }
}

impl Training {
    fn feed(&mut self) {
        for on in 0..self.devices {
            let input = self.maker.buffer(on, Role::Input, 10);
            self.activations[on].push(input);
            for _ in 0..1 + self.rng.below(3) {
                let elements = 1 + self.rng.below(50);
                self.params[on].push(self.maker.buffer(on, Role::Param, elements));
            }
        }
    }

    /// An activation, perhaps through a view.
    fn operand(&mut self, on: usize) -> BufferId {
        let operand = self.rng.choose(&self.activations[on]);
        if self.rng.once_in(4) { self.maker.view(operand) } else { operand }
    }

    fn forward(&mut self) {
        let on = self.rng.below(self.devices);
        self.maker.microbatch = self.rng.below(2) as u32;
        match self.rng.below(6) {
            0 => self.exchange(on, |training| &mut training.activations),
            1 => self.gather(on),
            2 => self.add_in_place(on),
            _ => {
                let reads = vec![self.operand(on), self.operand(on), self.rng.choose(&self.params[on])];
                let count = 1 + self.rng.below(3);
                let sizes: Vec<usize> = (0..count).map(|_| 1 + self.rng.below(300)).collect();
                let role = if self.rng.once_in(8) { Role::Output } else { Role::Temp };
                let results: Vec<_> =
                    sizes.into_iter().map(|size| self.maker.buffer(on, role, size)).collect();
                self.maker.task(on, plain(), reads, results.clone());
                self.activations[on].extend(results);
            }
        }
    }

    fn backward(&mut self) {
        let on = self.rng.below(self.devices);
        self.maker.microbatch = self.rng.below(2) as u32;
        match self.rng.below(8) {
            0 => self.exchange(on, |training| &mut training.gradients),
            1 => self.exchange(on, |training| &mut training.activations),
            2 => self.gather(on),
            3 if self.rng.once_in(3) => self.add_in_place(on),
            4 if self.rng.once_in(3) => {
                let op = TaskOp::call("sgd", Attrs::new().with("momentum", 0).with("decay", 0));
                let (gradient, param) =
                    (self.rng.choose(&self.gradients[on]), self.rng.choose(&self.params[on]));
                // Gathered copies of a parameter are temporaries, which nothing updates.
                if self.maker.graph.buffers[param].role == Role::Param {
                    self.maker.task(on, op, vec![gradient], vec![param]);
                }
            }
            _ => {
                let reads = vec![self.operand(on), self.rng.choose(&self.gradients[on])];
                let role = if self.rng.once_in(5) { Role::Output } else { Role::Temp };
                let gradient = self.maker.buffer(on, role, 20);
                self.maker.task(on, gradient_of(), reads, vec![gradient]);
                self.gradients[on].push(gradient);
            }
        }
    }

    /// Copies something to another device.
    fn exchange(&mut self, on: usize, of: impl Fn(&mut Training) -> &mut Vec<Vec<BufferId>>) {
        let to = self.rng.below(self.devices);
        let from = of(self)[on].clone();
        let from = self.rng.choose(&from);
        if self.devices > 1 && self.maker.graph.buffers[from].view_of.is_none() {
            let received = self.maker.movement(&[from], &[to], Role::Temp);
            of(self)[to].extend(received);
        }
    }

    /// Copies a parameter to all devices; tasks read the copies like parameters.
    fn gather(&mut self, on: usize) {
        let param = self.rng.choose(&self.params[on]);
        let everywhere: Vec<usize> = (0..self.devices).collect();
        let copies = self.maker.movement(&[param], &everywhere, Role::Temp);
        copies.into_iter().enumerate().for_each(|(to, copy)| self.params[to].push(copy));
    }

    /// Adds to an activation.
    fn add_in_place(&mut self, on: usize) {
        let (target, read) = (self.rng.choose(&self.activations[on]), self.rng.choose(&self.activations[on]));
        let is_temporary = self.maker.graph.buffers[target].role == Role::Temp;
        if is_temporary && self.maker.graph.root(target) != self.maker.graph.root(read) {
            let op = TaskOp::call("rotary", Attrs::new().with("inverse", true).with("accumulate", true));
            self.maker.task(on, op, vec![read], vec![target]);
        }
    }
}
