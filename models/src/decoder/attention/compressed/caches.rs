//! Caches of compressed attention: which ones share slots, found once.

use crate::{CachePart, Compressor, DecoderConfig, KvPlan};

/// Kinds of entries and states, and those of each layer.
#[derive(Debug, Default)]
pub(super) struct CompressedCaches {
    pub(super) kinds: Vec<EntryKind>,
    pub(super) states: Vec<States>,
    /// Kinds of each layer, `[num_layers]`; `None` for a layer without entries.
    pub(super) layers: Vec<Option<LayerCaches>>,
}

/// A kind of entries: layers of one kind have the same slots for their entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EntryKind {
    pub(super) compressor: Compressor,
    /// Cache group of the entries.
    pub(super) group: usize,
    /// Number of entries per block.
    pub(super) block: u32,
}

/// A kind of states: layers of one kind have the same slots for their states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct States {
    pub(super) kind: usize,
    pub(super) group: usize,
    /// Number of tokens per block.
    pub(super) block: u32,
}

/// Indices of a layer's kinds of entries and states.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerCaches {
    pub(super) kind: usize,
    pub(super) states: usize,
    /// Index of the kind of the indexer's states; `states` if there is no indexer.
    pub(super) index_states: usize,
}

impl CompressedCaches {
    pub(super) fn new(config: &DecoderConfig, kv: &KvPlan) -> Self {
        let mut caches = Self::default();
        let compressors = config.compressed.iter().flat_map(|compressed| &compressed.compressors);
        for (layer, compressor) in compressors.enumerate() {
            let of_layer = compressor.map(|compressor| {
                let entries = kv.cache(layer, CachePart::Entries).expect("a compressor has entries");
                let block = entries.spec.block_size.get() / compressor.ratio;
                let kind = index(&mut caches.kinds, EntryKind { compressor, group: entries.group, block });
                let mut states = |part| {
                    let cache = kv.cache(layer, part)?;
                    let block = cache.spec.block_size.get();
                    Some(index(&mut caches.states, States { kind, group: cache.group, block }))
                };
                let main = states(CachePart::States).expect("a compressor has states");
                let index_states = states(CachePart::IndexStates).unwrap_or(main);
                LayerCaches { kind, states: main, index_states }
            });
            caches.layers.push(of_layer);
        }
        caches
    }
}

/// Returns the index of `item` in `list`, and adds it if it is new.
fn index<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    list.iter().position(|other| *other == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    })
}
