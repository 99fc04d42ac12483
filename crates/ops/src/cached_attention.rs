//! Causal attention of new tokens over earlier ones and over each other. The keys and values of earlier tokens lie in the
//! first rows of caches `[batch, capacity, heads, dim]`; `past`, `[batch]`, is how many rows count.
//!
//! It writes no cache: the new keys and values are put there between runs. It is for inference and has no gradient.

use phalanx_ir::tasks::TaskOp;
use phalanx_ir::{
    Cuts, IndexBound, LayerTasks, OpError, Operands, Operator, Precision, Shape, Tensor, TensorType,
    attributes,
};

use crate::attention::Attention;
use crate::integer;

/// See the head of the file.
pub struct CachedAttention {
    /// Factor on the scores.
    pub scale: f32,
}

impl Operator for CachedAttention {
    attributes!("cached_attention" (query, key, value, past_keys, past_values, past): scale);

    fn infer(&self, operands: &Operands<'_>) -> Result<Vec<TensorType>, OpError> {
        let whole = Attention::new(true, self.scale);
        let result = whole.infer(operands)?;
        let (query, key) = (operands.float(0)?, operands.float(1)?);
        if key.dims()[1] != query.dims()[1] {
            let wanted = format!("it needs as many keys as the {} queries of {query}", query.dims()[1]);
            return operands.wrong(1, wanted, "give both the same time");
        }
        if operands.float(2)? != key {
            return operands.wrong(
                2,
                format!("it must have the shape of key {key}"),
                format!("make it {key}"),
            );
        }
        for slot in [3, 4] {
            let cache = operands.float(slot)?;
            if cache.rank() != 4 || cache.with(1, key.dims()[1]) != *key {
                let wanted = format!("it must equal key {key} but in its rows");
                return operands.wrong(slot, wanted, "make it [batch, capacity, heads, dim]");
            }
        }
        if operands.float(4)? != operands.float(3)? {
            let keys = operands.float(3)?;
            let wanted = format!("it must have the shape of past_keys {keys}");
            return operands.wrong(4, wanted, format!("make it {keys}"));
        }
        let batch = key.dims()[0];
        if operands.index(5)?.dims() != [batch] {
            let wanted = format!("each of the {batch} sequences has a number of earlier tokens");
            return operands.wrong(5, wanted, format!("make it [{batch}]"));
        }
        Ok(result)
    }

    /// Batch and heads may be cut, all operands alike.
    fn cuts(&self, _operands: &[&Shape], _results: &[&Shape]) -> Cuts {
        let dims = vec![Some(0), None, Some(1), None];
        let mut slots = vec![dims.clone(); 5];
        slots.push(vec![Some(0)]);
        Cuts { shared: vec![5], ..Cuts::new(slots, vec![dims]) }
    }

    fn index_bound(&self, operands: &[&Shape]) -> Option<IndexBound> {
        Some(IndexBound { slot: 5, below: operands[3].dims()[1] + 1, ignore: None })
    }

    fn forward(&self, tasks: &mut dyn LayerTasks) {
        let attrs = self.attrs().with_unless(Precision::F32, "precision", tasks.precision());
        tasks.plain(TaskOp::call("cached_attention", attrs));
    }

    /// The last rows of attention over all keys of a sequence, one after the other.
    fn evaluate(&self, operands: &[&Tensor], results: &[Shape]) -> Vec<Tensor> {
        let [query, key, value, past_keys, past_values, past] = *operands else {
            panic!("it has six operands")
        };
        let [batch, time, heads, dim] = *results[0].dims() else { panic!("a query has four dimensions") };
        let mut data = Vec::new();
        for b in 0..batch {
            let rows = integer(past.at(&[b])) + time;
            let joined = |cache: &Tensor, new: &Tensor| {
                let shape = Shape::new([1, rows, key.shape.dims()[2], dim]);
                Tensor::from_fn(&shape, |at| match (at[1] + time).checked_sub(rows) {
                    Some(row) => new.at(&[b, row, at[2], at[3]]),
                    None => cache.at(&[b, at[1], at[2], at[3]]),
                })
            };
            // Queries of earlier tokens are not known: any will do, their results are left out.
            let queries = Tensor::from_fn(&Shape::new([1, rows, heads, dim]), |at| {
                (at[1] + time).checked_sub(rows).map_or(0.0, |row| query.at(&[b, row, at[2], at[3]]))
            });
            let whole = Attention::new(true, self.scale);
            let (keys, values) = (joined(past_keys, key), joined(past_values, value));
            let all =
                whole.evaluate(&[&queries, &keys, &values], std::slice::from_ref(&queries.shape)).remove(0);
            data.extend_from_slice(&all.data[(rows - time) * heads * dim..]);
        }
        vec![Tensor::new(results[0].clone(), data)]
    }
}
