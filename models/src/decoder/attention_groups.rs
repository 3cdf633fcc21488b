//! Attention groups: layers whose attention reads the same rows, since they share a block table and a mask.

use crate::{DecoderConfig, KvPlan, Reach};

/// Block table and mask of the layers of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AttentionGroup {
    pub(super) kv_group: usize,
    pub(super) reach: Reach,
    /// Number of tokens per block.
    pub(super) block_size: u32,
}

/// Distinct attention groups, and the group of each layer.
#[derive(Clone, Debug)]
pub(super) struct AttentionGroups {
    pub(super) all: Vec<AttentionGroup>,
    pub(super) of_layers: Vec<usize>,
}

impl AttentionGroups {
    pub(super) fn new(config: &DecoderConfig, kv: &KvPlan) -> Self {
        let mut all: Vec<AttentionGroup> = Vec::new();
        let mut of_layers = Vec::with_capacity(config.layers.len());
        for (layer, of_layer) in config.layers.iter().enumerate() {
            let cache = kv.of_layer(layer);
            let block_size = cache.spec.block_size.get();
            let attn_group = AttentionGroup { kv_group: cache.group, reach: of_layer.reach, block_size };
            let index = all.iter().position(|other| *other == attn_group);
            of_layers.push(index.unwrap_or_else(|| {
                all.push(attn_group);
                all.len() - 1
            }));
        }
        Self { all, of_layers }
    }

    /// Returns the KV cache group of layers with full attention; all of these select for the same rows.
    pub(super) fn full_group(&self) -> usize {
        self.all
            .iter()
            .find(|attn_group| attn_group.reach == Reach::Full)
            .map_or(0, |attn_group| attn_group.kv_group)
    }

    /// Returns the attention group of a layer.
    pub(super) fn of_layer(&self, layer: usize) -> &AttentionGroup {
        &self.all[self.of_layers[layer]]
    }
}
