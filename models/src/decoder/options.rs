//! Options of a decoder.

use std::sync::Arc;

use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::KvDtype;
use prefetch::engine::EngineConfig;
use prefetch::spill::Spill;
use sparse_select::Policy;
use sparse_select::dsa::chunk::Memory;

use crate::batch::{Phase, Slice};
use crate::matrix::Precision;
use crate::{IndexDtype, KvOptions, LoadProgress, Mode, Offload, SparseOptions};

/// Options that a decoder is built with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DecoderOptions {
    /// Element type of the KV cache.
    pub kv_dtype: KvDtype,
    /// Format of the keys of an indexer; `None` for [the one beside `kv_dtype`](IndexDtype::beside).
    pub index_dtype: Option<IndexDtype>,
    /// Tokens per block.
    pub block_size: u32,
    /// Give blocks back that no window reaches any more; see [`KvOptions`].
    pub recycle: bool,
    /// Number of blocks to allocate in the pool.
    pub num_blocks: u32,
    /// Maximum number of rows of one step.
    pub max_rows: u32,
    /// Maximum number of samples of one step.
    pub max_seqs: u32,
    /// One order of arithmetic for a row whatever its phase and its company: prefill rows go through the decode kernel, one by
    /// one, in partitions of one size, and sums of products are cut along k alike for any number of rows.
    pub reproducible: bool,
    /// Whether kernels may use cooperative matrices, where the device runs them.
    pub coop: bool,
    /// Tokens of prefixes that the prefills of a step attend in one piece, shared by its sequences: behind longer ones they
    /// attend chunk by chunk and merge. Rows that go through the decode kernel are split by it anyway.
    pub prefix_capacity: u32,
    /// Type that products with quantised weights round activations to.
    pub activations: ActivationType,
    /// Sparse attention to selected blocks; `None` for dense attention.
    pub sparse: Option<SparseOptions>,
    /// Blocks in memory of the host, beyond those on the device.
    pub offload: Option<Offload>,
    /// Blocks on disk, beyond those of the host, for this decoder alone; see [`PoolOptions`](crate::PoolOptions).
    pub spill: Option<Arc<Spill>>,
    /// Limits of what is read from there ahead of the selections of a policy: its cache counts whole blocks, of all layers.
    pub reads_ahead: EngineConfig,
    /// Bytes that weights may take on the device when they are loaded: matrices of layers beyond that lie in memory of the host,
    /// and every step brings them to the device. `None` for all.
    pub weights_on_gpu: Option<u64>,
    /// Memory of the device that the scores of an indexer share with nothing; `None` where nobody knows how much that is: then
    /// portions of rows take 64 MiB.
    pub score_memory: Option<Memory>,
    /// Counts the weights while they are loaded.
    pub loading: LoadProgress,
}

impl DecoderOptions {
    /// A cache of `num_blocks` blocks of 16 tokens in f16, the null block among them, for steps of up to `max_rows` rows
    /// and 64 samples. Attention is full and nothing lies in memory of the host.
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

    /// Sets the element type of the KV cache.
    #[must_use]
    pub fn kv_dtype(self, dtype: KvDtype) -> Self {
        Self { kv_dtype: dtype, ..self }
    }

    /// Sets the format of the keys of an indexer; `None` for the one beside the KV cache.
    #[must_use]
    pub fn index_dtype(self, dtype: impl Into<Option<IndexDtype>>) -> Self {
        Self { index_dtype: dtype.into(), ..self }
    }

    /// Sets the number of tokens per block.
    #[must_use]
    pub fn block_size(self, tokens: u32) -> Self {
        Self { block_size: tokens, ..self }
    }

    /// Turns the return of blocks that no window reaches on or off.
    #[must_use]
    pub fn recycle(self, on: bool) -> Self {
        Self { recycle: on, ..self }
    }

    /// Sets the number of blocks of the pool.
    #[must_use]
    pub fn num_blocks(self, blocks: u32) -> Self {
        Self { num_blocks: blocks, ..self }
    }

    /// Sets the maximum number of rows of one step.
    #[must_use]
    pub fn max_rows(self, rows: u32) -> Self {
        Self { max_rows: rows, ..self }
    }

    /// Sets the maximum number of samples of one step.
    #[must_use]
    pub fn max_seqs(self, samples: u32) -> Self {
        Self { max_seqs: samples, ..self }
    }

    /// Turns reproducible arithmetic on or off.
    #[must_use]
    pub fn reproducible(self, on: bool) -> Self {
        Self { reproducible: on, ..self }
    }

    /// Allows or forbids cooperative matrices.
    #[must_use]
    pub fn coop(self, on: bool) -> Self {
        Self { coop: on, ..self }
    }

    /// Sets the number of prefix tokens that prefills attend in one piece.
    #[must_use]
    pub fn prefix_capacity(self, tokens: u32) -> Self {
        Self { prefix_capacity: tokens, ..self }
    }

    /// Sets the type that products with quantised weights round activations to.
    #[must_use]
    pub fn activations(self, activations: ActivationType) -> Self {
        Self { activations, ..self }
    }

    /// Sets attention to selected blocks; `None` for attention to all.
    #[must_use]
    pub fn sparse(self, sparse: impl Into<Option<SparseOptions>>) -> Self {
        Self { sparse: sparse.into(), ..self }
    }

    /// Sets the blocks in memory of the host; `None` for none.
    #[must_use]
    pub fn offload(self, offload: impl Into<Option<Offload>>) -> Self {
        Self { offload: offload.into(), ..self }
    }

    /// Sets the blocks on disk; `None` for none.
    #[must_use]
    pub fn spill(self, spill: impl Into<Option<Arc<Spill>>>) -> Self {
        Self { spill: spill.into(), ..self }
    }

    /// Sets the limits of what is read from disk ahead of the selections of a policy.
    #[must_use]
    pub fn reads_ahead(self, limits: EngineConfig) -> Self {
        Self { reads_ahead: limits, ..self }
    }

    /// Sets the bytes that weights may take on the device; `None` for all.
    #[must_use]
    pub fn weights_on_gpu(self, bytes: impl Into<Option<u64>>) -> Self {
        Self { weights_on_gpu: bytes.into(), ..self }
    }

    /// Sets the memory that the scores of an indexer may take a part of.
    #[must_use]
    pub fn score_memory(self, memory: impl Into<Option<Memory>>) -> Self {
        Self { score_memory: memory.into(), ..self }
    }

    /// Sets what counts the weights while they are loaded.
    #[must_use]
    pub fn loading(self, progress: LoadProgress) -> Self {
        Self { loading: progress, ..self }
    }

    /// The options that shape the cache.
    #[must_use]
    pub fn kv(&self) -> KvOptions {
        KvOptions::new(self.kv_dtype, self.block_size).index_dtype(self.index_dtype).recycle(self.recycle)
    }

    /// Modes that these options ask for.
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

    /// Returns the policy that leaves keys out inside the kernels of prefill, if there is one.
    pub(super) fn skipping(&self) -> Option<&Arc<dyn Policy>> {
        self.sparse.as_ref().map(|sparse| &sparse.policy).filter(|policy| policy.skips().is_some())
    }

    /// Whether the prompts of a step leave keys out: where it pays for one of them.
    pub(super) fn skips_in(&self, slices: &[Slice<'_>]) -> bool {
        let skipping = self.sparse.as_ref().filter(|sparse| sparse.policy.skips().is_some());
        let mut chunks = slices.iter().filter(|slice| slice.phase == Phase::Prefill);
        skipping.is_some_and(|sparse| chunks.any(|chunk| sparse.pays_for(chunk)))
    }

    /// Tokens of the blocks that a policy selects.
    pub(super) fn select_block(&self) -> u32 {
        self.selection().map_or(self.block_size, |sparse| sparse.policy.block_size().get())
    }

    /// Whether attention may round to f16 for cooperative matrices, where the device runs them: that costs about what an f16
    /// cache does, codes of 8 bits lose nothing more that counts, and none of these kernels serves an f32 cache. Its tiles are of
    /// rows of one sequence, so that a row would depend on its chunk.
    pub(super) fn uses_coop(&self, gpu: &Gpu) -> bool {
        gpu.runs_coop() && self.coop && !self.reproducible
    }

    /// Roundings that products may apply to activations on a device.
    pub(super) fn precision(&self, gpu: &Gpu) -> Precision {
        let rounded = self.kv_dtype != KvDtype::F32;
        Precision {
            f16: rounded && gpu.runs_coop() && self.coop,
            int8: rounded && self.activations.is_int8(gpu),
            invariant: self.reproducible,
        }
    }
}

/// Type that activations are rounded to before a product with quantised weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ActivationType {
    /// [`Int8`](Self::Int8) on GPUs, [`F32`](Self::F32) on software drivers, which it slows down.
    #[default]
    Auto,
    /// f32, or f16 where cooperative matrices run.
    F32,
    /// Codes of 8 bits by blocks of 32, as llama.cpp's `Q8_1`, for steps of few rows and for all steps where no cooperative
    /// matrices run: integer dot products do four multiplications in one. Not with an f32 cache, which asks for exactness.
    Int8,
}

impl ActivationType {
    fn is_int8(self, gpu: &Gpu) -> bool {
        self == Self::Int8 || self == Self::Auto && !gpu.profile().software
    }
}
