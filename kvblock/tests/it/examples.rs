//! The examples, run.

#[path = "../../examples/small_engine.rs"]
mod small_engine;

use small_engine::{Answer, Engine};

#[test]
fn the_second_request_finds_what_the_first_computed() {
    let mut engine = Engine::new().unwrap();
    let first = engine.answer(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 2).unwrap();
    assert_eq!(first, Answer { cached_tokens: 0, computed_tokens: 10, output: vec![45, 90] });
    let second = engine.answer(&[1, 2, 3, 4, 5, 6, 7, 8, 10], 2).unwrap();
    assert_eq!(second, Answer { cached_tokens: 8, computed_tokens: 2, output: vec![46, 92] });
}
