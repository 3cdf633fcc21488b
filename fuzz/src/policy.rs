//! SPECs of sparse-attention policies.

use sparse_select::{Heads, Registry, Spec};

const HEADS: usize = 2;
const TOKENS: usize = 70;
const DIM: usize = 8;

/// Builds the policy that a text names, and runs it on a chunk and on a decode step.
pub fn run(bytes: &[u8]) -> bool {
    let Ok(spec) = String::from_utf8_lossy(bytes).parse::<Spec>() else { return false };
    let again = spec.to_string().parse::<Spec>();
    assert!(again.as_ref().is_ok_and(|again| *again == spec), "{spec:?}: {again:?}");
    let registry = Registry::builtin();
    if registry.build(&spec).is_err() {
        return false;
    }
    let data: Vec<f32> =
        (0..HEADS * TOKENS * DIM).map(|i| ((i * 7919 % 997) as f32 - 500.0) / 250.0).collect();
    let heads = |name, tokens| {
        let data = &data[..HEADS * tokens * DIM];
        Heads::new(name, data, [HEADS, tokens, DIM]).expect("as many numbers as the shape says")
    };
    for queries in [1, 20] {
        let outcome = sparse_select::select(&registry, &spec, heads("q", queries), heads("k", TOKENS));
        assert!(
            outcome.is_err() || outcome.is_ok_and(|outcome| (0.0..=1.0).contains(&outcome.density)),
            "{spec}"
        );
    }
    true
}
