//! Minimum that a step must read and compute, to compare measured times with.

use std::iter::Sum;

use kvblock::AttentionKind;

use crate::{CachePart, DecoderConfig, KvPlan, LayerCache, Role, Size};

/// Stored bytes and elements of a model's tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightSizes {
    /// The token embedding. A step reads one row per token, or all of it if it is the output head too.
    pub embedding: Size,
    /// Routed experts of all layers.
    pub experts: Size,
    /// All other tensors, which every step reads.
    pub others: Size,
}

impl WeightSizes {
    /// Adds the size of a tensor.
    pub(super) fn add(&mut self, role: Role, size: Size) {
        let part = match role {
            Role::Embed => &mut self.embedding,
            _ if role.is_routed() => &mut self.experts,
            _ => &mut self.others,
        };
        part.bytes += size.bytes;
        part.elements += size.elements;
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.embedding.bytes + self.experts.bytes + self.others.bytes
    }
}

impl Sum for WeightSizes {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        let add = |a: Size, b: Size| Size { bytes: a.bytes + b.bytes, elements: a.elements + b.elements };
        parts.fold(Self::default(), |all, part| Self {
            embedding: add(all.embedding, part.embedding),
            experts: add(all.experts, part.experts),
            others: add(all.others, part.others),
        })
    }
}

/// Sizes of a model that determine its reads and operations.
pub(super) struct Roofline<'a> {
    pub(super) config: &'a DecoderConfig,
    pub(super) sizes: &'a WeightSizes,
    pub(super) kv: &'a KvPlan,
    /// Whether the decoder has the output head.
    pub(super) has_head: bool,
}

impl Roofline<'_> {
    /// Bytes that a decode step of `rows` sequences of `context` tokens must read: all weights once (for experts, those that
    /// random routing would reach), and the visible part of every sequence's cache. Sparse policies read less.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(super) fn decode_bytes(&self, rows: u32, context: u32) -> f64 {
        let WeightSizes { embedding, experts, others } = self.sizes;
        let routed = self.config.moe.as_ref().map_or(0.0, |moe| {
            let missed = 1.0 - f64::from(moe.top_k) / f64::from(moe.num_experts);
            1.0 - missed.powf(f64::from(rows))
        });
        let head = if self.config.tie_embeddings && self.has_head { embedding.bytes } else { 0 };
        let cache: f64 = self.kv.caches.iter().map(|cache| self.cache_bytes(cache, context)).sum();
        (others.bytes + head) as f64 + routed * experts.bytes as f64 + f64::from(rows) * cache
    }

    /// Bytes of one cache that the next token of a sequence reads.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn cache_bytes(&self, cache: &LayerCache, context: u32) -> f64 {
        let seen = match (cache.part, cache.spec.kind) {
            // A window of them, which others begin anew.
            (CachePart::States | CachePart::IndexStates, _) => 0,
            (_, AttentionKind::SlidingWindow { window }) => context.min(window),
            (_, AttentionKind::ChunkedLocal { chunk }) => context % chunk,
            (CachePart::Latent, AttentionKind::Full { .. }) => {
                self.config.indexer.map_or(context, |indexer| context.min(indexer.top_k))
            }
            (_, AttentionKind::Full { .. }) => context,
        };
        let spec = &cache.spec;
        f64::from(seen) * spec.unpadded_page_bytes() as f64 / f64::from(spec.block_size.get())
    }

    /// Multiplications and additions of a prefill of `tokens` tokens with dense causal attention. Logits are computed for one
    /// token, which is not counted.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(super) fn prefill_operations(&self, tokens: u32) -> f64 {
        let (c, tokens) = (&self.config, f64::from(tokens));
        let routed = c.moe.as_ref().map_or(0.0, |moe| f64::from(moe.top_k) / f64::from(moe.num_experts));
        let head = match self.has_head && !c.tie_embeddings {
            true => u64::from(c.vocab_size) * u64::from(c.hidden_size),
            false => 0,
        };
        let weights =
            (self.sizes.others.elements - head) as f64 + routed * self.sizes.experts.elements as f64;
        let value_dim = c.latent.map_or(c.head_dim, |latent| latent.value_dim);
        let a_key = 2.0 * f64::from(c.num_heads * (c.head_dim + value_dim));
        let attention = |cache: &LayerCache| match (cache.part, cache.spec.kind) {
            (CachePart::KeyValue | CachePart::Latent, AttentionKind::Full { .. }) => tokens / 2.0,
            (CachePart::KeyValue | CachePart::Latent, AttentionKind::SlidingWindow { window }) => {
                f64::from(window).min(tokens / 2.0)
            }
            (CachePart::KeyValue | CachePart::Latent, AttentionKind::ChunkedLocal { chunk }) => {
                f64::from(chunk).min(tokens) / 2.0
            }
            _ => 0.0,
        };
        let keys: f64 = self.kv.caches.iter().map(attention).sum();
        tokens * (2.0 * weights + a_key * keys)
    }
}
