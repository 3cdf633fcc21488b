//! Sizes that bound buffers of several parts.

use crate::DecoderConfig;

/// Rows whose logits exist at one time when many are scored.
pub(super) const HEAD_ROWS: usize = 64;

/// Elements of what attention makes of one head.
pub(super) fn partial_dim(config: &DecoderConfig) -> u32 {
    config.latent.map_or(config.head_dim, |latent| latent.kv_rank)
}
