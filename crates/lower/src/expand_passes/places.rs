//! Where to compute the additions of a sum so that the fewest bytes move: dynamic programming over its tree.

/// A place, by its position in the table of bytes.
pub(super) type Place = usize;

/// A term of a sum: given, or the sum of two earlier terms. The last one is the whole sum.
pub(super) enum Term<T> {
    Given(T),
    Sum(usize, usize),
}

/// The place of every term such that the fewest bytes move until the last one is at `home`, or anywhere. `bytes[from][to]`
/// move when a term at `from` is needed at `to`. Of equally good places the one where the first addend lies is taken.
pub(super) fn cheapest(terms: &[Term<Place>], bytes: &[Vec<usize>], home: Option<Place>) -> Vec<Place> {
    // For every term and place, what moves until the term is there, if it is computed there; none if it cannot be.
    let mut costs: Vec<Vec<Option<usize>>> = Vec::with_capacity(terms.len());
    // Where the first addend of a term's first addend, and so on, lies.
    let mut first: Vec<Place> = Vec::with_capacity(terms.len());
    let brought = |cost: &[Option<usize>], first: Place, to: Option<Place>| {
        let reached = cost.iter().enumerate().filter_map(|(from, cost)| {
            Some((cost.as_ref()? + to.map_or(0, |to| bytes[from][to]), from != first, from))
        });
        reached.min().map(|(cost, _, from)| (cost, from)).expect("every term can be somewhere")
    };
    for term in terms {
        let (cost, lies) = match *term {
            Term::Given(own) => ((0..bytes.len()).map(|place| (place == own).then_some(0)).collect(), own),
            Term::Sum(left, right) => {
                let at = |place| {
                    let part = |term: usize| brought(&costs[term], first[term], Some(place)).0;
                    Some(part(left) + part(right))
                };
                ((0..bytes.len()).map(at).collect(), first[left])
            }
        };
        costs.push(cost);
        first.push(lies);
    }
    let mut places: Vec<Place> = vec![0; terms.len()];
    let mut needed: Vec<Option<Place>> = vec![home; terms.len()];
    for (index, term) in terms.iter().enumerate().rev() {
        places[index] = brought(&costs[index], first[index], needed[index]).1;
        if let Term::Sum(left, right) = *term {
            needed[left] = Some(places[index]);
            needed[right] = Some(places[index]);
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use phalanx_testkit::Rng;

    use super::*;

    /// What moves when every term is at its place.
    fn cost(terms: &[Term<Place>], bytes: &[Vec<usize>], home: Option<Place>, places: &[Place]) -> usize {
        let mut total = home.map_or(0, |home| bytes[*places.last().unwrap()][home]);
        for (term, &place) in terms.iter().zip(places) {
            match *term {
                Term::Given(own) => assert_eq!(own, place, "what is given lies where it lies"),
                Term::Sum(left, right) => total += bytes[places[left]][place] + bytes[places[right]][place],
            }
        }
        total
    }

    /// The least that moves, by trying all places of all sums.
    fn least(terms: &[Term<Place>], bytes: &[Vec<usize>], home: Option<Place>) -> usize {
        let mut all = vec![Vec::new()];
        for term in terms {
            let choices = match *term {
                Term::Given(own) => own..own + 1,
                Term::Sum(..) => 0..bytes.len(),
            };
            all = all.iter().flat_map(|list| choices.clone().map(|at| [&list[..], &[at]].concat())).collect();
        }
        all.iter().map(|places| cost(terms, bytes, home, places)).min().unwrap()
    }

    #[test]
    fn no_other_choice_moves_fewer_bytes() {
        for seed in 0..300 {
            let rng = &mut Rng::new(seed);
            let count = 1 + rng.below(4);
            let bytes: Vec<Vec<usize>> = (0..count)
                .map(|from| (0..count).map(|to| if from == to { 0 } else { rng.below(5) }).collect())
                .collect();
            let mut terms: Vec<_> = (0..2 + rng.below(3)).map(|_| Term::Given(rng.below(count))).collect();
            let mut open: Vec<usize> = (0..terms.len()).collect();
            while open.len() > 1 {
                let left = open.swap_remove(rng.below(open.len()));
                let right = open.swap_remove(rng.below(open.len()));
                terms.push(Term::Sum(left, right));
                open.push(terms.len() - 1);
            }
            let home = (!rng.once_in(3)).then(|| rng.below(count));
            let places = cheapest(&terms, &bytes, home);
            assert_eq!(cost(&terms, &bytes, home, &places), least(&terms, &bytes, home), "seed {seed}");
        }
    }

    /// Two branches whose sums may be anywhere: the first addend's place, as if nothing was to be saved.
    #[test]
    fn equal_choices_leave_the_sum_where_the_first_addend_lies() {
        let bytes = vec![vec![0, 4, 4], vec![4, 0, 4], vec![4, 4, 0]];
        let terms = [Term::Given(1), Term::Given(2), Term::Sum(0, 1)];
        assert_eq!(cheapest(&terms, &bytes, Some(0)), [1, 2, 1]);
        assert_eq!(cheapest(&terms, &bytes, Some(2)), [1, 2, 2]);
        assert_eq!(cheapest(&terms, &bytes, None), [1, 2, 1]);
    }
}
