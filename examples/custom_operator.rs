//! Adds an operator and its kernels: a leaky ReLU with a learned slope for each column, whose gradient sums over rows. It is
//! checked as the built-in ones are, then trained on four devices, with weights stored in halves and features cut in halves.

use phalanx::ir::tasks::{TaskOp, TaskView};
use phalanx::ir::{Cuts, Init, LayerTasks, OpError, Operands, Operator, Shape, Tensor, TensorType};
use phalanx::ir::{attributes, graph::Builder, sharded::Operand, text::Attrs};
use phalanx::kernels::{Call, Kernel, params, signature, table};
use phalanx::{Feed, Goal, Optimizer, Settings, Trainer, ops::Layers, plan, testing};

/// max(x, 0) + slope · min(x, 0).
struct LeakyRelu {}

impl Operator for LeakyRelu {
    attributes!("leaky_relu" (input, slope):);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        operands.inner_weight(1, 1)?;
        Ok(vec![TensorType::f32(operands.float(0)?.clone())])
    }

    /// Every dimension may be cut; the slope is cut like the columns and copied for the rows.
    fn cuts(&self, operands: &[&Shape], results: &[&Shape]) -> Cuts {
        Cuts::stretched(operands, results[0])
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.plain(TaskOp::call("leaky_relu", Attrs::new()));
    }

    /// The gradient of the slope has the shape of x, until it is summed over rows.
    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let Some(dy) = dy[0].clone() else { return };
        let [dx, dslope] = [tasks.grad(0), tasks.stretched_grad(1, &dy)];
        let reads = vec![tasks.read_again(0), tasks.read_again(1), dy];
        tasks.emit(TaskOp::call("leaky_relu_grad", Attrs::new()), reads, vec![dx.clone(), dslope.clone()]);
        tasks.give(0, dx.buffer);
        tasks.unstretch(1, dslope);
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        vec![Tensor::from_fn(&results[0], |index| {
            let (x, slope) = (operands[0].at(index), operands[1].at_stretched(index));
            x.max(0.0) + slope * x.min(0.0)
        })]
    }
}

params! { struct Forward {} }
params! { struct Gradient { pub accumulate: bool, } }

impl Kernel for Forward {
    signature!("leaky_relu": x, slope => y);

    fn from_task(_: &TaskView<'_>) -> Result<Self, String> {
        Ok(Forward {})
    }

    fn reference(&self, call: &mut Call<'_>) {
        call.each(false, |[x, slope]| [x.max(0.0) + slope * x.min(0.0)]);
    }
}

/// A kernel whose name ends in `_grad` can be asked to add to its first result.
impl Kernel for Gradient {
    signature!("leaky_relu_grad": x, slope, dy => dx, dslope);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        Ok(Gradient { accumulate: task.is("accumulate") })
    }

    fn reference(&self, call: &mut Call<'_>) {
        call.each(self.accumulate, |[x, s, dy]| [if x > 0.0 { dy } else { s * dy }, dy * x.min(0.0)]);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    table::add::<Forward>()?;
    table::add::<Gradient>()?;
    testing::check_operator(LeakyRelu {}, &[TensorType::f32([8, 4, 16]), TensorType::f32([16])])?;
    let mut model = Builder::new("leaky");
    let [x, y] = [("x", 8), ("y", 1)].map(|(name, size)| model.input(name, TensorType::f32([64, size])));
    let widen = model.param("widen", [32, 8], Init::Normal(0.5))?;
    let slope = model.param("slope", [32], Init::Zeros)?;
    let narrow = model.param("narrow", [1, 32], Init::Normal(0.2))?;
    let hidden = model.linear("hidden", x?, widen, None)?;
    let active = model.add_one("active", LeakyRelu {}, &[hidden, slope])?;
    let output = model.linear("output", active, narrow, None)?;
    let loss = model.mse("loss", output, y?)?;
    let model = model.finish([loss]);
    let cuts = [("widen", 0), ("slope", 0), ("narrow", 1)];
    let plan = plan::preset("fsdp2", 2, &model)?.cut_along("tp", 2, &cuts);
    let settings = Settings::new(Goal::Train(Optimizer::adam())).plan(plan);
    let mut trainer = Trainer::with_settings(&model, &settings)?;
    let x: Vec<f32> = (0..64 * 8).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let y: Vec<f32> = x.chunks(8).map(|row| row.iter().map(|x| x.abs()).sum::<f32>() / 4.0).collect();
    let mut step = || trainer.step(&[("x", Feed::F32(&x)), ("y", Feed::F32(&y))], 0.01);
    let losses = (0..200).map(|_| Ok(step()?.loss)).collect::<Result<Vec<_>, phalanx::Error>>()?;
    println!("loss {:.5} at first, {:.5} after 200 steps", losses[0], losses[199]);
    Ok(())
}
