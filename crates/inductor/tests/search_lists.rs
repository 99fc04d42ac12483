//! The search on lists of one device, against the orders of the reference's passes.

use crate::search_cases::lists::{Case, ROUNDING, lists};
use phalanx_inductor::search::{Fakes, ListFound, improve, improve_freely};

/// The order is what it says it is and stays within `limit`; nothing beats the bound.
fn check(case: &Case, found: &ListFound, limit: i64) {
    let times = case.graph.simulate(&found.order);
    assert!(case.graph.is_valid(&found.order, found.fakes == Fakes::Kept), "{}", case.id);
    assert_eq!(
        (found.makespan, found.peak),
        (times.makespan, case.graph.memory(&found.order).peak),
        "{}",
        case.id
    );
    assert!(found.peak <= limit, "{}: {} > {limit}", case.id, found.peak);
    assert!(found.lower_bound <= found.makespan * ROUNDING, "{}", case.id);
}

#[test]
fn with_the_orders_of_the_reference_as_seeds_none_of_them_is_better() {
    let mut breaks_fakes = 0;
    for case in lists() {
        let found = improve(&case.graph, Some(case.limit()), &case.seeds());
        check(&case, &found, case.limit());
        assert!(found.makespan <= case.best() * ROUNDING, "{}", case.id);
        if found.fakes == Fakes::Dropped {
            // Only where no order that keeps them is as short.
            let kept = improve(&case.graph, Some(case.limit()), &[]);
            assert!(kept.makespan > case.best() * ROUNDING || kept.peak > case.limit(), "{}", case.id);
            breaks_fakes += 1;
        }
    }
    assert_eq!(breaks_fakes, 9);
}

#[test]
fn without_seeds_only_orders_that_break_fake_dependencies_are_better() {
    for case in lists() {
        for (peak, makespan) in case.goals(|reference| case.graph.is_valid(&reference.order, true)) {
            let found = improve(&case.graph, Some(peak), &[]);
            check(&case, &found, peak);
            assert!(found.makespan <= makespan * ROUNDING, "{} at {peak}", case.id);
        }
    }
}

/// No order exposes less than 87.2 % of what the reference's best orders do, summed over all lists: that is the bound
/// even without a limit.
#[test]
fn without_fake_dependencies_every_order_of_the_reference_is_matched_at_its_peak() {
    let (mut exposed, mut bound, mut best) = (0.0, 0.0, 0.0);
    for case in lists() {
        for (peak, makespan) in case.goals(|_| true) {
            let found = improve_freely(&case.graph, Some(peak), &[]);
            check(&case, &found, peak);
            assert!(found.makespan <= makespan * ROUNDING, "{} at {peak}", case.id);
            if peak == case.limit() {
                let times = case.graph.simulate(&found.order);
                exposed += times.exposed;
                bound += found.lower_bound - (times.makespan - times.exposed);
                best += case.exposed();
            }
        }
    }
    assert!(exposed <= 0.895 * best, "{exposed} of {best}");
    assert!(bound > 0.87 * best, "{bound} of {best}");
}
