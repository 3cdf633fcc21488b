//! The examples, run.

#[path = "../../examples/timeline.rs"]
mod timeline;

#[test]
fn a_timeline_of_three_requests() {
    insta::assert_snapshot!(timeline::simulate().unwrap(), @"
    q0 |P8   |P2   |D1   |D1   |D1   |D1   |D1$  |     |     |     |     |     |
    q1 |     |+4P6 |P4   |D1   |D1   |D1$  |     |     |     |     |     |     |
    q2 |     |     |+4P3 |D1   |x    |     |+4P5 |D1   |D1   |D1   |D1   |D1$  |
    ");
}
