//! Options of a decoder.

use std::sync::Arc;

use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::KvDtype;
use derive_setters::Setters;
use kvblock::UnknownName;
use prefetch::engine::EngineConfig;
use prefetch::spill::Spill;
use sparse_select::dsa::chunk::Memory;
use strum::{Display, EnumString, VariantNames};

use crate::batch::{Phase, Slice};
use crate::matrix::Precision;
use crate::{IndexDtype, KvOptions, LoadProgress, Mode, Offload, SparseOptions};

/// Options that a decoder is built with.
#[derive(Clone, Debug, Setters)]
#[non_exhaustive]
pub struct DecoderOptions {
    /// Element type of the KV cache.
    pub kv_dtype: KvDtype,
    /// Format of the keys of an indexer; `None` for [the default for `kv_dtype`](IndexDtype::beside).
    #[setters(into)]
    pub index_dtype: Option<IndexDtype>,
    /// Number of tokens per block.
    pub block_size: u32,
    /// Whether to free blocks that no window reaches any more; see [`KvOptions`].
    pub recycle: bool,
    /// Number of blocks to allocate in the pool.
    pub num_blocks: u32,
    /// Maximum number of rows of one step.
    pub max_rows: u32,
    /// Maximum number of samples of one step.
    pub max_seqs: u32,
    /// Whether a row has one order of arithmetic, independent of its phase and of the batch: prefill rows then go
    /// through the decode kernel one by one, in partitions of one size, and sums of products are split along k in the
    /// same way for any number of rows.
    pub reproducible: bool,
    /// Whether kernels may use cooperative matrices, if the device supports them.
    pub coop: bool,
    /// Number of prefix tokens that the prefills of a step attend in one piece, shared by its sequences: longer
    /// prefixes are attended in chunks and merged. Rows that go through the decode kernel are split anyway.
    pub prefix_capacity: u32,
    /// Type that products with quantised weights round activations to.
    pub activations: ActivationType,
    /// Sparse attention to selected blocks; `None` for dense attention.
    #[setters(into)]
    pub sparse: Option<SparseOptions>,
    /// Blocks in host memory, in addition to those on the device.
    #[setters(into)]
    pub offload: Option<Offload>,
    /// Blocks on disk, in addition to those of the host, for this decoder alone; see [`PoolOptions`](crate::PoolOptions).
    #[setters(into)]
    pub spill: Option<Arc<Spill>>,
    /// Limits of reads from disk ahead of a policy's selections. The cache counts whole blocks, of all layers.
    pub reads_ahead: EngineConfig,
    /// Maximum number of bytes of weights on the device; `None` if all weights are there. Matrices of further layers are
    /// in host memory, and every step copies them to the device.
    #[setters(into)]
    pub weights_on_gpu: Option<u64>,
    /// Device memory that the scores of an indexer may use; `None` if the amount is unknown: portions of rows then use 64
    /// MiB.
    #[setters(into)]
    pub score_memory: Option<Memory>,
    /// Progress of loading the weights.
    pub loading: LoadProgress,
}

impl DecoderOptions {
    /// Options for a cache of `num_blocks` blocks of 16 tokens in f16, including the null block, and steps of up to `max_rows`
    /// rows and 64 samples. Attention is full, and nothing is kept in host memory.
    #[must_use]
    pub fn new(num_blocks: u32, max_rows: u32) -> Self {
        Self {
            kv_dtype: KvDtype::F16,
            index_dtype: None,
            block_size: 16,
            recycle: true,
            num_blocks,
            max_rows,
            max_seqs: 64,
            reproducible: false,
            coop: true,
            prefix_capacity: 131_072,
            activations: ActivationType::default(),
            sparse: None,
            offload: None,
            spill: None,
            reads_ahead: EngineConfig::GSA,
            weights_on_gpu: None,
            score_memory: None,
            loading: LoadProgress::default(),
        }
    }

    /// Returns the options of the cache.
    #[must_use]
    pub fn kv(&self) -> KvOptions {
        KvOptions::new(self.kv_dtype, self.block_size).index_dtype(self.index_dtype).recycle(self.recycle)
    }

    /// Returns the modes that these options require.
    pub(super) fn modes(&self) -> impl Iterator<Item = Mode> {
        let (sparse, host) = (self.selection().is_some(), self.offload.is_some());
        let asked = move |mode: &Mode| match mode {
            Mode::Sparse => sparse,
            Mode::CodedKv => self.kv_dtype.is_code(),
            Mode::HostKv => host,
            Mode::SparseHostKv => sparse && host,
        };
        Mode::ALL.into_iter().filter(asked)
    }

    /// Returns the policy that selects blocks, if there is one.
    pub(super) fn selection(&self) -> Option<&SparseOptions> {
        self.sparse.as_ref().filter(|sparse| sparse.policy.skips().is_none())
    }

    /// Returns the policy that skips keys inside the prefill kernels, if there is one.
    pub(super) fn skipping(&self) -> Option<&SparseOptions> {
        self.sparse.as_ref().filter(|sparse| sparse.policy.skips().is_some())
    }

    /// Whether the prompt chunks of a step skip keys, which they do if skipping pays for at least one chunk.
    pub(super) fn skips_in(&self, slices: &[Slice<'_>]) -> bool {
        let skipping = self.sparse.as_ref().filter(|sparse| sparse.policy.skips().is_some());
        let mut chunks = slices.iter().filter(|slice| slice.phase == Phase::Prefill);
        skipping.is_some_and(|sparse| chunks.any(|chunk| sparse.pays_for(chunk.positions())))
    }

    /// Number of tokens per block that a policy selects.
    pub(super) fn select_block(&self) -> u32 {
        self.selection().map_or(self.block_size, |sparse| sparse.policy.block_size().get())
    }

    /// Whether attention may use cooperative matrices, which round to f16. The rounding costs about as much accuracy as
    /// an f16 cache, and nothing more if the cache has 8-bit codes; no such kernel reads an f32 cache. Reproducible
    /// attention cannot use them: tiles hold rows of one sequence, so a row would depend on its chunk.
    pub(super) fn uses_coop(&self, gpu: &Gpu) -> bool {
        gpu.runs_coop() && self.coop && !self.reproducible
    }

    /// Returns the roundings that products may apply to activations on a device.
    pub(crate) fn precision(&self, gpu: &Gpu) -> Precision {
        let rounded = self.kv_dtype != KvDtype::F32;
        Precision {
            f16: rounded && gpu.runs_coop() && self.coop,
            int8: rounded && self.activations.is_int8(gpu),
            invariant: self.reproducible,
        }
    }
}

/// Type that activations are rounded to before a product with quantised weights; as text `auto`, `f32` or `int8`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = UnknownName::of::<Self>)]
pub enum ActivationType {
    /// [`Int8`](Self::Int8) on GPUs, [`F32`](Self::F32) on software drivers, where int8 is slower.
    #[default]
    Auto,
    /// f32, or f16 in products with cooperative matrices.
    F32,
    /// 8-bit codes in blocks of 32, like llama.cpp's `Q8_1`, for steps of few rows, and for all steps without cooperative
    /// matrices: an integer dot product does four multiplications in one. Not used with an f32 cache, which requests exactness.
    Int8,
}

impl ActivationType {
    fn is_int8(self, gpu: &Gpu) -> bool {
        self == Self::Int8 || self == Self::Auto && !gpu.profile().software
    }
}
