//! Checks the claims about each figure on its data.

use forebay_planner::{Claim, claims2, claims3, claims4, claims56, figure2, figure3, figure4, figure56};

fn check(claims: &[Claim]) {
    for claim in claims {
        assert!(claim.holds, "figure {}: {}: {}", claim.figure, claim.text, claim.detail);
    }
}

#[test]
fn figure_2_distribution_and_bounds() {
    for seed in [1, 2, 5] {
        check(&claims2(&figure2(seed).unwrap()));
    }
}

#[test]
fn figure_3_idle_time_against_capacity() {
    check(&claims3(&figure3(1).unwrap()));
}

#[test]
fn figure_4_chain_against_discrete_events() {
    check(&claims4(&figure4(1, 1.0).unwrap(), &figure4(1, 4.0).unwrap()));
}

#[test]
fn figures_5_and_6_idle_and_quiet_time_against_the_threshold() {
    check(&claims56(&figure56(1).unwrap()));
}
