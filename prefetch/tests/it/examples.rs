//! The examples, run.

#[path = "../../examples/two_tiers.rs"]
mod two_tiers;

/// A block that was read once is in the host tier from then on.
#[test]
fn one_read_is_served_and_one_is_cancelled() {
    insta::assert_snapshot!(two_tiers::run().unwrap(), @"disk, then host; loaded 1; cancelled");
}
