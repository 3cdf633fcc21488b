//! Plans cache groups, and the buffers that groups share, from the specs of all layers.
//!
//! One pool of block ids serves every group, so a block must cost the same bytes whichever group takes it:
//! groups get equally many layers with equal pages, and the i-th layers of all groups live in one buffer
//! (vLLM v1 hybrid allocator).

mod v4;

pub use v4::tuples_per_group;

use derive_setters::Setters;

use crate::config::KvCacheGroup;
use crate::error::LayoutError;
use crate::id::BlockSize;
use crate::spec::{AttentionKind, KvCacheSpec, PageLayout};

/// A buffer with one page for each block id. Layers that share the buffer are in different groups, so no two of these
/// layers ever own the same block.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CacheTensor {
    /// Number of bytes of a page.
    pub page_bytes: u64,
    /// Layers that use the buffer, by index in the list of specs. Empty for a buffer that exists only as padding.
    pub layers: Vec<usize>,
}

/// Assignment of layers to block ids and memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CacheLayout {
    /// Groups of layers; each sequence has one block table per group. A group's spec has the kind and block
    /// size of all its layers, and the page size of the first.
    pub groups: Vec<KvCacheGroup>,
    /// Buffers; together they are the cache.
    pub tensors: Vec<CacheTensor>,
}

/// Options of [`CacheLayout::plan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Setters)]
#[non_exhaustive]
pub struct LayoutOptions {
    /// Let each attention kind free blocks that it no longer reaches. Off: every layer is stored like full
    /// attention.
    pub hybrid: bool,
    /// A layer of the draft model, whose group recomputes one block of every hit. Library only: the engine runs no draft
    /// model.
    #[setters(strip_option)]
    pub eagle_layer: Option<usize>,
}

impl LayoutOptions {
    /// Every kind frees the blocks out of its reach, and there is no draft model.
    pub const HYBRID: Self = Self { hybrid: true, eagle_layer: None };
    /// Every layer is stored like full attention, and there is no draft model.
    pub const UNIFORM: Self = Self { hybrid: false, eagle_layer: None };
}

impl Default for LayoutOptions {
    fn default() -> Self {
        Self::HYBRID
    }
}

impl CacheLayout {
    /// Groups the layers with these specs.
    ///
    /// ```
    /// use kvblock::{AttentionKind, BlockSize, CacheLayout, KvCacheSpec, KvDtype, LayoutOptions};
    ///
    /// // Twelve layers: every sixth sees all tokens, and the others see the last 512.
    /// let window = AttentionKind::SlidingWindow { window: 512 };
    /// let size = BlockSize::new(16).unwrap();
    /// let kind = |layer: u32| if layer % 6 == 5 { AttentionKind::FULL } else { window };
    /// let spec = |layer| KvCacheSpec::new(kind(layer), size, 4, 256, KvDtype::F16);
    /// let specs: Vec<KvCacheSpec> = (0..12).map(spec).collect();
    ///
    /// let layout = CacheLayout::plan(&specs, LayoutOptions::HYBRID)?;
    /// let layers: Vec<usize> = layout.groups.iter().map(|group| group.layers.len()).collect();
    /// assert_eq!(layers, [2; 6]); // Two layers take a page each of every block.
    /// assert_eq!(layout.bytes_per_block(), 2 * specs[0].page_bytes());
    /// # Ok::<(), kvblock::LayoutError>(())
    /// ```
    ///
    /// Layers of one kind and block size form one group. Otherwise, small pages grow to the size of the
    /// largest; the group size is the smallest number of layers that share a spec (or the largest, if that is
    /// less than 1.5 times the smallest: a few unused places then cost less than another group); and the
    /// layers of each spec are dealt into groups of that size. Compressed attention with sliding-window
    /// latents follows [its own rule](crate::tuples_per_group).
    ///
    /// # Errors
    /// [`LayoutError`] names the layer whose page does not divide the largest, or says why the specs cannot
    /// form one group.
    pub fn plan(specs: &[KvCacheSpec], options: LayoutOptions) -> Result<Self, LayoutError> {
        let specs = if options.hybrid { specs.to_vec() } else { specs.iter().map(as_full).collect() };
        if specs.is_empty() {
            return Ok(Self::default());
        }
        let mut layout = match merge_specs(&specs) {
            Ok(merged) => Self::one_group(&specs, merged),
            Err(error) if !options.hybrid => return Err(error),
            Err(_) if specs.iter().any(is_window_latent) => v4::plan(&specs)?,
            Err(_) => Self::shared(&unify_pages(&specs)?),
        };
        for group in &mut layout.groups {
            group.eagle = options.eagle_layer.is_some_and(|layer| group.layers.contains(&layer));
        }
        Ok(layout)
    }

    /// A layout in which all layers share block tables and each has its own buffer.
    fn one_group(specs: &[KvCacheSpec], merged: KvCacheSpec) -> Self {
        let tensor = |(layer, spec): (usize, &KvCacheSpec)| CacheTensor {
            page_bytes: spec.page_bytes(),
            layers: vec![layer],
        };
        let group = KvCacheGroup::new(merged, (0..specs.len()).collect());
        Self { groups: vec![group], tensors: specs.iter().enumerate().map(tensor).collect() }
    }

    /// A layout with groups of equally many layers, for specs with equal pages.
    fn shared(specs: &[KvCacheSpec]) -> Self {
        let types = layers_by(specs, |spec| *spec);
        let sizes = types.iter().map(|(_, layers)| layers.len());
        let (min, max) = sizes.fold((usize::MAX, 0), |(min, max), n| (min.min(n), max.max(n)));
        let group_size = if 2 * max < 3 * min { max } else { min };
        let mut groups = Vec::new();
        for (spec, layers) in types {
            let num_groups = layers.len().div_ceil(group_size);
            for first in 0..num_groups {
                let layers = layers.iter().copied().skip(first).step_by(num_groups).collect();
                groups.push(KvCacheGroup::new(spec, layers));
            }
        }
        let tensor = |place: usize| CacheTensor {
            page_bytes: specs[0].page_bytes(),
            layers: groups.iter().filter_map(|group| group.layers.get(place).copied()).collect(),
        };
        let tensors = (0..group_size).map(tensor).collect();
        Self { groups, tensors }
    }

    /// Bytes that one block id costs over all buffers.
    #[must_use]
    pub fn bytes_per_block(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.page_bytes).sum()
    }
}

/// Layer indices by a key of their spec, in order of first appearance.
pub(crate) fn layers_by<K: PartialEq>(
    specs: &[KvCacheSpec],
    key: impl Fn(&KvCacheSpec) -> K,
) -> Vec<(K, Vec<usize>)> {
    let mut found: Vec<(K, Vec<usize>)> = Vec::new();
    for (layer, spec) in specs.iter().enumerate() {
        let key = key(spec);
        match found.iter_mut().find(|(other, _)| *other == key) {
            Some((_, layers)) => layers.push(layer),
            None => found.push((key, vec![layer])),
        }
    }
    found
}

/// Merges the specs of layers that can share block tables: equal block sizes, and equal kinds; full attention may
/// carry at most one window or one chunk. Pages may differ; the first layer's is kept.
///
/// # Errors
/// [`LayoutError`] tells what differs.
pub fn merge_specs(specs: &[KvCacheSpec]) -> Result<KvCacheSpec, LayoutError> {
    let mut merged = *specs.first().ok_or(LayoutError::NoLayers)?;
    for (layer, spec) in specs.iter().enumerate() {
        if spec.block_size != merged.block_size {
            let (expected, found) = (merged.block_size.get(), spec.block_size.get());
            return Err(LayoutError::BlockSizes { layer, found, expected });
        }
        if let (PageLayout::Latent { dtype: a, .. }, PageLayout::Latent { dtype: b, .. }) =
            (merged.layout, spec.layout)
            && a != b
        {
            return Err(LayoutError::LatentTypes { layer, found: b, expected: a });
        }
        merged.kind = merge_kinds(merged.kind, spec.kind).ok_or(LayoutError::Kinds { layer })?;
    }
    if let AttentionKind::Full { window: Some(window), chunk: Some(chunk) } = merged.kind {
        return Err(LayoutError::WindowAndChunk { window, chunk });
    }
    Ok(merged)
}

fn merge_kinds(a: AttentionKind, b: AttentionKind) -> Option<AttentionKind> {
    match (a, b) {
        (AttentionKind::Full { window: w1, chunk: c1 }, AttentionKind::Full { window: w2, chunk: c2 }) => {
            let window = merge_reach(w1, w2)?;
            let chunk = merge_reach(c1, c2)?;
            Some(AttentionKind::Full { window, chunk })
        }
        _ => (a == b).then_some(a),
    }
}

/// Merges the windows, or the chunks, of two layers: the one that is set, or `None` if both are set and differ.
fn merge_reach(a: Option<u32>, b: Option<u32>) -> Option<Option<u32>> {
    match (a, b) {
        (Some(a), Some(b)) if a != b => None,
        _ => Some(a.or(b)),
    }
}

/// Returns the spec with the attention kind changed to full attention, so that no block is freed early; the kernel
/// still masks.
fn as_full(spec: &KvCacheSpec) -> KvCacheSpec {
    let kind = match spec.kind {
        AttentionKind::Full { .. } => spec.kind,
        AttentionKind::SlidingWindow { window } => AttentionKind::Full { window: Some(window), chunk: None },
        AttentionKind::ChunkedLocal { chunk } => AttentionKind::Full { window: None, chunk: Some(chunk) },
    };
    spec.kind(kind)
}

/// Grows the block size of layers with small pages until all pages are equal.
fn unify_pages(specs: &[KvCacheSpec]) -> Result<Vec<KvCacheSpec>, LayoutError> {
    let largest = specs.iter().map(KvCacheSpec::page_bytes).max().unwrap_or(0);
    let grow = |(layer, spec): (usize, &KvCacheSpec)| {
        let page_bytes = spec.page_bytes();
        let error = LayoutError::PageSizes { layer, page_bytes, largest };
        let ratio =
            largest.checked_div(page_bytes).and_then(|ratio| u32::try_from(ratio).ok()).ok_or(error)?;
        let size = ratio.checked_mul(spec.block_size.get()).and_then(BlockSize::new).ok_or(error)?;
        let grown = spec.block_size(size);
        if grown.page_bytes() == largest { Ok(grown) } else { Err(error) }
    };
    specs.iter().enumerate().map(grow).collect()
}

fn is_window_latent(spec: &KvCacheSpec) -> bool {
    spec.is_latent() && matches!(spec.kind, AttentionKind::SlidingWindow { .. })
}
