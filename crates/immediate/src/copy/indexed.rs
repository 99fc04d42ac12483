//! Gathers and scatters: rows by index.
//!
//! One instance is *walked* row by row, the other one is *indexed*: a gather walks its destination, a scatter its source.
//! Indices are read when the plan is done, as coordinates along the first dimension. All are checked before the first
//! byte is written: with one out of range nothing is. Of equal indices of a scatter the last one counts.

use phalanx_strided::{Nest, Place, Strides};

use super::{CopyError, CopyRefusal};
use crate::instance::{Instance, InstanceId};
use crate::layout::{Element, Layout};
use crate::space::Rect;

/// What is walked, what is indexed, and by what.
pub(super) struct Indexed<'a> {
    pub(super) walked: &'a Instance,
    pub(super) indexed: &'a Instance,
    pub(super) indices: &'a Instance,
}

/// The points that are touched.
pub(super) struct Domains {
    pub(super) walked: Rect,
    pub(super) indexed: Rect,
    pub(super) indices: Rect,
}

impl Indexed<'_> {
    /// The points of `rect` that all have; any row may be indexed. Nothing if there are none.
    pub(super) fn domains(&self, rect: &Rect) -> Result<Option<Domains>, CopyError> {
        let ranks = |instance: &Instance, rect: &Rect| CopyError::Ranks {
            instance: instance.id(),
            has: (*instance.rect()).into(),
            rect: (*rect).into(),
        };
        let own = self.indices.rect();
        let element = self.indices.layout().element();
        if own.rank() != 1 || !matches!(element, Element::I32 | Element::I64) {
            return Err(CopyError::Indices { instance: self.indices.id(), has: (*own).into(), element });
        }
        let walked = rect.intersection(self.walked.rect()).ok_or_else(|| ranks(self.walked, rect))?;
        if walked.rank() == 0 || self.indexed.rect().rank() != walked.rank() {
            return Err(ranks(self.indexed, rect));
        }
        let columns = with_rows(self.indexed.rect(), &walked);
        let walked =
            [columns, with_rows(&walked, own)].iter().try_fold(walked, |all, part| all.intersection(part));
        let walked = walked.ok_or_else(|| ranks(self.indexed, rect))?;
        let indexed = with_rows(&walked, self.indexed.rect());
        let indices =
            Rect::new(&walked.lo()[..1], &walked.hi()[..1]).map_err(|_| ranks(self.indices, rect))?;
        let is_empty = walked.is_empty() || indexed.is_empty();
        Ok((!is_empty).then_some(Domains { walked, indexed, indices }))
    }

    /// How rows are found.
    pub(super) fn rows(&self, domains: &Domains) -> Rows {
        let (rows, layout) = (&domains.walked, self.indices.layout());
        Rows {
            count: rows.extent(0) as usize,
            walked: self.walked.layout().strides()[0],
            indexed: self.indexed.layout().strides()[0],
            lo: domains.indexed.lo()[0],
            hi: domains.indexed.hi()[0],
            table: self.indexed.id(),
            indices: self.indices.id(),
            start: layout.offset_inside(domains.indices.lo()),
            stride: layout.strides()[0],
            is_wide: layout.element() == Element::I64,
        }
    }
}

/// The columns of one rectangle and the rows of another.
fn with_rows(columns: &Rect, rows: &Rect) -> Rect {
    let bounds = |rows: &[i64], columns: &[i64]| [&rows[..1], &columns[1..]].concat();
    Rect::new(&bounds(rows.lo(), columns.lo()), &bounds(rows.hi(), columns.hi()))
        .expect("as many coordinates as a rectangle has")
}

/// The loops over one row, from the first row of each domain on; the destination's layout is the first.
pub(super) fn row_nest(domains: [&Rect; 2], layouts: [&Layout; 2]) -> Nest {
    let extents: Strides = domains[0].extents().skip(1).map(|extent| extent as usize).collect();
    let place = |(domain, layout): (&Rect, &Layout)| Place {
        start: layout.offset_inside(domain.lo()),
        strides: layout.strides()[1..].iter().copied().collect(),
    };
    let places = domains.into_iter().zip(layouts).map(place).collect();
    Nest::new(layouts[0].element().bytes(), &extents, places)
}

/// How the rows of a gather or scatter are found.
#[derive(Debug)]
pub(super) struct Rows {
    count: usize,
    /// Bytes from one row to the next.
    walked: usize,
    indexed: usize,
    /// The rows that can be indexed, both included.
    lo: i64,
    hi: i64,
    table: InstanceId,
    indices: InstanceId,
    /// Where the first index lies, and bytes from one to the next.
    start: usize,
    stride: usize,
    is_wide: bool,
}

impl Rows {
    /// Calls `visit` with the bytes to the walked and to the indexed row, for every row; first checks all indices.
    ///
    /// # Safety
    /// `indices` is the address of the instance of indices, which is entered for reading.
    pub(super) unsafe fn visit(
        &self,
        indices: *const u8,
        mut visit: impl FnMut(usize, usize),
    ) -> Result<(), CopyRefusal> {
        for row in 0..self.count {
            // SAFETY: by the caller's promise, and there are `count` indices.
            unsafe { self.indexed_row(indices, row) }?;
        }
        for row in 0..self.count {
            // SAFETY: as above. It is checked again: bytes of the caller may have changed.
            let indexed = unsafe { self.indexed_row(indices, row) }?;
            visit(row * self.walked, indexed * self.indexed);
        }
        Ok(())
    }

    /// Which row index number `row` means, counted from the first that can be.
    ///
    /// # Safety
    /// As for `visit`; `row` is below the count.
    unsafe fn indexed_row(&self, indices: *const u8, row: usize) -> Result<usize, CopyRefusal> {
        // SAFETY: the index lies in the layout of the indices, which fits their region.
        let at = unsafe { indices.add(self.start + row * self.stride) };
        let value = match self.is_wide {
            // SAFETY: eight bytes of an element, anywhere.
            true => unsafe { at.cast::<i64>().read_unaligned() },
            // SAFETY: four bytes of an element, anywhere.
            false => i64::from(unsafe { at.cast::<i32>().read_unaligned() }),
        };
        let Rows { lo, hi, indices, table, .. } = *self;
        match (lo..=hi).contains(&value) {
            true => Ok(value.abs_diff(lo) as usize),
            false => Err(CopyRefusal::Index { position: row, indices, value, table, lo, hi }),
        }
    }
}
