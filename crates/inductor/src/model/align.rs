//! One estimate for all ranks: where ranks measure for themselves, they would order collectives differently and wait for
//! each other forever.

use crate::mode::PassMode;

/// Why estimates cannot be aligned.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are named by the messages")]
pub enum AlignError {
    /// This rank's estimates are not among those given.
    #[error("rank {rank} is not among the {ranks} ranks that give estimates")]
    Rank { rank: usize, ranks: usize },
    /// The ranks do not have the same nodes.
    #[error(
        "rank {rank} gives {found} estimates where {needed} are needed; all ranks must have the same nodes"
    )]
    Ragged { rank: usize, found: usize, needed: usize },
    /// An estimate that is none.
    #[error("rank {rank} estimates {value} ns for node {node}; it must be a number of at least 0")]
    Time { rank: usize, node: usize, value: f64 },
}

/// The estimates that rank `rank` goes on with. `runtimes` has a list for every rank, `mm_like` says which nodes are
/// matrix products.
///
/// D9: the reference aligns matrix products only and rounds to 32 bits, its newer version rounds all nodes and keeps its
/// own values where the ranks' nodes differ. Repaired, every node gets the exact median over all ranks. The median of
/// an even number of values is the lower of the two in the middle, everywhere.
pub fn align(
    runtimes: &[Vec<f64>],
    mm_like: &[bool],
    rank: usize,
    mode: PassMode,
) -> Result<Vec<f64>, AlignError> {
    let own = runtimes.get(rank).ok_or(AlignError::Rank { rank, ranks: runtimes.len() })?;
    for (rank, row) in runtimes.iter().enumerate() {
        let is_time = |value: &f64| value.is_finite() && *value >= 0.0;
        if let Some(node) = row.iter().position(|value| !is_time(value)) {
            return Err(AlignError::Time { rank, node, value: row[node] });
        }
    }
    let needed = mm_like.len();
    if let Some(rank) = runtimes.iter().position(|row| row.len() != needed) {
        return match mode {
            PassMode::Newer => Ok(own.clone()),
            _ => Err(AlignError::Ragged { rank, found: runtimes[rank].len(), needed }),
        };
    }
    let aligned = own.iter().zip(mm_like).enumerate().map(|(node, (&value, &is_mm))| match mode {
        PassMode::Reference if !is_mm => value,
        PassMode::Reference | PassMode::Newer => f64::from(lower_median(runtimes, node) as f32),
        PassMode::Fixed => lower_median(runtimes, node),
    });
    Ok(aligned.collect())
}

/// The lower median of what the ranks, at least one, say of `node`.
fn lower_median(runtimes: &[Vec<f64>], node: usize) -> f64 {
    let mut values: Vec<f64> = runtimes.iter().map(|row| row[node]).collect();
    let middle = (values.len() - 1) / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: [[f64; 2]; 4] = [[0.1, 4.0], [0.3, 1.0], [0.2, 3.0], [0.4, 2.0]];

    fn rows() -> Vec<Vec<f64>> {
        VALUES.map(Vec::from).to_vec()
    }

    #[test]
    fn only_repaired_alignment_is_exact_and_covers_all_nodes() {
        let aligned = |mode| align(&rows(), &[true, false], 0, mode).unwrap();
        assert_eq!(
            aligned(PassMode::Reference),
            [f64::from(0.2_f32), 4.0],
            "D9: rounded, and one node is left out"
        );
        assert_eq!(aligned(PassMode::Newer), [f64::from(0.2_f32), 2.0]);
        assert_eq!(aligned(PassMode::Fixed), [0.2, 2.0]);
    }

    #[test]
    fn ranks_with_other_nodes_are_refused_unless_the_newer_version_is_asked_for() {
        let mut rows = rows();
        rows[2].pop();
        let aligned = |mode| align(&rows, &[true, false], 1, mode);
        let ragged = AlignError::Ragged { rank: 2, found: 1, needed: 2 };
        assert_eq!(aligned(PassMode::Reference), Err(ragged.clone()));
        assert_eq!(aligned(PassMode::Fixed), Err(ragged));
        assert_eq!(aligned(PassMode::Newer), Ok(vec![0.3, 1.0]));
    }

    #[test]
    fn a_rank_that_is_not_there_and_a_time_that_is_none_are_errors() {
        assert_eq!(
            align(&rows(), &[true; 2], 4, PassMode::Fixed),
            Err(AlignError::Rank { rank: 4, ranks: 4 })
        );
        let rows = [vec![1.0, -2.0]];
        let time = AlignError::Time { rank: 0, node: 1, value: -2.0 };
        assert_eq!(align(&rows, &[true; 2], 0, PassMode::Fixed), Err(time));
    }
}
