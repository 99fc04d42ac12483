//! Sizes of tensors, and what is wrong with them.

use std::fmt;

use crate::DType;

/// The most dimensions a tensor may have.
pub const MAX_RANK: usize = 6;

/// The most elements a tensor may have, an extent of 0 counted as 1: more than any machine holds, and few enough that bytes of
/// all tensors of a graph can be added.
pub const MAX_ELEMENTS: usize = 1 << 48;

/// The extents of a tensor, outermost first. A scalar has none.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// A shape with these extents.
    pub fn new(dims: impl Into<Vec<usize>>) -> Self {
        Shape(dims.into())
    }

    /// The extents.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// How many dimensions there are.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// How many elements there are; more than can be counted are `usize::MAX`.
    pub fn elements(&self) -> usize {
        self.0.iter().fold(1, |product, &extent| product.saturating_mul(extent))
    }

    /// Whether a tensor may have this shape: no product of its extents exceeds [`MAX_ELEMENTS`].
    pub fn is_bounded(&self) -> bool {
        self.0.iter().fold(1_usize, |product, &extent| product.saturating_mul(extent.max(1))) <= MAX_ELEMENTS
    }

    /// The innermost extent; 1 for a scalar.
    pub fn last(&self) -> usize {
        self.0.last().copied().unwrap_or(1)
    }

    /// The product of all extents but the innermost.
    pub fn rows(&self) -> usize {
        self.0.split_last().map_or(1, |(_, outer)| outer.iter().product())
    }

    /// This shape with extent `axis` replaced.
    pub fn with(&self, axis: usize, extent: usize) -> Shape {
        let mut dims = self.0.clone();
        dims[axis] = extent;
        Shape(dims)
    }

    /// The shape both operands of an element-wise operation are stretched to, aligned at the innermost dimension.
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let rank = self.rank().max(other.rank());
        let extent = |shape: &Shape, axis: usize| {
            (axis + shape.rank()).checked_sub(rank).map_or(1, |axis| shape.0[axis])
        };
        let dims = (0..rank).map(|axis| match (extent(self, axis), extent(other, axis)) {
            (a, b) if a == b || b == 1 => Some(a),
            (1, b) => Some(b),
            _ => None,
        });
        dims.collect::<Option<Vec<_>>>().map(Shape)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.0.iter().map(usize::to_string).collect();
        write!(f, "[{}]", dims.join(", "))
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape(dims.to_vec())
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Shape(dims)
    }
}

/// Element type and shape of a tensor; prints as `f32[64, 10]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The element type.
    pub dtype: DType,
    /// The extents.
    pub shape: Shape,
}

impl TensorType {
    /// A tensor type.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Self {
        TensorType { dtype, shape: shape.into() }
    }

    /// A tensor of 32-bit floats.
    pub fn f32(shape: impl Into<Shape>) -> Self {
        TensorType::new(DType::F32, shape)
    }

    /// Bytes of the whole tensor.
    pub fn bytes(&self) -> usize {
        self.shape.elements().saturating_mul(self.dtype.bytes())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

/// Why an operator cannot take these operands: the slot, what came, what was wanted, and what would fix it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot `{slot}` is {found} but {wanted}; {fix}")]
pub struct OpError {
    /// The offending slot.
    pub slot: String,
    /// What the slot holds.
    pub found: String,
    /// What the operator wants there, with the other operand's shape where it matters.
    pub wanted: String,
    /// A change that would make it legal.
    pub fix: String,
}

/// The number of leaves of a sum over `extent` elements: the largest power of two that divides it, at most `most`.
pub fn leaves_of(extent: usize, most: usize) -> usize {
    let mut leaves = 1;
    while leaves * 2 <= most && extent > 0 && extent.is_multiple_of(leaves * 2) {
        leaves *= 2;
    }
    leaves
}

/// The powers of two above 1, up to `most`, into which `extent` can be cut, for people: `2, 4 or 8`; `1` if there are none.
pub fn cut_choices(extent: usize, most: usize) -> String {
    let all = (1..usize::BITS).map(|power| 1 << power).take_while(|&ways| ways <= leaves_of(extent, most));
    let all: Vec<String> = all.map(|ways: usize| ways.to_string()).collect();
    match all.as_slice() {
        [] => "1".into(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_aligns_at_the_innermost_dimension() {
        let a = Shape::from([4, 1, 3]);
        assert_eq!(a.broadcast(&Shape::from([2, 3])), Some(Shape::from([4, 2, 3])));
        assert_eq!(a.broadcast(&Shape::default()), Some(a.clone()));
        assert_eq!(a.broadcast(&Shape::from([2])), None);
    }

    #[test]
    fn leaves_divide_the_extent_and_never_exceed_the_setting() {
        assert_eq!([64, 12, 7, 2048, 0].map(|extent| leaves_of(extent, 8)), [8, 4, 1, 8, 1]);
        assert_eq!(
            [64, 12, 6, 7, 0].map(|extent| cut_choices(extent, 8)),
            ["2, 4 or 8", "2 or 4", "2", "1", "1"]
        );
        assert_eq!(leaves_of(64, 1), 1);
    }
}
