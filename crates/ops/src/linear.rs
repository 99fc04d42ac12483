//! x · weight (+ bias), then an activation. The weight is `[out, in]`, or `[in, out]` if `transposed`.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::{
    Activation, Apart, Binary, Cuts, LayerTasks, OpError, Operands, Operator, Part, Shape, Slots, Tensor,
    TensorType, Unary, attributes, each,
};

use crate::unary::activation;
use crate::{BinaryOp, UnaryOp};

/// See the head of the file.
pub struct Linear {
    /// The weight is stored `[in, out]`.
    pub transposed: bool,
    /// Applied to the result.
    pub activation: Activation,
}

impl Operator for Linear {
    attributes!("linear": transposed = false, activation = Activation::None);

    fn slots(&self) -> Slots {
        Slots { needed: &["input", "weight"], optional: &["bias"], variadic: false }
    }

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let (input, weight) = (operands.float(0)?, operands.float(1)?);
        let [rows, cols] = *weight.dims() else {
            return operands.wrong(1, "a linear weight has two dimensions", "reshape it");
        };
        let (inner, outer) = if self.transposed { (rows, cols) } else { (cols, rows) };
        if input.rank() == 0 {
            return operands.wrong(0, "a linear input has at least one dimension", "reshape it to [1]");
        }
        if input.last() != inner {
            let wanted =
                format!("its innermost extent must equal the {inner} input features of weight {weight}");
            let fix = if input.last() == outer {
                format!("flip `transposed` (now {})", self.transposed)
            } else {
                format!("make the weight take {} features or the input have {inner}", input.last())
            };
            return operands.wrong(0, wanted, fix);
        }
        if operands.len() == 3 && operands.float(2)?.dims() != [outer] {
            let wanted = format!("weight {weight} gives {outer} features");
            return operands.wrong(2, wanted, format!("make it [{outer}]"));
        }
        Ok(vec![TensorType::f32(input.with(input.rank() - 1, outer))])
    }

    /// A cut of `in` gives partial sums, a cut of `out` wants copies of x, a cut of rows wants copies of weight and bias. The
    /// weight decides about features, the input about the rest.
    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let lead = operands[0].rank() - 1;
        let (inner, rows, out) = (0, each(1..lead + 1), lead + 1);
        let weight = if self.transposed { [inner, out] } else { [out, inner] };
        let slots = [[rows.clone(), vec![Some(inner)]].concat(), weight.map(Some).to_vec(), vec![Some(out)]];
        let slots = slots.into_iter().take(operands.len()).collect();
        let mut cuts =
            Cuts::new(slots, vec![[rows, vec![Some(out)]].concat()]).contracting().claimed_by([1, 0]);
        cuts.claims.retain(|&(axis, slot, _)| slot == 1 || axis != inner);
        let is_bare = operands.len() == 2 && self.activation == Activation::None;
        let fix = "apply reduction first, then add the bias and activate";
        cuts.refused = (!is_bare).then_some((inner, ["partial sums take no bias and no activation", fix]));
        cuts.wants_copies = Some("a weight cut into {} along its outputs wants {} copies");
        cuts
    }

    fn apart(&self, operands: &[&Shape]) -> Option<Apart> {
        let Linear { transposed, activation } = *self;
        let bias = (operands.len() == 3).then(|| Part {
            op: BinaryOp(Binary::Add).into(),
            operand: Some(2),
            word: "biased",
        });
        let function = (activation != Activation::None).then(|| Part {
            op: UnaryOp(Unary::Act(activation)).into(),
            operand: None,
            word: "activated",
        });
        let after: Vec<Part> = bias.into_iter().chain(function).collect();
        let sum = Linear { transposed, activation: Activation::None }.into();
        (!after.is_empty()).then_some(Apart { sum, operands: 2, after })
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let save_pre = self.activation != Activation::None && tasks.has_backward();
        let inner = *tasks.operand(0).1.dims().last().expect("a linear input has features");
        let op = TaskOp::Linear {
            transposed: self.transposed,
            activation: self.activation,
            bias: tasks.rule().operands.len() == 3,
            residual: false,
            save_pre,
            leaves: tasks.feature_leaves(inner),
            precision: tasks.precision(),
        };
        let (reads, mut writes) = (tasks.reads(), vec![tasks.result(0)]);
        if save_pre {
            let (global, map) = (tasks.output(0).1.global(), tasks.rule().results[0].clone());
            writes.push(tasks.save("pre", &global, map));
        }
        tasks.emit(op, reads, writes);
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let Some(dy) = dy[0].clone() else { return };
        let (transposed, precision, ty) = (self.transposed, tasks.precision(), tasks.output(0).1.clone());
        let dy = match self.activation {
            Activation::None => dy,
            activation => {
                let name = format!("{}.pre.grad", tasks.layer());
                let before = tasks.temp(&name, &ty.dual().global(), dy.map.clone());
                let (kind, rounded) = (Unary::Act(activation), precision.rounds());
                let op = TaskOp::UnaryGrad { kind, accumulate: false, rounded };
                let pre = tasks.kept(0, tasks.rule().results[0].clone());
                tasks.emit(op, vec![pre, dy], vec![before.clone()]);
                before
            }
        };
        if tasks.wants(0) {
            let last = ty.dims().len() - 1;
            let leaves = match tasks.result_batch().filter(|&batch| batch == last) {
                None => tasks.feature_leaves(ty.dims()[last]),
                batch => tasks.leaves_along(&ty, &[last], batch),
            };
            let weight = tasks.read_again(1);
            let op =
                TaskOp::LinearGradInput { transposed, leaves, slope: None, accumulate: false, precision };
            tasks.single(0, op, vec![dy.clone(), weight]);
        }
        let batch = tasks.batch_row(1);
        let sums_rows =
            tasks.wants(1) || ty.dims().len() > 1 && tasks.rule().operands.len() == 3 && tasks.wants(2);
        let dy = if sums_rows { tasks.batch_first(dy, batch) } else { dy };
        if tasks.wants(1) {
            let leaves = tasks.row_leaves(&tasks.buffer(dy.buffer).clone());
            let x = tasks.read_again(0);
            let x = tasks.batch_first(x, batch);
            let op = TaskOp::LinearGradWeight { transposed, leaves, accumulate: false, precision };
            tasks.single(1, op, vec![dy.clone(), x]);
        }
        match tasks.rule().operands.len() == 3 {
            // A sum over one row would turn -0 into 0, which the gradient of an addition does not.
            true if ty.dims().len() == 1 => tasks.give(2, dy.buffer),
            true => tasks.column_sum(2, dy),
            false => {}
        }
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        let (x, weight) = (operands[0], operands[1]);
        vec![Tensor::from_fn(&results[0], |index| {
            let (&feature, outer) = index.split_last().expect("a linear layer has a feature dimension");
            let mut sum = operands.get(2).map_or(0.0, |bias| bias.at(&[feature]));
            for k in 0..x.shape.last() {
                let at = if self.transposed { [k, feature] } else { [feature, k] };
                sum += x.at(&[outer, &[k]].concat()) * weight.at(&at);
            }
            activation(self.activation, sum)
        })]
    }
}
