//! Rows of a table chosen by index; with `bag`, rows chosen by the innermost index dimension are summed. The row of the
//! `padding` id gets no gradient, and a bag leaves it out.

use phalanx_ir::sharded::Operand;
use phalanx_ir::tasks::TaskOp;
use phalanx_ir::{
    Cuts, IndexBound, LayerTasks, MAX_RANK, OpError, Operands, Operator, Shape, Tensor, TensorType,
    attributes, each,
};

use crate::integer;

/// See the head of the file.
pub struct Embedding {
    /// Sum over the innermost index dimension.
    pub bag: bool,
    /// The id whose row gets no gradient; a bag leaves it out.
    pub padding: Option<i64>,
}

impl Operator for Embedding {
    attributes!("embedding" (input, weight): bag = false, padding = None);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let mut dims = operands.index(0)?.dims().to_vec();
        let [entries, features] = *operands.float(1)?.dims() else {
            return operands.wrong(1, "a table is [entries, features]", "reshape it to two dimensions");
        };
        if let Some(padding) = self.padding
            && !(0..entries as i64).contains(&padding)
        {
            let wanted = format!("padding={padding} must be one of its {entries} entries");
            return operands.wrong(1, wanted, format!("use a padding in 0..{entries}"));
        }
        if self.bag && dims.pop().is_none() {
            let wanted = "bag sums over the innermost index dimension";
            return operands.wrong(0, wanted, "use bag=false for a scalar index");
        }
        dims.push(features);
        if dims.len() > MAX_RANK {
            let wanted = format!("rows of features give more than {MAX_RANK} dimensions");
            return operands.wrong(0, wanted, "reshape it");
        }
        Ok(vec![TensorType::f32(Shape::new(dims))])
    }

    /// A cut of the vocabulary gives partial sums, all but one of them zero. The table decides about vocabulary and width,
    /// the ids about the rest.
    fn cuts(&self, operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let lead = operands[0].rank() - usize::from(self.bag);
        let (vocabulary, rows, width) = (0, each(1..lead + 1), lead + 1);
        let ids = rows.iter().copied().chain(self.bag.then_some(None)).collect();
        let table = vec![Some(vocabulary), Some(width)];
        let cuts = Cuts::new(vec![ids, table], vec![[rows, vec![Some(width)]].concat()]);
        Cuts {
            shared: vec![0],
            // A bag adds rows of one shard before those of the next.
            unordered: self.bag.then_some(vocabulary),
            wants_copies: Some("ids cut into {} want {} copies of the table"),
            ..cuts.contracting().claimed_by([1, 0])
        }
    }

    fn index_bound(&self, operands: &[&Shape]) -> Option<IndexBound> {
        Some(IndexBound { slot: 0, below: operands[1].dims()[0], ignore: None })
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        tasks.plain(TaskOp::call("embedding", self.attrs()));
    }

    fn backward(&self, tasks: &mut dyn LayerTasks, dy: &[Option<Operand>]) {
        let ty = tasks.output(0).1.clone();
        let op = TaskOp::call("embedding_grad", self.attrs().with("leaves", tasks.row_leaves(&ty)));
        let ids = tasks.read(0);
        tasks.single(1, op, [ids].into_iter().chain(dy[0].clone()).collect());
    }

    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        let (ids, table) = (operands[0], operands[1]);
        vec![Tensor::from_fn(&results[0], |index| {
            let (&feature, outer) = index.split_last().expect("an embedding has a feature dimension");
            let row = |at: &[usize]| table.at(&[integer(ids.at(at)), feature]);
            match self.bag {
                false => row(outer),
                true => {
                    let all = (0..ids.shape.last()).map(|k| [outer, &[k]].concat());
                    let is_padding = |at: &Vec<usize>| Some(ids.at(at) as i64) == self.padding;
                    all.filter(|at| !is_padding(at)).map(|at| row(&at)).sum()
                }
            }
        })]
    }
}
