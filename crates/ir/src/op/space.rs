//! Arithmetic of operators that look at windows of a tensor `[batch, space…, channels]`, one dimension of space at a time:
//! extents of results, the elements of a window, where a resized tensor takes its elements from.
//!
//! Operators and kernels both use it, so that they agree on every position.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// The most dimensions of space.
pub const MAX_SPACE: usize = 3;

/// One number for each dimension of space. Fewer dimensions have neutral numbers in front.
pub type Space = [usize; MAX_SPACE];

/// The numbers of `list`, `neutral` ones in front of them; all are neutral if it is empty.
pub fn space(list: &[usize], neutral: usize) -> Space {
    let missing = MAX_SPACE - list.len().min(MAX_SPACE);
    std::array::from_fn(|dim| if dim < missing { neutral } else { list[dim - missing] })
}

/// How a convolution slides along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvAxis {
    /// Extent of the kernel.
    pub kernel: usize,
    /// From a window to the next.
    pub stride: usize,
    /// From an element of a window to the next.
    pub dilation: usize,
    /// Zeros in front of the input.
    pub before: usize,
    /// Zeros behind it.
    pub after: usize,
}

impl ConvAxis {
    /// How many elements a window spans, gaps counted.
    fn span(&self) -> Option<usize> {
        self.dilation.checked_mul(self.kernel.checked_sub(1)?)?.checked_add(1)
    }

    /// How many windows an input of this extent has; none if not even one.
    pub fn windows(&self, extent: usize) -> Option<usize> {
        let padded = extent.checked_add(self.before)?.checked_add(self.after)?;
        padded.checked_sub(self.span()?)?.checked_div(self.stride).map(|steps| steps + 1)
    }

    /// The least extent of an input that has so many windows, and `more`: what the adjoint convolution gives.
    pub fn extent(&self, windows: usize, more: usize) -> Option<usize> {
        let starts = windows.checked_sub(1)?.checked_mul(self.stride)?;
        let padded = starts.checked_add(self.span()?)?.checked_add(more)?;
        padded.checked_sub(self.before.checked_add(self.after)?).filter(|&extent| extent > 0)
    }
}

/// What a pool makes of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The largest element; one that is no number is larger than all.
    Max,
    /// The mean.
    Avg,
}

/// The windows of a pool along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolAxis {
    /// Extent of the input.
    pub from: usize,
    /// How many windows.
    pub to: usize,
    /// Extent of a window; zero if windows adapt to the extents of input and result.
    pub kernel: usize,
    /// From a window to the next.
    pub stride: usize,
    /// Positions in front of the input.
    pub before: usize,
    /// Positions behind it.
    pub after: usize,
}

impl PoolAxis {
    /// How many windows there are; with `ceil` also one that ends behind the padding, if it begins inside the input or the
    /// padding in front of it.
    pub fn windows(from: usize, conv: &ConvAxis, ceil: bool) -> Option<usize> {
        let padded = from.checked_add(conv.before)?.checked_add(conv.after)?;
        // Behind the padding there may be less than a step.
        let more = if ceil { conv.stride.checked_sub(1)? } else { 0 };
        let steps = padded.checked_add(more)?.checked_sub(conv.kernel)?.checked_div(conv.stride)?;
        let begins_behind = ceil && steps * conv.stride >= from + conv.before;
        Some(if begins_behind { steps } else { steps + 1 }).filter(|&windows| windows > 0)
    }

    /// The positions of window `index`, from the first one of padding on.
    fn padded(&self, index: usize) -> Range<usize> {
        if self.kernel == 0 {
            let (from, to) = (self.from, self.to);
            return index * from / to..((index + 1) * from).div_ceil(to);
        }
        let start = index * self.stride;
        start..(start + self.kernel).min(self.before + self.from + self.after)
    }

    /// The elements of the input in window `index`.
    pub fn window(&self, index: usize) -> Range<usize> {
        let Range { start, end } = self.padded(index);
        start.saturating_sub(self.before)..end.saturating_sub(self.before).min(self.from)
    }

    /// How many positions window `index` has, padding counted.
    pub fn size(&self, index: usize) -> usize {
        self.padded(index).len()
    }
}

/// How elements between those of a tensor are made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resampling {
    /// The element at or before the position of the result's corner, as PyTorch's `nearest`.
    Nearest,
    /// The element whose center is nearest, as PyTorch's `nearest-exact`.
    NearestExact,
    /// The two elements around, each weighted by how near it is.
    Linear,
}

/// By how much each dimension of space grows, written with `/` between them; given ones count, not quotients of extents.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScaleFactors(pub Vec<f64>);

impl fmt::Display for ScaleFactors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(f64::to_string).collect();
        f.write_str(&words.join("/"))
    }
}

impl FromStr for ScaleFactors {
    type Err = ();
    fn from_str(word: &str) -> Result<Self, ()> {
        word.split('/').map(|factor| factor.parse().map_err(drop)).collect::<Result<_, _>>().map(ScaleFactors)
    }
}

macro_rules! space_words {
    ($($type:ident { $($variant:ident = $word:literal,)* })*) => {$(
        impl $type {
            /// Every variant.
            pub const ALL: &[Self] = &[$($type::$variant),*];
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($type::$variant => $word,)* })
            }
        }
        impl FromStr for $type {
            type Err = ();
            fn from_str(word: &str) -> Result<Self, ()> {
                match word { $($word => Ok($type::$variant),)* _ => Err(()) }
            }
        }
    )*};
}

space_words! {
    Pooling { Max = "max", Avg = "avg", }
    Resampling { Nearest = "nearest", NearestExact = "nearest_exact", Linear = "linear", }
}

/// How a tensor is resized along one dimension.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResizeAxis {
    /// Extent of the input.
    pub from: usize,
    /// Extent of the result.
    pub to: usize,
    /// Elements of the input for each of the result.
    pub ratio: f32,
    /// How elements are made up.
    pub kind: Resampling,
    /// Whether the centers of the first and last elements stay in place, not the outer edges.
    pub align: bool,
}

impl ResizeAxis {
    /// By extents alone, or by a given factor: that one counts, not the quotient of the extents.
    pub fn new(from: usize, to: usize, factor: Option<f64>, kind: Resampling, align: bool) -> ResizeAxis {
        let ratio = match (kind, factor) {
            (Resampling::Linear, _) if align && to > 1 => (from - 1) as f32 / (to - 1) as f32,
            (Resampling::Linear, _) if align => 0.0,
            (_, Some(factor)) => (1.0 / factor) as f32,
            (_, None) => from as f32 / to as f32,
        };
        ResizeAxis { from, to, ratio, kind, align }
    }

    /// The two elements of the input that element `index` of the result is made of, with their weights. They may be the same;
    /// the second has no weight where there is one only.
    #[inline]
    pub fn taps(&self, index: usize) -> [(usize, f32); 2] {
        let last = self.from - 1;
        let center = |index: usize| self.ratio * (index as f32 + 0.5);
        let at = match self.kind {
            Resampling::Nearest if self.to == self.from => index as f32,
            Resampling::Nearest if self.to == 2 * self.from => (index / 2) as f32,
            Resampling::Nearest => self.ratio * index as f32,
            Resampling::NearestExact => center(index),
            Resampling::Linear if self.align => self.ratio * index as f32,
            Resampling::Linear => (center(index) - 0.5).max(0.0),
        };
        let first = (at as usize).min(last);
        if self.kind != Resampling::Linear {
            return [(first, 1.0), (first, 0.0)];
        }
        let second = (at - first as f32).min(1.0);
        [(first, 1.0 - second), ((first + 1).min(last), second)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: ConvAxis = ConvAxis { kernel: 3, stride: 2, dilation: 1, before: 1, after: 1 };

    #[test]
    fn windows_and_extents_are_those_of_pytorch() {
        assert_eq!(PLAIN.windows(224), Some(112));
        assert_eq!(ConvAxis { dilation: 2, ..PLAIN }.windows(7), Some(3));
        assert_eq!(ConvAxis { before: 0, after: 0, ..PLAIN }.windows(2), None);
        assert_eq!(ConvAxis { stride: 0, ..PLAIN }.windows(8), None);
        assert_eq!((PLAIN.extent(112, 0), PLAIN.extent(112, 1)), (Some(223), Some(224)));
        assert_eq!(ConvAxis { kernel: 1, ..PLAIN }.extent(1, 0), None);
    }

    /// `max_pool1d(torch.zeros(1, 1, 6), 2, 3, ceil_mode=True)` has two windows; a third would begin behind the input.
    #[test]
    fn a_window_begins_inside_the_input() {
        let pool = |kernel, stride| ConvAxis { kernel, stride, dilation: 1, before: 0, after: 0 };
        let count = |from, kernel, stride| PoolAxis::windows(from, &pool(kernel, stride), true);
        assert_eq!([count(6, 2, 3), count(6, 3, 2), count(5, 1, 4)], [Some(2), Some(3), Some(2)]);
        // A single window may end behind the input: `max_pool1d(torch.zeros(1, 1, 2), 3, 2, ceil_mode=True)`.
        assert_eq!([count(2, 3, 2), count(2, 4, 2), count(2, 3, 1)], [Some(1), None, None]);
        let axis = PoolAxis { from: 6, to: 3, kernel: 3, stride: 2, before: 0, after: 0 };
        assert_eq!((axis.window(2), axis.size(2)), (4..6, 2));
    }

    #[test]
    fn adaptive_windows_overlap_where_extents_do_not_divide() {
        let axis = PoolAxis { from: 7, to: 3, kernel: 0, stride: 0, before: 0, after: 0 };
        assert_eq!([0, 1, 2].map(|index| axis.window(index)), [0..3, 2..5, 4..7]);
    }

    #[test]
    fn a_given_factor_counts() {
        let taps = |factor| ResizeAxis::new(5, 7, factor, Resampling::Nearest, false);
        let chosen = |axis: ResizeAxis| (0..7).map(|index| axis.taps(index)[0].0).collect::<Vec<_>>();
        assert_eq!(chosen(taps(None)), [0, 0, 1, 2, 2, 3, 4]);
        assert_eq!(chosen(taps(Some(1.5))), [0, 0, 1, 2, 2, 3, 4]);
        assert_eq!(chosen(taps(Some(1.59))), [0, 0, 1, 1, 2, 3, 3]);
    }

    #[test]
    fn linear_weights_add_up_and_stay_inside() {
        for align in [false, true] {
            for (from, to) in [(1, 4), (5, 3), (4, 9), (6, 1)] {
                let axis = ResizeAxis::new(from, to, None, Resampling::Linear, align);
                for [(first, a), (second, b)] in (0..to).map(|index| axis.taps(index)) {
                    assert!(
                        first < from && second < from && a >= 0.0 && b >= 0.0 && (a + b - 1.0).abs() < 1e-6
                    );
                }
            }
        }
    }
}
