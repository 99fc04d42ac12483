//! The negative log-likelihood of the labels, summed over rows; rows with the ignored label are left out.
//!
//! With `smoothing` ε and weights w of the C classes the loss of a row with label y is
//! `(1 - ε) w_y (-log p_y) + ε/C Σ w_c (-log p_c)`. Weights get no gradient.
//!
//! Devices that share the classes of a row first agree on the row's largest logit, then add their sums of exponentials and
//! their pick of the label's logit; each then knows the row's loss, with the bits of one device.

use phalanx_ir::parallel::{ParallelType, TileMap};
use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::text::Attrs;
use phalanx_ir::{
    Cuts, IndexBound, LayerTasks, OpError, Operands, Operator, Reduce, Shape, Slots, Tensor, TensorType,
    attributes, each, reduce_task,
};

use crate::integer;

/// See the head of the file.
pub struct CrossEntropy {
    /// The label that leaves a row out.
    pub ignore: i64,
    /// How much of a label is spread evenly over all classes.
    pub smoothing: f32,
}

impl CrossEntropy {
    /// Without smoothing.
    pub fn new(ignore: i64) -> Self {
        CrossEntropy { ignore, smoothing: 0.0 }
    }
}

impl Operator for CrossEntropy {
    attributes!("cross_entropy": ignore, smoothing = 0.0);

    fn slots(&self) -> Slots {
        Slots { needed: &["logits", "labels"], optional: &["weights"], variadic: false }
    }

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let (logits, labels) = (operands.float(0)?, operands.index(1)?);
        let Some((_, rows)) = logits.dims().split_last() else {
            return operands.wrong(0, "logits have a class dimension", "reshape it");
        };
        if labels.dims() != rows {
            let rows = Shape::new(rows);
            let wanted = format!("logits {logits} need one label a row");
            return operands.wrong(1, wanted, format!("make it {rows}"));
        }
        if !(0.0..=1.0).contains(&self.smoothing) {
            let wanted = format!("smoothing={} is a share of its labels", self.smoothing);
            return operands.wrong(0, wanted, "use a smoothing in 0..=1");
        }
        if operands.len() == 3 && operands.float(2)?.dims() != [logits.last()] {
            let wanted = format!("logits {logits} have {} classes", logits.last());
            return operands.wrong(2, wanted, format!("make it [{}]", logits.last()));
        }
        Ok(vec![TensorType::f32([])])
    }

    /// A cut of rows gives partial sums; devices that share the classes of a row hold the same result.
    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let lead = operands[0].rank() - 1;
        let slots = vec![each(0..lead + 1), each(0..lead), vec![Some(lead)]];
        let cuts = Cuts::new(slots.into_iter().take(operands.len()).collect(), vec![Vec::new()]);
        Cuts { sum: (0..lead).collect(), shared: vec![1, 2], single: true, ..cuts }
    }

    fn index_bound(&self, operands: &[&Shape]) -> Option<IndexBound> {
        Some(IndexBound { slot: 1, below: operands[0].last(), ignore: Some(self.ignore) })
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let logits = tasks.operand(0).1.clone();
        let classes = *logits.dims().last().expect("logits have classes");
        let leaves = tasks.feature_leaves(classes);
        let rows = TensorType::f32(Shape::new(&logits.global().shape.dims()[..logits.dims().len() - 1]));
        let map = tasks.rule().operands[1].clone();
        let name = tasks.layer().to_string();
        let lse = tasks.save("lse", &rows, map.clone());
        let losses = tasks.temp(&format!("{name}.rows"), &rows, map.clone());
        if self.is_smooth(tasks) {
            let saved = ["scale", "hot"].map(|what| tasks.save(what, &rows, map.clone()));
            let [scale, hot] = saved;
            let outs = vec![losses.clone(), lse, scale, hot];
            self.smooth(tasks, leaves, &rows, outs);
        } else if classes.degree == 1 {
            let (attrs, reads) = (self.attrs().with("leaves", leaves), tasks.reads());
            tasks.emit(TaskOp::call("cross_entropy", attrs), reads, vec![losses.clone(), lse]);
        } else {
            self.class_shards(tasks, leaves, &rows, [losses.clone(), lse]);
        }
        sum_losses(tasks, losses);
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let map = tasks.rule().operands[1].clone();
        let lse = tasks.kept(0, map.clone());
        let mut reads = vec![tasks.read_again(0), tasks.read(1), lse];
        if !self.is_smooth(tasks) {
            reads.extend(dy[0].clone());
            return tasks.single(0, TaskOp::call("cross_entropy_grad", self.attrs()), reads);
        }
        reads.extend([1, 2].map(|saved| tasks.kept(saved, map.clone())));
        reads.extend(dy[0].clone());
        reads.extend((tasks.rule().operands.len() == 3).then(|| tasks.read(2)));
        let op = TaskOp::call("smooth_cross_entropy_grad", self.smooth_attrs(tasks));
        tasks.single(0, op, reads);
    }

    fn evaluate(&self, operands: &[&Tensor], _results: &[Shape]) -> Vec<Tensor> {
        let (logits, labels) = (operands[0], operands[1]);
        let classes = logits.shape.last();
        let mut sum = 0.0;
        for (row, &label) in logits.data.chunks(classes).zip(&labels.data) {
            if label == self.ignore as f64 {
                continue;
            }
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let log_sum = largest + row.iter().map(|x| (x - largest).exp()).sum::<f64>().ln();
            assert!(integer(label) < classes, "label {label} is one of {classes} classes");
            let weight = |class: usize| operands.get(2).map_or(1.0, |weights| weights.data[class]);
            let loss = |class: usize| weight(class) * (log_sum - row[class]);
            let (even, label) = (f64::from(self.smoothing), integer(label));
            let all: f64 = if even == 0.0 { 0.0 } else { (0..classes).map(loss).sum() };
            sum += (1.0 - even) * loss(label) + even / classes as f64 * all;
        }
        vec![Tensor::scalar(sum)]
    }
}

impl CrossEntropy {
    /// Whether there are weights or smoothing, which have kernels of their own.
    fn is_smooth(&self, tasks: &dyn LayerTasks) -> bool {
        self.smoothing != 0.0 || tasks.rule().operands.len() == 3
    }

    /// The attributes of those kernels.
    fn smooth_attrs(&self, tasks: &dyn LayerTasks) -> Attrs {
        let classes = tasks.operand(0).1.global().shape.last();
        Attrs::new().with("ignore", self.ignore).with("smoothing", self.smoothing).with("classes", classes)
    }

    /// Writes losses, lse, scale and hot.
    fn smooth(&self, tasks: &mut dyn LayerTasks, leaves: usize, rows: &TensorType, outs: Vec<Operand>) {
        let attrs = self.smooth_attrs(tasks);
        let (mut reads, name) = (tasks.reads(), tasks.layer().to_string());
        let [logits, labels] = [reads[0].clone(), reads[1].clone()];
        let by_row = labels.map.clone();
        if logits.map.dims.last().is_none_or(|by_class| by_class.is_empty()) {
            let op = TaskOp::call("smooth_cross_entropy", attrs.with("leaves", leaves));
            return tasks.emit(op, reads, outs);
        }
        let [largest, sum] = exponentials(tasks, leaves, rows);
        reads.insert(1, largest.clone());
        let partial = TileMap { sum: logits.map.dims[by_row.dims.len()].clone(), ..by_row.clone() };
        let words = ["pick", "weight", "dot", "total"];
        let parts = words.map(|word| tasks.temp(&format!("{name}.{word}"), rows, partial.clone()));
        let op = TaskOp::call("class_smooth", attrs.clone().with("leaves", leaves));
        tasks.emit(op, reads, parts.to_vec());
        let mut reads = vec![largest, tasks.moved(sum.buffer, by_row.clone())];
        reads.extend(parts.map(|part| tasks.moved(part.buffer, by_row.clone())));
        reads.push(labels);
        tasks.emit(TaskOp::call("smooth_join", attrs), reads, outs);
    }

    fn class_shards(
        &self,
        tasks: &mut dyn LayerTasks,
        leaves: usize,
        rows: &TensorType,
        [losses, lse]: [Operand; 2],
    ) {
        let [logits, labels] = [tasks.read(0), tasks.read(1)];
        let name = tasks.layer().to_string();
        let by_row = labels.map.clone();
        let [largest, sum] = exponentials(tasks, leaves, rows);
        let partial = TileMap { sum: logits.map.dims[by_row.dims.len()].clone(), ..by_row.clone() };
        let pick = tasks.temp(&format!("{name}.pick"), rows, partial);
        let op = TaskOp::call("class_pick", Attrs::new());
        tasks.emit(op, vec![logits, labels.clone()], vec![pick.clone()]);
        let sum = tasks.moved(sum.buffer, by_row.clone());
        let pick = tasks.moved(pick.buffer, by_row);
        let op = TaskOp::call("class_join", self.attrs());
        tasks.emit(op, vec![largest, sum, pick, labels], vec![losses, lse]);
    }
}

/// The largest logit of every row, and the partial sums of exponentials relative to it, where devices share the classes.
fn exponentials(tasks: &mut dyn LayerTasks, leaves: usize, rows: &TensorType) -> [Operand; 2] {
    let [logits, labels] = [tasks.read(0), tasks.read(1)];
    let name = tasks.layer().to_string();
    let (by_row, by_class) =
        (labels.map.clone(), logits.map.dims.last().expect("logits have classes").clone());
    let shards = tasks.rule().extents[by_class[0]];

    // One column for every shard of the classes.
    let dims = [rows.shape.dims(), &[shards]].concat();
    let columns = TileMap { dims: logits.map.dims.clone(), ..TileMap::default() };
    let largest = tasks.temp(&format!("{name}.max"), &TensorType::f32(Shape::new(dims)), columns.clone());
    let op = TaskOp::call("class_max", Attrs::new());
    tasks.emit(op, vec![logits.clone()], vec![largest.clone()]);
    let joined = TileMap { dims: [&by_row.dims[..], &[Vec::new()]].concat(), ..TileMap::default() };
    let all = tasks.moved(largest.buffer, joined);
    let largest = tasks.temp(&format!("{name}.max"), rows, by_row.clone());
    let op = reduce_task(Reduce::Max, &[rows.shape.rank()], 1);
    tasks.emit(op, vec![all], vec![largest.clone()]);

    let partial = TileMap { sum: by_class, ..by_row };
    let sum = tasks.temp(&format!("{name}.sum"), rows, partial);
    let op = TaskOp::call("class_sum", Attrs::new().with("leaves", leaves));
    tasks.emit(op, vec![logits, largest.clone()], vec![sum.clone()]);
    [largest, sum]
}

/// The sum over all rows, as one list of them where only the batch is cut.
pub(crate) fn sum_losses(tasks: &mut dyn LayerTasks, losses: Operand) {
    let batch = tasks.operand_batch(1).unwrap_or(0);
    let losses = tasks.batch_first(losses, batch);
    let ty = tasks.buffer(losses.buffer).clone();
    let leaves = tasks.flat_leaves(ty.dims());
    let flat = ty.dims().iter().skip(1).all(|dim| dim.degree == 1) && !ty.dims().is_empty();
    let (rows, axes) = match flat {
        false => (losses, (0..ty.dims().len()).collect()),
        true => {
            let global = TensorType::f32([ty.global().shape.elements()]);
            let view =
                ParallelType::tiled(&global, &[ty.degree(0)], 1, 1).expect("rows divide like the batch");
            let map = TileMap { dims: vec![losses.map.dims[0].clone()], ..TileMap::default() };
            (Operand { buffer: tasks.view(losses.buffer, view), map }, vec![0])
        }
    };
    let total = tasks.result(0);
    tasks.emit(reduce_task(Reduce::Sum, &axes, leaves), vec![rows], vec![total]);
}
