//! Caches of a model, and how they share block ids and memory.

mod compressed;
mod index_dtype;
mod options;

use attn_kernels::kernel::{KvDtype, KvLayout, KvShape, block_digest};
use kvblock::{AttentionKind, BlockSize, CacheLayout, KvCacheGroup, KvCacheSpec, LayoutOptions, PageLayout};
use prefetch::spill::SpillShape;
use smallvec::{SmallVec, smallvec};

pub use self::index_dtype::IndexDtype;
pub use self::options::{CachePart, KvOptions};

use crate::{DecoderConfig, IndexerConfig, ModelError};

/// A cache of one layer.
#[derive(Clone, Debug)]
pub struct LayerCache {
    /// The layer.
    pub layer: usize,
    /// Contents of the cache.
    pub part: CachePart,
    /// Size per block and reach.
    pub spec: KvCacheSpec,
    /// Index of the group whose block table maps the cache.
    pub group: usize,
    /// Index of its buffer.
    pub tensor: usize,
}

/// All caches of a model.
#[derive(Clone, Debug)]
pub struct KvPlan {
    /// Options that the plan was built with.
    pub options: KvOptions,
    /// Caches in the order of layers; [`CacheLayout`]'s layers are indices of this list.
    pub caches: Vec<LayerCache>,
    /// Groups and buffers.
    pub layout: CacheLayout,
}

impl KvPlan {
    /// Plans the caches of a model.
    ///
    /// # Errors
    /// [`ModelError::BlockSize`], [`ModelError::NoIndexer`] and [`ModelError::IndexWidth`] for a format of index keys that the
    /// model cannot have, [`ModelError::Launch`] for vectors of compressed attention that no kernel reads, and
    /// [`ModelError::Layout`] for caches that cannot share blocks.
    pub fn new(config: &DecoderConfig, options: KvOptions) -> Result<Self, ModelError> {
        let block_size = options.block_size;
        let block_size = config.nsa.map_or(block_size, |nsa| nsa.cache_block(block_size));
        let options = KvOptions { block_size, ..options };
        let size = BlockSize::new(block_size).filter(|_| block_size.is_power_of_two() && block_size >= 4);
        let size = size.ok_or(ModelError::BlockSize { block_size })?;
        match (config.indexer, options.index_dtype) {
            (None, Some(dtype)) => return Err(ModelError::NoIndexer { dtype }),
            (Some(IndexerConfig { head_dim, .. }), _)
                if options.of_index() == IndexDtype::Fp8 && !head_dim.is_power_of_two() =>
            {
                return Err(ModelError::IndexWidth { head_dim });
            }
            _ => {}
        }
        if let Some(compressed) = &config.compressed {
            options.vectors(config, compressed).validate()?;
        }
        let of_layer = |(layer, of_layer): (usize, &crate::LayerConfig)| {
            let parts = match &config.compressed {
                Some(compressed) => compressed::parts(config, compressed, layer, &options),
                None => parts(config, of_layer.reach.into(), size, &options),
            };
            parts.into_iter().map(move |(part, spec)| LayerCache { layer, part, spec, group: 0, tensor: 0 })
        };
        let mut caches: Vec<LayerCache> = config.layers.iter().enumerate().flat_map(of_layer).collect();
        let specs: Vec<KvCacheSpec> = caches.iter().map(|cache| cache.spec).collect();
        // Compressed attention keeps its blocks by windows without an end.
        let hybrid = options.recycle || config.compressed.is_some();
        let layout = if hybrid { LayoutOptions::HYBRID } else { LayoutOptions::UNIFORM };
        let layout = CacheLayout::plan(&specs, layout)?;
        for (group, of_group) in layout.groups.iter().enumerate() {
            for cache in &of_group.layers {
                caches[*cache].group = group;
                caches[*cache].spec.block_size = of_group.spec.block_size;
            }
        }
        for (index, tensor) in layout.tensors.iter().enumerate() {
            tensor.layers.iter().for_each(|cache| caches[*cache].tensor = index);
        }
        Ok(Self { options, caches, layout })
    }

    /// Returns the cache of a layer that holds `part`.
    #[must_use]
    pub fn cache(&self, layer: usize, part: CachePart) -> Option<&LayerCache> {
        self.caches.iter().find(|cache| cache.layer == layer && cache.part == part)
    }

    /// Returns the first cache of a layer, whose blocks its attention reads.
    ///
    /// # Panics
    /// When there is no such layer.
    #[must_use]
    pub fn of_layer(&self, layer: usize) -> &LayerCache {
        self.caches.iter().find(|cache| cache.layer == layer).expect("every layer has a cache")
    }

    /// Returns the tokens per block of each cache group.
    pub fn block_sizes(&self) -> impl ExactSizeIterator<Item = u32> {
        self.layout.groups.iter().map(|group| group.spec.block_size.get())
    }

    /// Returns the bytes of a block in all layers of its cache group.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.layout.bytes_per_block()
    }

    /// Returns the shape of the scratch space on disk for `blocks` blocks; `None` for caches whose buffers differ, which a ring
    /// does not support.
    #[must_use]
    pub fn spill_shape(&self, blocks: u32) -> Option<SpillShape> {
        let buffers = self.layout.tensors.iter().map(|tensor| {
            let names = names(&self.caches[*tensor.layers.first()?].spec);
            Some((names.len(), page_words(tensor.page_bytes, names)))
        });
        let buffers: Vec<(usize, usize)> = buffers.collect::<Option<_>>()?;
        let (names, words) = *buffers.first().filter(|first| buffers.iter().all(|other| other == *first))?;
        let regions = u32::try_from(names * buffers.len()).ok()?;
        Some(SpillShape { regions, blocks, block_bytes: words * 4 })
    }

    /// Returns the name of a cache group in reports: the mask of its layers, numbered if several groups have the same.
    #[must_use]
    pub fn group_name(&self, group: usize) -> String {
        let kind = |group: usize| {
            let KvCacheGroup { spec, layers, .. } = &self.layout.groups[group];
            let states = matches!(self.caches[layers[0]].part, CachePart::States | CachePart::IndexStates);
            let window = if states { "states" } else { "window" };
            match spec.kind {
                AttentionKind::Full { .. } => "full".to_owned(),
                AttentionKind::SlidingWindow { window: u32::MAX } => format!("{window}_all"),
                AttentionKind::SlidingWindow { window: tokens } => format!("{window}_{tokens}"),
                AttentionKind::ChunkedLocal { chunk } => format!("chunk_{chunk}"),
            }
        };
        let name = kind(group);
        match (0..group).filter(|other| kind(*other) == name).count() {
            0 => name,
            before => format!("{name}.{before}"),
        }
    }

    /// Returns the shape of keys and values.
    #[must_use]
    pub fn shape(&self, config: &DecoderConfig) -> KvShape {
        KvShape {
            num_kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            block_size: self.options.block_size,
            dtype: self.options.dtype,
            layout: KvLayout::Native,
        }
    }
}

/// Returns the caches of a layer.
fn parts(
    config: &DecoderConfig,
    kind: AttentionKind,
    size: BlockSize,
    options: &KvOptions,
) -> SmallVec<[(CachePart, KvCacheSpec); 2]> {
    let dtype = options.dtype;
    let latent = |bytes: u32| KvCacheSpec::latent(kind, size, bytes, dtype, 1);
    let Some(c) = &config.latent else {
        let mut spec = KvCacheSpec::new(kind, size, config.num_kv_heads, config.head_dim, dtype);
        if let PageLayout::KeyValue { per_token_head_scales, .. } = &mut spec.layout {
            *per_token_head_scales = dtype == KvDtype::Int8;
        }
        let mut parts = smallvec![(CachePart::KeyValue, spec)];
        if config.nsa.is_some() {
            let dtype = block_digest::dtype(dtype);
            let mean = config.num_kv_heads * config.head_dim * dtype.bytes();
            let spec = KvCacheSpec::latent(kind, size, mean, dtype, size.get());
            parts.extend([(CachePart::MeanKeys, spec), (CachePart::MeanValues, spec)]);
        }
        return parts;
    };
    let scales = if dtype.is_code() { 8 } else { 0 };
    let key = |indexer: IndexerConfig| latent(options.of_index().key_bytes(indexer.head_dim));
    let keys = config.indexer.map(|indexer| (CachePart::IndexKeys, key(indexer)));
    [(CachePart::Latent, latent(c.cached() * dtype.bytes() + scales))].into_iter().chain(keys).collect()
}

/// Returns the names of the buffers of a cache.
pub(super) fn names(spec: &KvCacheSpec) -> &'static [&'static str] {
    if spec.is_latent() { &["latent_cache"] } else { &["k_cache", "v_cache"] }
}

/// Returns the words of a block in each buffer of a cache.
pub(super) fn page_words(page_bytes: u64, names: &[&str]) -> usize {
    usize::try_from(page_bytes).expect("pages fit in memory") / 4 / names.len()
}
