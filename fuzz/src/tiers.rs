//! Texts of `--kv-tiers`.

use prefetch::spec::TierSpec;

/// Reads a text; what is taken has a text of its own, which says the same.
pub fn run(bytes: &[u8]) -> bool {
    let Ok(spec) = String::from_utf8_lossy(bytes).parse::<TierSpec>() else { return false };
    let again = spec.to_string().parse::<TierSpec>();
    assert!(again.as_ref().is_ok_and(|again| *again == spec), "{spec:?}: {again:?}");
    true
}
