//! Events on the wire, as vLLM 0.33 writes them: msgpack, a batch as an array, an event as a map with its `type`.

use pagoda::kv_events::{
    AttentionKind, BlockHash, CacheEvent, ExtraKey, GroupId, KvCacheGroup, PageLayout, StoredBlocks,
};
use rmp_serde::encode::Error;
use serde::{Serialize, Serializer};

use super::Batch;

/// An event. An empty field is nil if it has no default in vLLM; otherwise it is left out.
#[derive(Serialize)]
#[serde(tag = "type")]
enum Event<'e> {
    BlockStored(Stored<'e>),
    BlockRemoved { block_hashes: Vec<u64>, medium: &'static str, group_idx: u32 },
    AllBlocksCleared,
}

#[derive(Serialize)]
struct Stored<'e> {
    block_hashes: Vec<u64>,
    parent_block_hash: Option<u64>,
    token_ids: &'e [u32],
    block_size: u32,
    /// Number of a LoRA adapter, which vLLM keeps for readers of before `lora_name`.
    lora_id: Option<u32>,
    medium: &'static str,
    lora_name: Option<&'e str>,
    extra_keys: Vec<Option<Vec<Key<'e>>>>,
    group_idx: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_cache_spec_kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_cache_spec_sliding_window: Option<u32>,
}

struct Key<'e>(&'e ExtraKey);

impl Serialize for Key<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            ExtraKey::Adapter(text) | ExtraKey::Salt(text) => serializer.serialize_str(text),
            ExtraKey::Item { identifier, offset } => (identifier, offset).serialize(serializer),
            ExtraKey::Embeds(digest) => serializer.serialize_bytes(digest),
            _ => serializer.serialize_unit(),
        }
    }
}

/// The payload of a batch of engine `rank`.
pub(super) fn payload(batch: &Batch, groups: &[KvCacheGroup], rank: u16) -> Result<Vec<u8>, Error> {
    let mut events = Vec::new();
    for event in &batch.events {
        match event {
            CacheEvent::Stored(blocks) => events.push(Event::BlockStored(stored(blocks, groups))),
            CacheEvent::Removed { key, medium, .. } => {
                let (hash, medium, group) = (number(&key.hash), medium.as_str(), key.group.get());
                match events.last_mut() {
                    Some(Event::BlockRemoved { block_hashes, medium: last, group_idx })
                        if (*last, *group_idx) == (medium, group) =>
                    {
                        block_hashes.push(hash);
                    }
                    _ => events.push(Event::BlockRemoved {
                        block_hashes: vec![hash],
                        medium,
                        group_idx: group,
                    }),
                }
            }
            CacheEvent::AllCleared => events.push(Event::AllBlocksCleared),
            _ => {}
        }
    }
    let mut bytes = Vec::new();
    let mut serializer = rmp_serde::Serializer::new(&mut bytes).with_struct_map();
    (batch.ts, events, rank).serialize(&mut serializer)?;
    Ok(bytes)
}

fn stored<'e>(blocks: &'e StoredBlocks, groups: &[KvCacheGroup]) -> Stored<'e> {
    let (kind, window) = kind(groups, blocks.group);
    let keys = |index: usize| {
        let keys = blocks.extra_keys.get(index).filter(|keys| !keys.is_empty())?;
        Some(keys.iter().map(Key).collect())
    };
    Stored {
        block_hashes: blocks.hashes.iter().map(number).collect(),
        parent_block_hash: blocks.parent.as_ref().map(number),
        token_ids: &blocks.tokens,
        block_size: blocks.block_size.get(),
        lora_id: None,
        medium: blocks.medium.as_str(),
        lora_name: blocks.adapter.as_deref(),
        extra_keys: (0..blocks.hashes.len()).map(keys).collect(),
        group_idx: blocks.group.get(),
        kv_cache_spec_kind: kind,
        kv_cache_spec_sliding_window: window,
    }
}

/// The first 8 bytes of a hash, as a number. vLLM sends 64-bit numbers too, unless it is told to send bytes, and most
/// indexes take nothing else. Among a million blocks, the probability that two share a number is 3 in 10^8. A router
/// that confuses them at worst picks an engine that is not the best.
fn number(hash: &BlockHash) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *hash.as_bytes();
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// vLLM's name of the attention of a group, and its window in tokens.
fn kind(groups: &[KvCacheGroup], group: GroupId) -> (Option<&'static str>, Option<u32>) {
    let Some(spec) = groups.get(group.index()).map(|group| group.spec) else { return (None, None) };
    let latent = matches!(spec.layout, PageLayout::Latent { .. });
    match spec.kind {
        AttentionKind::Full { .. } => (Some(if latent { "mla_attention" } else { "full_attention" }), None),
        AttentionKind::SlidingWindow { window } => {
            (Some(if latent { "sliding_window_mla" } else { "sliding_window" }), Some(window))
        }
        AttentionKind::ChunkedLocal { .. } => (Some("chunked_local_attention"), None),
    }
}
