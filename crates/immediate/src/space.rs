//! Rectangles of integer points: the index spaces of instances and copies.
//!
//! Bounds are inclusive, so that every `i64` can be a coordinate. A rectangle is empty if its last point lies before
//! its first one in any dimension. Only dense rectangles: a sparse space is a list of them, which is the caller's.

use std::fmt;

use phalanx_program::MAX_RANK;

/// A rectangle of integer points, with up to six dimensions. With none it is a single point.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rect {
    /// Zero beyond the rank, as is `hi`.
    lo: [i64; MAX_RANK],
    hi: [i64; MAX_RANK],
    rank: usize,
}

/// Bounds that make no rectangle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RectError {
    /// The two bounds have different numbers of coordinates.
    #[error(
        "a rectangle from a point of {lo} to one of {hi} coordinates; give both the same number of coordinates"
    )]
    Ranks {
        /// Coordinates of the lower bound.
        lo: usize,
        /// Coordinates of the upper one.
        hi: usize,
    },
    /// There are too many dimensions.
    #[error("a rectangle of {rank} dimensions; the most is {MAX_RANK}, merge some")]
    TooManyDimensions {
        /// How many.
        rank: usize,
    },
    /// The last point of a dimension is beyond what a coordinate can say.
    #[error("{extent} points from {origin} on do not end within 64-bit coordinates; move the origin")]
    Beyond {
        /// The first coordinate.
        origin: i64,
        /// The number of points.
        extent: u64,
    },
}

impl Rect {
    /// The points from `lo` to `hi`, both included.
    pub fn new(lo: &[i64], hi: &[i64]) -> Result<Rect, RectError> {
        if lo.len() != hi.len() {
            return Err(RectError::Ranks { lo: lo.len(), hi: hi.len() });
        }
        let rank = lo.len();
        if rank > MAX_RANK {
            return Err(RectError::TooManyDimensions { rank });
        }
        let mut rect = Rect { lo: [0; MAX_RANK], hi: [0; MAX_RANK], rank };
        rect.lo[..rank].copy_from_slice(lo);
        rect.hi[..rank].copy_from_slice(hi);
        Ok(rect)
    }

    /// As many points along each dimension as `extents` says, the first at `origin`.
    pub fn sized(origin: &[i64], extents: &[u64]) -> Result<Rect, RectError> {
        if origin.len() != extents.len() {
            return Err(RectError::Ranks { lo: origin.len(), hi: extents.len() });
        }
        let last = |(&origin, &extent): (&i64, &u64)| {
            let last = i128::from(origin) + i128::from(extent) - 1;
            i64::try_from(last).map_err(|_| RectError::Beyond { origin, extent })
        };
        let hi = origin.iter().zip(extents).map(last).collect::<Result<Vec<_>, _>>()?;
        Rect::new(origin, &hi)
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The first point.
    pub fn lo(&self) -> &[i64] {
        &self.lo[..self.rank]
    }

    /// The last point.
    pub fn hi(&self) -> &[i64] {
        &self.hi[..self.rank]
    }

    /// The number of points along `dim`; `u64::MAX` also for one more.
    pub fn extent(&self, dim: usize) -> u64 {
        let (lo, hi) = (self.lo[dim], self.hi[dim]);
        if hi < lo { 0 } else { hi.abs_diff(lo).saturating_add(1) }
    }

    /// The number of points along each dimension.
    pub fn extents(&self) -> impl DoubleEndedIterator<Item = u64> + '_ {
        (0..self.rank()).map(|dim| self.extent(dim))
    }

    /// Whether it has no point.
    pub fn is_empty(&self) -> bool {
        self.lo().iter().zip(self.hi()).any(|(lo, hi)| hi < lo)
    }

    /// The number of points; `u64::MAX` also if there are more.
    pub fn volume(&self) -> u64 {
        if self.is_empty() { 0 } else { self.extents().fold(1, u64::saturating_mul) }
    }

    /// Whether `point` is one of its points.
    pub fn contains_point(&self, point: &[i64]) -> bool {
        let bounds = self.lo().iter().zip(self.hi());
        point.len() == self.rank() && point.iter().zip(bounds).all(|(at, (lo, hi))| lo <= at && at <= hi)
    }

    /// Whether every point of `other` is one of its points.
    pub fn contains(&self, other: &Rect) -> bool {
        self.rank() == other.rank()
            && (other.is_empty() || (self.contains_point(other.lo()) && self.contains_point(other.hi())))
    }

    /// The points of both; none if they differ in rank.
    pub fn intersection(&self, other: &Rect) -> Option<Rect> {
        if self.rank() != other.rank() {
            return None;
        }
        let lo = std::array::from_fn(|dim| self.lo[dim].max(other.lo[dim]));
        let hi = std::array::from_fn(|dim| self.hi[dim].min(other.hi[dim]));
        Some(Rect { lo, hi, rank: self.rank })
    }

    /// Whether the two share a point.
    pub fn overlaps(&self, other: &Rect) -> bool {
        self.intersection(other).is_some_and(|both| !both.is_empty())
    }
}

impl fmt::Display for Rect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (dim, (lo, hi)) in self.lo().iter().zip(self.hi()).enumerate() {
            let comma = if dim == 0 { "" } else { ", " };
            write!(f, "{comma}{lo}..={hi}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Rect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_the_number_line_are_points_like_others() {
        let all = Rect::new(&[i64::MIN], &[i64::MAX]).unwrap();
        assert_eq!((all.extent(0), all.volume()), (u64::MAX, u64::MAX));
        let last = Rect::sized(&[i64::MAX], &[1]).unwrap();
        assert_eq!((last.hi(), last.volume()), (&[i64::MAX][..], 1));
        assert!(all.contains(&last) && !last.contains(&all));
        assert_eq!(
            Rect::sized(&[i64::MAX], &[2]).unwrap_err().to_string(),
            "2 points from 9223372036854775807 on do not end within 64-bit coordinates; move the origin"
        );
        assert!(Rect::sized(&[i64::MIN], &[0]).is_err(), "nothing ends before the least coordinate");
    }

    #[test]
    fn an_intersection_has_the_points_of_both() {
        let a = Rect::new(&[-5, 0], &[5, 9]).unwrap();
        let b = Rect::new(&[3, -7], &[12, 4]).unwrap();
        assert_eq!(a.intersection(&b), Some(Rect::new(&[3, 0], &[5, 4]).unwrap()));
        assert_eq!(a.intersection(&b).unwrap().volume(), 15);
        let apart = Rect::new(&[6, 0], &[7, 9]).unwrap();
        assert!(a.intersection(&apart).unwrap().is_empty() && !a.overlaps(&apart));
        assert!(a.contains(&apart.intersection(&a).unwrap()), "nothing lies in everything");
        assert_eq!(a.intersection(&Rect::new(&[0], &[1]).unwrap()), None, "another rank");
    }

    #[test]
    fn a_rectangle_without_dimensions_is_one_point() {
        let point = Rect::new(&[], &[]).unwrap();
        assert_eq!((point.volume(), point.is_empty(), point.to_string().as_str()), (1, false, "[]"));
        assert_eq!(Rect::new(&[1, -2], &[3, 4]).unwrap().to_string(), "[1..=3, -2..=4]");
    }

    #[test]
    fn bounds_that_make_no_rectangle_are_named() {
        let text = |lo: &[i64], hi: &[i64]| Rect::new(lo, hi).unwrap_err().to_string();
        assert_eq!(
            text(&[0], &[0, 0]),
            "a rectangle from a point of 1 to one of 2 coordinates; give both the same number of coordinates"
        );
        assert_eq!(text(&[0; 7], &[0; 7]), "a rectangle of 7 dimensions; the most is 6, merge some");
    }
}
