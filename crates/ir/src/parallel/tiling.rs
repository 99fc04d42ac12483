//! How a tensor is cut, copied and summed: types, coordinates, rectangles.

use std::fmt;

use crate::graph::Label;
use crate::text::{Cursor, ParseError};
use crate::{DType, Shape, TensorType};

/// The most tiles a tensor may have, partial sums and copies counted.
pub const MAX_TILES: usize = 1 << 20;

/// One dimension of a tiled tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    /// The global extent.
    pub size: usize,
    /// Into how many equal blocks it is cut.
    pub degree: usize,
}

/// Element type and tiling of a value; prints as `f32[64/2, 10] sum 4 copy 3`, degrees of one left out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ParallelType {
    dtype: DType,
    dims: Vec<Dim>,
    sum_degree: usize,
    copy_degree: usize,
}

/// Which tile: the place in each degree. Tiles are numbered in the order sum, copy, dims; the last runs fastest.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Coord {
    /// Which partial sum.
    pub sum: usize,
    /// Which copy.
    pub copy: usize,
    /// Which block of every dimension.
    pub dims: Vec<usize>,
}

impl ParallelType {
    /// A tiling; `None` if a degree is zero or does not divide its extent, or there are more than [`MAX_TILES`] tiles.
    pub fn new(dtype: DType, dims: Vec<Dim>, sum_degree: usize, copy_degree: usize) -> Option<Self> {
        let legal = dims.iter().all(|dim| dim.degree > 0 && dim.size.is_multiple_of(dim.degree));
        let tiles = count(&dims, sum_degree, copy_degree);
        (legal && (1..=MAX_TILES).contains(&tiles)).then_some(ParallelType {
            dtype,
            dims,
            sum_degree,
            copy_degree,
        })
    }

    /// The whole tensor as one tile.
    pub fn whole(ty: &TensorType) -> Self {
        let dims = ty.shape.dims().iter().map(|&size| Dim { size, degree: 1 }).collect();
        ParallelType { dtype: ty.dtype, dims, sum_degree: 1, copy_degree: 1 }
    }

    /// A tensor cut into these many blocks along its dimensions; `None` if one does not divide its extent or there is
    /// not one for each.
    pub fn tiled(ty: &TensorType, degrees: &[usize], sum_degree: usize, copy_degree: usize) -> Option<Self> {
        let sizes = ty.shape.dims();
        let dims = sizes.iter().zip(degrees).map(|(&size, &degree)| Dim { size, degree }).collect();
        (sizes.len() == degrees.len()).then(|| ParallelType::new(ty.dtype, dims, sum_degree, copy_degree))?
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents and degrees.
    pub fn dims(&self) -> &[Dim] {
        &self.dims
    }

    /// Into how many blocks dimension `dim` is cut.
    pub fn degree(&self, dim: usize) -> usize {
        self.dims[dim].degree
    }

    /// Of how many tensors it is the sum.
    pub fn sum_degree(&self) -> usize {
        self.sum_degree
    }

    /// How many identical copies there are.
    pub fn copy_degree(&self) -> usize {
        self.copy_degree
    }

    /// The tensor's type without its tiling.
    pub fn global(&self) -> TensorType {
        TensorType::new(self.dtype, Shape::new(self.dims.iter().map(|dim| dim.size).collect::<Vec<_>>()))
    }

    /// The type of one tile.
    pub fn tile(&self) -> TensorType {
        let dims: Vec<_> = self.dims.iter().map(|dim| dim.size / dim.degree).collect();
        TensorType::new(self.dtype, Shape::new(dims))
    }

    /// How many tiles there are, partial sums and copies counted.
    pub fn tiles(&self) -> usize {
        count(&self.dims, self.sum_degree, self.copy_degree)
    }

    /// The type of this value's gradient: an additive part for every copy, a copy for every partial sum.
    pub fn dual(&self) -> ParallelType {
        let (sum_degree, copy_degree) = (self.copy_degree, self.sum_degree);
        ParallelType { dtype: DType::F32, dims: self.dims.clone(), sum_degree, copy_degree }
    }

    /// The same tiling of other elements.
    pub fn of(&self, dtype: DType) -> ParallelType {
        ParallelType { dtype, ..self.clone() }
    }

    /// The coordinates of tile number `index`.
    pub fn coord(&self, mut index: usize) -> Coord {
        let mut next = |degree: usize| {
            let place = index % degree;
            index /= degree;
            place
        };
        let mut dims: Vec<_> = self.dims.iter().rev().map(|dim| next(dim.degree)).collect();
        dims.reverse();
        let copy = next(self.copy_degree);
        Coord { sum: next(self.sum_degree), copy, dims }
    }

    /// The number of the tile at `coord`.
    pub fn index(&self, coord: &Coord) -> usize {
        let outer = coord.sum * self.copy_degree + coord.copy;
        self.dims.iter().zip(&coord.dims).fold(outer, |index, (dim, place)| index * dim.degree + place)
    }

    /// The global coordinates of the first element of the tile at `coord`.
    pub fn origin(&self, coord: &Coord) -> Vec<usize> {
        self.dims.iter().zip(&coord.dims).map(|(dim, place)| dim.size / dim.degree * place).collect()
    }
}

/// How many tiles these degrees make; more than can be counted are `usize::MAX`.
fn count(dims: &[Dim], sum_degree: usize, copy_degree: usize) -> usize {
    let degrees = dims.iter().map(|dim| dim.degree).chain([sum_degree, copy_degree]);
    degrees.fold(1, usize::saturating_mul)
}

impl fmt::Display for ParallelType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self
            .dims
            .iter()
            .map(|dim| match dim.degree {
                1 => dim.size.to_string(),
                degree => format!("{}/{degree}", dim.size),
            })
            .collect();
        write!(f, "{}[{}]", self.dtype, dims.join(", "))?;
        if self.sum_degree > 1 {
            write!(f, " sum {}", self.sum_degree)?;
        }
        if self.copy_degree > 1 {
            write!(f, " copy {}", self.copy_degree)?;
        }
        Ok(())
    }
}

impl Label for ParallelType {
    fn element_type(&self) -> Option<DType> {
        Some(self.dtype())
    }

    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, ParseError> {
        let dtype = cursor.parse("an element type (f32, bf16, i32, i64, bool)")?;
        cursor.expect("[")?;
        let dims = if cursor.peek("]") { Vec::new() } else { cursor.list(parse_dim)? };
        cursor.expect("]")?;
        let sum = if cursor.eat("sum ") { cursor.parse("a sum degree")? } else { 1 };
        let copy = if cursor.eat("copy ") { cursor.parse("a copy degree")? } else { 1 };
        if count(&dims, sum, copy) > MAX_TILES {
            return cursor.error(format!("it has more than {MAX_TILES} tiles; use smaller degrees"));
        }
        let Some(ty) = ParallelType::new(dtype, dims, sum, copy) else {
            return cursor.error("a degree is zero or does not divide its extent");
        };
        cursor.bounded(ty.global())?;
        Ok(ty)
    }
}

fn parse_dim(cursor: &mut Cursor<'_>) -> Result<Dim, ParseError> {
    let word = cursor.word()?;
    let (size, degree) = word.split_once('/').unwrap_or((word, "1"));
    match (size.parse(), degree.parse()) {
        (Ok(size), Ok(degree)) => Ok(Dim { size, degree }),
        _ => cursor.error(format!("`{word}` is not an extent like 64 or 64/2")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_number_all_tiles_in_order() {
        let ty = TensorType::f32([12, 8]);
        let ty = ParallelType::tiled(&ty, &[3, 2], 2, 4).expect("the degrees divide");
        let coords: Vec<_> = (0..ty.tiles()).map(|index| ty.coord(index)).collect();
        assert!(coords.is_sorted());
        assert!(coords.iter().enumerate().all(|(index, coord)| ty.index(coord) == index));
        assert_eq!(ty.origin(&ty.coord(5)), [8, 4]);
        assert_eq!(ty.dual().dual(), ty);
    }
}
