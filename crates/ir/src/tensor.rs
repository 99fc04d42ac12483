//! Tensors in double precision, in which the meaning of operators is written.

use crate::Shape;

/// A tensor of any element type; integers and truth values are held as exact floats.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The extents, outermost first.
    pub shape: Shape,
    /// The elements, row-major.
    pub data: Vec<f64>,
}

impl Tensor {
    /// A tensor with these elements.
    ///
    /// # Panics
    /// If there are not as many elements as the shape has.
    pub fn new(shape: impl Into<Shape>, data: impl Into<Vec<f64>>) -> Self {
        let tensor = Tensor { shape: shape.into(), data: data.into() };
        assert_eq!(tensor.data.len(), tensor.shape.elements(), "{} is filled exactly", tensor.shape);
        tensor
    }

    /// A tensor without dimensions.
    pub fn scalar(value: f64) -> Self {
        Tensor::new([], [value])
    }

    /// The tensor whose element at each index is what `element` gives for that index.
    pub fn from_fn(shape: &Shape, mut element: impl FnMut(&[usize]) -> f64) -> Self {
        let mut index = vec![0; shape.rank()];
        let mut data = Vec::with_capacity(shape.elements());
        for _ in 0..shape.elements() {
            data.push(element(&index));
            advance(&mut index, shape);
        }
        Tensor { shape: shape.clone(), data }
    }

    /// The element at `index`.
    pub fn at(&self, index: &[usize]) -> f64 {
        assert_eq!(index.len(), self.shape.rank(), "an index has one number a dimension");
        let position = index.iter().zip(self.shape.dims()).fold(0, |position, (&i, &extent)| {
            assert!(i < extent, "index {index:?} is outside {}", self.shape);
            position * extent + i
        });
        self.data[position]
    }

    /// The element that `index` of a larger shape meets when this tensor is stretched to that shape.
    pub fn at_stretched(&self, index: &[usize]) -> f64 {
        let inner = &index[index.len() - self.shape.rank()..];
        let clipped: Vec<_> = inner
            .iter()
            .zip(self.shape.dims())
            .map(|(&i, &extent)| if extent == 1 { 0 } else { i })
            .collect();
        self.at(&clipped)
    }

    /// The tensor with `function` applied to every element.
    pub fn map(&self, function: impl FnMut(f64) -> f64) -> Self {
        Tensor { shape: self.shape.clone(), data: self.data.iter().copied().map(function).collect() }
    }
}

/// Moves `index` to the next element in row-major order.
fn advance(index: &mut [usize], shape: &Shape) {
    for (i, &extent) in index.iter_mut().zip(shape.dims()).rev() {
        *i += 1;
        if *i < extent {
            return;
        }
        *i = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_visited_row_major() {
        let tensor = Tensor::from_fn(&Shape::from([2, 3]), |i| (10 * i[0] + i[1]) as f64);
        assert_eq!(tensor, Tensor::new([2, 3], [0.0, 1.0, 2.0, 10.0, 11.0, 12.0]));
        assert_eq!(tensor.at(&[1, 2]), 12.0);
    }

    #[test]
    fn stretching_repeats_extents_of_one() {
        let column = Tensor::new([2, 1], [5.0, 6.0]);
        assert_eq!(column.at_stretched(&[7, 1, 3]), 6.0);
        assert_eq!(Tensor::scalar(4.0).at_stretched(&[1, 2]), 4.0);
    }
}
