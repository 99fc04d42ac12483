//! Adds an operator and its kernels from outside: a leaky ReLU whose slope for negative numbers is learned, one for each
//! column. Its gradient sums over rows. It is checked as the built-in ones are, then trained on four devices.

use phalanx::ir::sharded::Operand;
use phalanx::ir::tasks::TaskOp;
use phalanx::ir::text::Attrs;
use phalanx::ir::{
    Cuts, LayerTasks, OpError, Operands, Operator, Shape, Slots, Tensor, TensorType, attributes, names,
};
use phalanx::kernels::{Call, Kernel, call, table};
use phalanx::ops::Layers;
use phalanx::{Feed, Goal, Optimizer, Settings, Trainer, ir, plan, testing};

/// max(x, 0) + slope · min(x, 0).
struct LeakyRelu {}

impl Operator for LeakyRelu {
    attributes!("leaky_relu":);

    fn slots(&self) -> Slots {
        Slots::exactly(&["input", "slope"])
    }

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        operands.inner_weight(1, 1)?;
        Ok(vec![TensorType::f32(operands.float(0)?.clone())])
    }

    /// Every dimension may be cut; the slope is cut like the columns and copied for the rows.
    fn cuts(&self, operands: &[&Shape], results: &[&Shape]) -> Cuts {
        Cuts::stretched(operands, results[0])
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.plain(TaskOp::Call { kernel: "leaky_relu", attrs: Attrs::new() });
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let Some(dy) = dy[0].clone() else { return };
        let reads = vec![tasks.read_again(0), tasks.read_again(1), dy.clone()];
        tasks.single(0, TaskOp::Call { kernel: "leaky_relu_grad", attrs: Attrs::new() }, reads);
        // The gradient of the slope before it is summed over rows: min(x, 0) · dy.
        let name = format!("{}.slope.grad", tasks.layer());
        let full = tasks.temp(&name, &tasks.output(0).1.dual().global(), dy.map.clone());
        let reads = vec![tasks.read_again(0), dy];
        tasks.emit(
            TaskOp::Call { kernel: "leaky_relu_slope", attrs: Attrs::new() },
            reads,
            vec![full.clone()],
        );
        tasks.unstretch(1, full);
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        vec![Tensor::from_fn(&results[0], |index| {
            let (x, slope) = (operands[0].at(index), operands[1].at_stretched(index));
            x.max(0.0) + slope * x.min(0.0)
        })]
    }
}

/// Parameters: how many columns there are, and whether the result is added to.
fn kernel(name: &'static str, arguments: fn(&[u64]) -> ir::Names, run: fn(&mut Call<'_>)) -> Kernel {
    Kernel {
        name,
        arguments,
        task: Some(|task| Ok(vec![task.read(0).last() as u64, u64::from(task.is("accumulate"))])),
        work: Some(|sizes| sizes.work(2.0 * sizes.result(0), sizes.is(1))),
        fast: run,
        reference: run,
        blocks: call::one_block,
        workspace: call::no_workspace,
    }
}

fn forward(call: &mut Call<'_>) {
    let y: &mut [f32] = call.write(0);
    let (x, slope): (&[f32], &[f32]) = (call.read(0), call.read(1));
    for (i, y) in y.iter_mut().enumerate() {
        *y = if x[i] > 0.0 { x[i] } else { x[i] * slope[i % slope.len()] };
    }
}

fn gradient(call: &mut Call<'_>) {
    let (dx, add): (&mut [f32], bool) = (call.write(0), call.params[1] != 0);
    let (x, slope, dy): (&[f32], &[f32], &[f32]) = (call.read(0), call.read(1), call.read(2));
    for (i, dx) in dx.iter_mut().enumerate() {
        let own = if x[i] > 0.0 { dy[i] } else { dy[i] * slope[i % slope.len()] };
        *dx = if add { *dx + own } else { own };
    }
}

fn slope(call: &mut Call<'_>) {
    let d: &mut [f32] = call.write(0);
    let (x, dy): (&[f32], &[f32]) = (call.read(0), call.read(1));
    for (i, d) in d.iter_mut().enumerate() {
        *d = if x[i] > 0.0 { 0.0 } else { x[i] * dy[i] };
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    table::add(kernel("leaky_relu", |_| names!(x, slope => y), forward));
    table::add(kernel("leaky_relu_grad", |_| names!(x, slope, dy => dx), gradient));
    table::add(kernel("leaky_relu_slope", |_| names!(x, dy => d), slope));
    testing::check_operator(LeakyRelu {}, &[TensorType::f32([8, 4, 16]), TensorType::f32([16])])?;

    let mut model = ir::graph::Builder::new("leaky");
    let x = model.input("x", TensorType::f32([64, 8]))?;
    let target = model.input("y", TensorType::f32([64, 1]))?;
    let widen = model.param("widen", [32, 8], ir::Init::Normal(0.5))?;
    let slopes = model.param("slopes", [32], ir::Init::Zeros)?;
    let narrow = model.param("narrow", [1, 32], ir::Init::Normal(0.2))?;
    let hidden = model.linear("hidden", x, widen, None)?;
    let active = model.add_one("active", LeakyRelu {}, &[hidden, slopes])?;
    let output = model.linear("output", active, narrow, None)?;
    let loss = model.mse("loss", output, target)?;
    let model = model.finish([loss]);

    // Weights are stored in halves on two devices; features are cut over two more.
    let mut plan = plan::preset("fsdp2", 2, &model)?;
    plan.mesh.axes.push(("tp".into(), 2));
    for (pattern, dim) in [("widen", 0), ("slopes", 0), ("narrow", 1)] {
        let shard = [(dim, vec!["tp".to_string()])].into();
        plan.rules.push(plan::PlanRule { pattern: pattern.into(), shard, ..plan::PlanRule::default() });
    }
    let settings = Settings::new(Goal::Train(Optimizer::adam())).plan(plan);
    let mut trainer = Trainer::with_settings(&model, &settings)?;
    let x: Vec<f32> = (0..64 * 8).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let y: Vec<f32> = x.chunks(8).map(|row| row.iter().map(|x| x.abs()).sum::<f32>() / 4.0).collect();
    for step in 0..=200 {
        let report = trainer.step(&[("x", Feed::F32(&x)), ("y", Feed::F32(&y))], 0.01)?;
        if step % 50 == 0 {
            println!("step {step}: loss {:.5}", report.loss);
        }
    }
    Ok(())
}
