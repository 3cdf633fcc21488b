//! The examples, run with a tiny model.

#[path = "../../examples/logits.rs"]
mod logits;

use models::Checkpoint;

use super::decoder::tiny::{fixture, tiny};

#[test]
fn logits_of_a_prompt() {
    let prompt = &tiny().prompts[0];
    let checkpoint = Checkpoint::open(fixture("tiny-llama")).unwrap();
    let logits = logits::logits(&checkpoint, &prompt.ids).unwrap();
    let vocab = logits.len();
    let want = &prompt.logits[prompt.logits.len() - vocab..];
    let largest = |logits: &[f32]| (0..vocab).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    assert_eq!(largest(&logits), largest(want));
    assert!(logits.iter().zip(want).all(|(got, want)| (got - want).abs() < 0.05), "{logits:?}, not {want:?}");
}
