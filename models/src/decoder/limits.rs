//! Sizes that bound buffers of several parts.

use crate::DecoderConfig;

/// Rows whose logits exist at one time when many are scored.
pub(super) const HEAD_ROWS: usize = 64;

/// Bytes of partitions of decode rows that exist at one time.
pub(super) const PARTIAL_BYTES: usize = 64 << 20;

/// Elements of what attention makes of one head.
pub(super) fn partial_dim(config: &DecoderConfig) -> u32 {
    config.latent.map_or(config.head_dim, |latent| latent.kv_rank)
}
