//! The largest elements of each row in descending order, and their places in the row. Reads x `[rows, cols]`, writes values
//! and indices `[rows, k]`. Of equal elements the first comes first; a NaN counts as the largest.

use std::cmp::Ordering;

use phalanx_ir::tasks::TaskView;

use crate::{Call, Kernel, Sizes, Work, params, signature};

params! {
    /// The parameters of `topk`.
    pub struct TopKParams {
        /// How many rows.
        pub rows: usize,
        /// Elements per row.
        pub cols: usize,
        /// How many of each row.
        pub k: usize,
    }
}

/// Whether `a` comes before `b`.
fn is_before(a: f32, b: f32) -> bool {
    let order = a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
    order == Ordering::Greater
}

/// Sorts every row.
pub fn topk_reference(values: &mut [f32], indices: &mut [i64], x: &[f32], params: TopKParams) {
    for row in 0..params.rows {
        let x = &x[row * params.cols..][..params.cols];
        let mut order: Vec<usize> = (0..params.cols).collect();
        order.sort_by(|&a, &b| is_before(x[b], x[a]).cmp(&is_before(x[a], x[b])));
        for (slot, &at) in order[..params.k].iter().enumerate() {
            (values[row * params.k + slot], indices[row * params.k + slot]) = (x[at], at as i64);
        }
    }
}

/// The fast version of [`topk_reference`]: each element is inserted among the largest so far.
pub fn topk(values: &mut [f32], indices: &mut [i64], x: &[f32], params: TopKParams) {
    let TopKParams { cols, k, .. } = params;
    let rows = values.chunks_exact_mut(k).zip(indices.chunks_exact_mut(k)).zip(x.chunks_exact(cols));
    for ((values, indices), x) in rows {
        let mut count = 0;
        for (at, &x) in x.iter().enumerate() {
            if count == k && !is_before(x, values[k - 1]) {
                continue;
            }
            let mut slot = if count < k { count } else { k - 1 };
            count = k.min(count + 1);
            while slot > 0 && is_before(x, values[slot - 1]) {
                (values[slot], indices[slot]) = (values[slot - 1], indices[slot - 1]);
                slot -= 1;
            }
            (values[slot], indices[slot]) = (x, at as i64);
        }
    }
}

impl Kernel for TopKParams {
    signature!("topk": x => values, indices);

    fn from_task(task: &TaskView<'_>) -> Result<Self, String> {
        Ok(TopKParams { rows: task.read(0)?.rows(), cols: task.read(0)?.last(), k: task.attr("k")? })
    }

    fn reference(&self, call: &mut Call<'_>) {
        topk_reference(call.write(0), call.write(1), call.read(0), *self);
    }

    fn fast(&self, call: &mut Call<'_>) {
        topk(call.write(0), call.write(1), call.read(0), *self);
    }

    /// One comparison an element.
    fn work(&self, sizes: &Sizes<'_>) -> Work {
        sizes.work(sizes.operand(0), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::values;

    #[test]
    fn of_equal_elements_the_first_comes_first_and_nan_is_the_largest() {
        let x = [1.0, 3.0, -2.0, 3.0, f32::NAN, 0.0];
        let (mut values, mut indices) = ([0.0; 4], [0; 4]);
        topk(&mut values, &mut indices, &x, TopKParams { rows: 1, cols: 6, k: 4 });
        assert!(values[0].is_nan());
        assert_eq!((&values[1..], indices), (&[3.0, 3.0, 1.0][..], [4, 1, 3, 0]));
    }

    #[test]
    fn inserting_gives_what_sorting_gives() {
        for (rows, cols) in [(1, 1), (3, 7), (5, 64)] {
            let x: Vec<f32> = values(rows * cols, 3).iter().map(|x| (x * 8.0).round()).collect();
            for k in [1, cols.div_ceil(2), cols] {
                let params = TopKParams { rows, cols, k };
                let [mut a, mut b] = [(); 2].map(|()| (vec![0.0; rows * k], vec![0; rows * k]));
                topk(&mut a.0, &mut a.1, &x, params);
                topk_reference(&mut b.0, &mut b.1, &x, params);
                assert_eq!(a, b, "{params:?}");
            }
        }
    }
}
