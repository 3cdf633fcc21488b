//! Caches of compressed attention (DeepSeek V4): a window of tokens, entries, index keys, and states from which entries are made.

use attn_kernels::kernel::mla_decode::LatentShape;
use kvblock::{AttentionKind, BlockSize, KvCacheSpec, KvDtype};
use smallvec::SmallVec;

use super::options::{CachePart, KvOptions};
use crate::cast::u32_of;
use crate::{CompressedConfig, Compressor, DecoderConfig, IndexDtype, Reach};

/// Number of tokens per block of each cache of a model, chosen so that blocks have few different sizes in bytes.
/// Entries of the smallest ratio and tokens of the window fill blocks of equal size, and states fill a part of such a
/// block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Blocks {
    window: u32,
    entries: u32,
    /// Number of elements of the states of two windows; states of one window are half as large.
    states: u32,
}

/// Number of tokens per block of states, as published.
const STATE_BLOCK: u32 = 4;

impl Blocks {
    /// Chooses sizes for blocks of at least `options.block_size` tokens of the window. Blocks grow if they would hold a fraction
    /// of an entry or state.
    fn new(config: &DecoderConfig, compressed: &CompressedConfig, options: &KvOptions) -> Self {
        let wanted = options.block_size;
        let Some(least) = compressed.min_ratio() else {
            return Self { window: wanted, entries: wanted, states: 1 };
        };
        // A state of two windows takes four vectors of f32: tokens of the window that it is as large as.
        let dim = config.indexer.map_or(0, |indexer| indexer.head_dim).max(config.head_dim);
        let token = u32_of(options.vectors(config, compressed).token_bytes());
        let state = (4 * dim * KvDtype::F32.bytes()).div_ceil(token);
        // Pages are whole units of 16 bytes: of vectors in codes two fill one, and of index keys with a scale four.
        let vectors = if token.is_multiple_of(16) { 1 } else { 2 };
        let keys = if options.of_index() == IndexDtype::Fp8 { 4 } else { vectors };
        let ratio =
            |compressor: &Compressor| compressor.ratio * if compressor.indexed { keys } else { vectors };
        let ratios = compressed.compressors.iter().flatten().map(ratio);
        let entries = ratios.fold(wanted.max(state) * least, least_common_multiple);
        let window = entries / least;
        Self { window, entries, states: STATE_BLOCK.min(previous_power_of_two(window / state)) }
    }
}

impl KvOptions {
    /// Returns the shape of the caches of window tokens and of entries, which both hold one vector per token or entry.
    pub(crate) fn vectors(&self, config: &DecoderConfig, compressed: &CompressedConfig) -> LatentShape {
        let &Self { dtype, block_size, .. } = self;
        // As published: what rotates is not in codes.
        let plain = if dtype == KvDtype::Fp8 { compressed.rope.rotary_dims } else { 0 };
        LatentShape { latent: config.head_dim, rope: 0, block_size, dtype, plain }
    }
}

/// Returns the caches of a layer.
pub(super) fn parts(
    config: &DecoderConfig,
    compressed: &CompressedConfig,
    layer: usize,
    options: &KvOptions,
) -> SmallVec<[(CachePart, KvCacheSpec); 2]> {
    let blocks = Blocks::new(config, compressed, options);
    let element = options.dtype;
    let kind = |tokens| match options.recycle {
        true => AttentionKind::SlidingWindow { window: tokens },
        // A window that no context outgrows: states and tokens keep their pages, and none is given back.
        false => AttentionKind::SlidingWindow { window: u32::MAX },
    };
    let size = |tokens| BlockSize::new(tokens).expect("blocks have tokens");
    let entry = |bytes: u32, ratio| {
        KvCacheSpec::latent(AttentionKind::FULL, size(blocks.entries), bytes, element, ratio)
    };
    let state = |dim: u32, compressor: &Compressor| {
        let bytes = 2 * compressor.windows() * dim * KvDtype::F32.bytes();
        let block = size(blocks.states * 2 / compressor.windows());
        KvCacheSpec::latent(kind(compressor.reach()), block, bytes, KvDtype::F32, 1)
    };
    let Reach::Window(window) = config.layers[layer].reach else {
        panic!("layer {layer} has compressed attention and no window")
    };
    let bytes = u32_of(options.vectors(config, compressed).token_bytes());
    let tokens = KvCacheSpec::latent(kind(window), size(blocks.window), bytes, element, 1);
    let mut parts: SmallVec<[(CachePart, KvCacheSpec); 2]> = SmallVec::new();
    parts.push((CachePart::Latent, tokens));
    if let Some(compressor) = &compressed.compressors[layer] {
        parts.push((CachePart::Entries, entry(bytes, compressor.ratio)));
        parts.push((CachePart::States, state(config.head_dim, compressor)));
        if let Some(indexer) = config.indexer.filter(|_| compressor.indexed) {
            let key = options.of_index().key_bytes(indexer.head_dim);
            parts.push((CachePart::IndexKeys, entry(key, compressor.ratio)));
            parts.push((CachePart::IndexStates, state(indexer.head_dim, compressor)));
        }
    }
    parts
}

fn least_common_multiple(a: u32, b: u32) -> u32 {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

fn previous_power_of_two(n: u32) -> u32 {
    1 << n.max(1).ilog2()
}
