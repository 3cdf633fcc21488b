//! Tensors of a configuration that was read.

use models::DecoderConfig;

/// Uses what a configuration says of rotations and tensors.
pub fn use_shapes(config: &DecoderConfig) {
    assert!(config.rope.inv_freq().iter().all(|freq| freq.is_finite()));
    let elements = |shape: Vec<usize>| shape.into_iter().try_fold(1_usize, usize::checked_mul);
    for role in config.tensors() {
        assert!(elements(config.shape(role)).is_some(), "{role:?}");
    }
}
