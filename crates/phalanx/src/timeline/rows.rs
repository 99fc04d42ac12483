//! Spans of a lane in rows, so that no two of a row overlap.
//!
//! Viewers draw a row as one line, and Perfetto drops what overlaps there without being nested.

use super::TimelineSpan;

/// The numbers of `spans` by row; within a row by start. As few rows as spans overlap at once, but at least one: a lane
/// in which nothing happens is shown as well.
pub(super) fn rows(spans: &[TimelineSpan]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|&idx| (spans[idx].start, spans[idx].duration()));
    let mut rows: Vec<(u64, Vec<usize>)> = vec![(0, Vec::new())];
    for idx in order {
        let (start, end) = (spans[idx].start, spans[idx].start.max(spans[idx].end));
        match rows.iter_mut().find(|(free_from, _)| *free_from <= start) {
            Some((free_from, row)) => {
                *free_from = end;
                row.push(idx);
            }
            None => rows.push((end, vec![idx])),
        }
    }
    rows.into_iter().map(|(_, row)| row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::SpanKind;

    fn span((start, end): (u64, u64)) -> TimelineSpan {
        let (name, layer) = (String::new(), String::new());
        TimelineSpan { name, layer, kind: SpanKind::Compute, start, end, bytes: 0, movement: None }
    }

    #[test]
    fn a_row_holds_what_does_not_overlap() {
        let spans = [(10, 20), (0, 10), (5, 12), (20, 20), (20, 30), (12, 13), (40, 35)].map(span);
        assert_eq!(rows(&spans), [vec![1, 0, 3, 4, 6], vec![2, 5]]);
        assert_eq!(rows(&[]), [Vec::<usize>::new()]);
    }
}
