//! Where the elements of a rectangle lie in a row of bytes: an affine map, one byte stride for each dimension.
//!
//! Two elements never share a byte and all lie below `end`; every constructor checks that. So a loop over a layout may
//! visit its points in any order, and bytes that hold `end` hold them all. Strides are not negative.

use arrayvec::ArrayVec;
use phalanx_program::MAX_RANK;
pub use phalanx_strided::Element;
use phalanx_strided::{MAX_LOOPS, Strides};

use crate::space::Rect;

// A loop for each dimension.
const _: () = assert!(MAX_LOOPS >= MAX_RANK);

/// The most bytes of an element.
pub const MAX_ELEMENT: usize = 4096;

/// Where each element of a rectangle lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    element: Element,
    rect: Rect,
    /// Where the first point's element starts.
    base: usize,
    strides: Strides,
    /// The byte after the last one of any element; `base` if there is none.
    end: usize,
}

/// Why there is no such layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Elements are too small or too large.
    #[error("elements of {bytes} bytes; they have 1 to {MAX_ELEMENT}")]
    ElementSize {
        /// Their bytes.
        bytes: usize,
    },
    /// The order does not name each dimension once.
    #[error("order {order:?} of the dimensions of {rect}; name each of 0 to {} once", rect.rank().saturating_sub(1))]
    Order {
        /// The order.
        order: Vec<usize>,
        /// The rectangle.
        rect: Box<Rect>,
    },
    /// There is not one stride for each dimension.
    #[error("{strides} strides for the {} dimensions of {rect}; give one for each", rect.rank())]
    StrideCount {
        /// How many strides.
        strides: usize,
        /// The rectangle.
        rect: Box<Rect>,
    },
    /// Elements would lie on one another.
    #[error(
        "dimension {dim} of {rect} has stride {stride} over {inner} bytes of elements; it needs at least as many"
    )]
    Overlap {
        /// The dimension.
        dim: usize,
        /// Its stride.
        stride: usize,
        /// Bytes that the dimensions with smaller strides take.
        inner: usize,
        /// The rectangle.
        rect: Box<Rect>,
    },
    /// The bytes are beyond any address.
    #[error("{rect} of {element} ends beyond all addresses; use a smaller rectangle")]
    TooLarge {
        /// The rectangle.
        rect: Box<Rect>,
        /// What each point holds.
        element: Element,
    },
    /// A part reaches out of the whole.
    #[error("{part} reaches out of {whole}; take its intersection with it")]
    Outside {
        /// The part.
        part: Box<Rect>,
        /// The whole.
        whole: Box<Rect>,
    },
}

impl Layout {
    /// Dense, the last dimension fastest.
    pub fn row_major(element: Element, rect: Rect) -> Result<Layout, LayoutError> {
        let order: ArrayVec<usize, MAX_RANK> = (0..rect.rank()).collect();
        Layout::ordered(element, rect, &order)
    }

    /// Dense, with the dimensions in `order`, the fastest last.
    pub fn ordered(element: Element, rect: Rect, order: &[usize]) -> Result<Layout, LayoutError> {
        let once = |dim| order.iter().filter(|&&other| other == dim).count() == 1;
        if order.len() != rect.rank() || !(0..rect.rank()).all(once) {
            return Err(LayoutError::Order { order: order.to_vec(), rect: rect.into() });
        }
        let mut strides: Strides = rect.extents().map(|_| element.bytes()).collect();
        let mut stride = element.bytes();
        if !rect.is_empty() {
            for &dim in order.iter().rev() {
                strides[dim] = stride;
                let next =
                    usize::try_from(rect.extent(dim)).ok().and_then(|extent| stride.checked_mul(extent));
                let Some(next) = next else {
                    return Err(LayoutError::TooLarge { rect: rect.into(), element });
                };
                stride = next;
            }
        }
        Layout::strided(element, rect, 0, &strides)
    }

    /// Any place: the first point's element at byte `base`, the next one along each dimension a stride further. Fields
    /// of records lie like this.
    pub fn strided(
        element: Element,
        rect: Rect,
        base: usize,
        strides: &[usize],
    ) -> Result<Layout, LayoutError> {
        if !(1..=MAX_ELEMENT).contains(&element.bytes()) {
            return Err(LayoutError::ElementSize { bytes: element.bytes() });
        }
        if strides.len() != rect.rank() {
            return Err(LayoutError::StrideCount { strides: strides.len(), rect: rect.into() });
        }
        let strides: Strides = strides.iter().copied().collect();
        let Some(span) = span(element, &rect, &strides)? else {
            return Err(LayoutError::TooLarge { rect: rect.into(), element });
        };
        match base.checked_add(span).filter(|&end| isize::try_from(end).is_ok()) {
            Some(end) => Ok(Layout { element, rect, base, strides, end }),
            None => Err(LayoutError::TooLarge { rect: rect.into(), element }),
        }
    }

    /// What each point holds.
    pub fn element(&self) -> Element {
        self.element
    }

    /// The points.
    pub fn rect(&self) -> &Rect {
        &self.rect
    }

    /// From one element to the next along each dimension, in bytes.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// The byte where the first point's element starts.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Bytes that hold all elements: one more than the last byte of any.
    pub fn end(&self) -> usize {
        self.end
    }

    /// The byte where the element of `point` starts; nothing if the point is not there.
    pub fn offset(&self, point: &[i64]) -> Option<usize> {
        self.rect.contains_point(point).then(|| self.offset_inside(point))
    }

    /// The same elements seen as those of `part` alone.
    pub fn narrow(&self, part: Rect) -> Result<Layout, LayoutError> {
        if !self.rect.contains(&part) {
            return Err(LayoutError::Outside { part: part.into(), whole: self.rect.into() });
        }
        let base = if part.is_empty() { self.base } else { self.offset_inside(part.lo()) };
        Layout::strided(self.element, part, base, &self.strides)
    }

    /// The same elements under coordinates that start at zero.
    pub fn zero_based(&self) -> Layout {
        let zero: ArrayVec<i64, MAX_RANK> = self.rect.lo().iter().map(|_| 0).collect();
        let extents: ArrayVec<u64, MAX_RANK> = self.rect.extents().collect();
        // Only an empty rectangle can be longer than coordinates reach, since elements have addresses.
        match Rect::sized(&zero, &extents) {
            Ok(rect) => Layout { rect, ..self.clone() },
            Err(_) => self.clone(),
        }
    }

    /// The offset of a point of the rectangle.
    pub(crate) fn offset_inside(&self, point: &[i64]) -> usize {
        let steps = point.iter().zip(self.rect.lo()).map(|(at, lo)| at.abs_diff(*lo) as usize);
        steps.zip(&self.strides).fold(self.base, |sum, (steps, stride)| sum + steps * stride)
    }
}

/// The bytes from the first element to the end of the last; nothing if there are too many. Fails if elements overlap.
fn span(element: Element, rect: &Rect, strides: &Strides) -> Result<Option<usize>, LayoutError> {
    if rect.is_empty() {
        return Ok(Some(0));
    }
    let mut dims: ArrayVec<usize, MAX_RANK> = (0..rect.rank()).filter(|&dim| rect.extent(dim) > 1).collect();
    dims.sort_unstable_by_key(|&dim| strides[dim]);
    let mut inner = element.bytes();
    for dim in dims {
        let stride = strides[dim];
        if stride < inner {
            return Err(LayoutError::Overlap { dim, stride, inner, rect: (*rect).into() });
        }
        let steps = usize::try_from(rect.extent(dim) - 1).ok();
        let next =
            steps.and_then(|steps| steps.checked_mul(stride)).and_then(|outer| inner.checked_add(outer));
        let Some(next) = next else { return Ok(None) };
        inner = next;
    }
    Ok(Some(inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rect(lo: &[i64], hi: &[i64]) -> Rect {
        Rect::new(lo, hi).unwrap()
    }

    #[test]
    fn orders_decide_which_dimension_is_fastest() {
        let space = rect(&[-1, 10], &[2, 12]);
        let rows = Layout::row_major(Element::F32, space).unwrap();
        assert_eq!((rows.strides(), rows.end()), (&[12, 4][..], 48));
        let columns = Layout::ordered(Element::F32, space, &[1, 0]).unwrap();
        assert_eq!((columns.strides(), columns.end()), (&[4, 16][..], 48));
        assert_eq!(columns.offset(&[0, 12]), Some(36));
        assert_eq!(columns.offset(&[3, 12]), None);
    }

    #[test]
    fn a_part_keeps_the_places_of_its_elements() {
        let whole = Layout::row_major(Element::Bytes(3), rect(&[0, 0], &[3, 4])).unwrap();
        let part = whole.narrow(rect(&[1, 2], &[3, 3])).unwrap();
        assert_eq!(part.offset(&[2, 3]), whole.offset(&[2, 3]));
        let zero = part.zero_based();
        assert_eq!((zero.rect().hi(), zero.offset(&[1, 1])), (&[2, 1][..], whole.offset(&[2, 3])));
        assert_eq!(
            whole.narrow(rect(&[1, 2], &[4, 3])).unwrap_err().to_string(),
            "[1..=4, 2..=3] reaches out of [0..=3, 0..=4]; take its intersection with it"
        );
    }

    #[test]
    fn places_that_cannot_be_are_named() {
        let space = rect(&[0, 0], &[1, 2]);
        let text = |layout: Result<Layout, LayoutError>| layout.unwrap_err().to_string();
        assert_eq!(
            text(Layout::strided(Element::F32, space, 0, &[11, 4])),
            "dimension 0 of [0..=1, 0..=2] has stride 11 over 12 bytes of elements; it needs at least as many"
        );
        assert_eq!(
            text(Layout::ordered(Element::F32, space, &[0, 0])),
            "order [0, 0] of the dimensions of [0..=1, 0..=2]; name each of 0 to 1 once"
        );
        assert_eq!(
            text(Layout::strided(Element::F32, space, 0, &[4])),
            "1 strides for the 2 dimensions of [0..=1, 0..=2]; give one for each"
        );
        assert_eq!(
            text(Layout::row_major(Element::Bytes(0), space)),
            "elements of 0 bytes; they have 1 to 4096"
        );
        let all = rect(&[i64::MIN], &[i64::MAX]);
        assert!(matches!(Layout::row_major(Element::F32, all), Err(LayoutError::TooLarge { .. })));
    }
}
