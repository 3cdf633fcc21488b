//! The examples, run.

#[path = "../../examples/own_policy.rs"]
mod own_policy;

#[test]
fn a_policy_of_ones_own_is_measured() {
    insta::assert_snapshot!(own_policy::measure().unwrap().join("\n"), @"
    .....#......#..# density 0.19, recall 0.89: longest:block_size=4,blocks=3
    #....#.........# density 0.19, recall 0.89: quest:block_size=4,page_budget=3
    ");
}
