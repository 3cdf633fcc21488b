//! Accessors of a decoder, and reads and writes of blocks between steps.

use std::sync::Arc;

use attn_kernels::gpu::{Gpu, Pass};
use kvblock::BlockId;

use super::Decoder;
use super::blocks::{BlockRead, Blocks};
use super::choices::Choices;
use super::mlp::Mlp;
use super::roofline::{Roofline, WeightSizes};
use crate::kernel::matmul::Epilogue;
use crate::matrix::Product;
use crate::{
    DecoderConfig, FetchCost, HostTraffic, KvPool, ModelError, PageTraffic, Predictions, SelectionPlace,
    WeightPlacement,
};

impl Decoder {
    /// Returns the configuration of the model.
    #[must_use]
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Returns the KV cache.
    #[must_use]
    pub fn kv(&self) -> &KvPool {
        &self.kv
    }

    /// Returns the maximum number of rows of a step.
    #[must_use]
    pub fn step_rows(&self) -> u32 {
        self.options.max_rows
    }

    /// Returns the device.
    #[must_use]
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Returns the sizes of the tensors that were loaded.
    #[must_use]
    pub fn weight_sizes(&self) -> &WeightSizes {
        &self.weights.sizes
    }

    /// Returns how the weights are divided between device and host; `None` if all are on the device.
    #[must_use]
    pub fn weight_placement(&self) -> Option<&WeightPlacement> {
        self.weights.host.as_ref().map(|host| host.placement())
    }

    /// Returns the number of bytes of weights that steps have read from host memory so far.
    #[must_use]
    pub fn streamed_weight_bytes(&self) -> u64 {
        self.streamed_bytes
    }

    /// Returns the number of steps that were encoded while the step before them ran.
    #[must_use]
    pub fn steps_ahead(&self) -> u64 {
        self.steps_ahead
    }

    /// Returns the number of steps that were sent before the tokens of the step before them were read.
    #[must_use]
    pub fn steps_following(&self) -> u64 {
        self.steps_following
    }

    fn roofline(&self) -> Roofline<'_> {
        Roofline {
            config: &self.config,
            sizes: &self.weights.sizes,
            kv: self.kv.plan(),
            has_head: self.weights.head.is_some(),
        }
    }

    /// Number of bytes that a decode step of `rows` sequences of `context` tokens must read: all weights once (for
    /// experts, those that random routing would reach), and the visible part of every sequence's cache. Sparse policies
    /// read less.
    #[must_use]
    pub fn decode_bytes(&self, rows: u32, context: u32) -> f64 {
        self.roofline().decode_bytes(rows, context)
    }

    /// Multiplications and additions of a prefill of `tokens` tokens with dense causal attention. Logits are computed for one
    /// token, which is not counted.
    #[must_use]
    pub fn prefill_operations(&self, tokens: u32) -> f64 {
        self.roofline().prefill_operations(tokens)
    }

    /// Returns where a sparse policy selects; `None` without one. Selection on the host reads back queries in every
    /// layer, unless the policy selects by position.
    #[must_use]
    pub fn selects_on(&self) -> Option<SelectionPlace> {
        self.attention.sparse().map(super::sparse::Sparse::selects_on)
    }

    /// Sets whether steps return the selections of the sparse policy, or of the model's indexer; see
    /// [`SparseOptions::trace`](crate::SparseOptions::trace). Long prefills do not return those of an indexer, which
    /// selects for every token.
    pub fn trace_selections(&mut self, on: bool) {
        if let Some(indexed) = &mut self.indexed {
            indexed.trace = on;
        }
        if let Some(sparse) = self.attention.sparse_mut() {
            sparse.trace(on);
        }
    }

    /// Sets whether steps return the choices of routers and indexers.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn trace_choices(&mut self, on: bool) -> Result<(), ModelError> {
        self.choices = if on { Some(Choices::new(&self.gpu)?) } else { None };
        Ok(())
    }

    /// Returns the traffic between the pool and its blocks on the host so far.
    #[must_use]
    pub fn host_traffic(&self) -> HostTraffic {
        self.keys.traffic()
    }

    /// Returns the traffic between page slots and the host so far; `None` if no selected blocks are fetched.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn page_traffic(&self) -> Result<Option<PageTraffic>, ModelError> {
        self.keys.pages().map(|pages| pages.traffic(&self.gpu)).transpose()
    }

    /// Returns counts of blocks that were read from disk ahead of selection; `None` if no policy selects among blocks on disk.
    #[must_use]
    pub fn predictions(&self) -> Option<Predictions> {
        self.keys.pages()?.predictions()
    }

    /// Measures the cost of fetching selected pages, and how much of a prefetch is hidden by the matrix product that runs
    /// next to it. Prefetch and product run alone, then together, with as many pages as steps have prefetched so far.
    /// `None` if no page was fetched or the adapter has no timestamps.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn fetch_cost(&mut self) -> Result<Option<FetchCost>, ModelError> {
        let Self { gpu, config, kv, ops, activations: act, weights, .. } = self;
        let Some(pages) = self.keys.pages() else { return Ok(None) };
        let precision = ops.precision;
        pages.cost(gpu, kv, &mut |pass: &mut Pass, layer: usize| {
            let Mlp::Dense { gate_up, .. } = &weights.layers[layer].mlp else { return Ok(()) };
            let product = Product {
                x: &act.normed,
                rows: 1,
                precision,
                y: &act.inner,
                y_stride: config.intermediate_size,
                y_offset: 0,
                epilogue: Epilogue::SiluMul,
                norm: None,
            };
            gate_up.multiply(&mut ops.kernels, pass, &product)
        })
    }

    /// Whether steps return no results apart from those of the output head.
    pub(crate) fn only_hands_over(&self) -> bool {
        let traced = self.choices.is_some() || self.indexed.as_ref().is_some_and(|indexed| indexed.trace);
        !traced && self.attention.sparse().is_none() && !self.gpu.is_timing()
    }

    /// Writes the residual of all rows of the next step, for a decoder without an embedding.
    pub(crate) fn write_residual(&self, bytes: &[u8]) {
        self.gpu.write_bytes(&self.activations.residual, 0, bytes);
    }

    fn blocks(&self) -> Blocks<'_> {
        Blocks { gpu: &self.gpu, kv: &self.kv, copy: &self.copy }
    }

    /// Invalidates the state of blocks that are written outside of a step.
    fn forget(&mut self, blocks: impl Iterator<Item = u32> + Clone) {
        if let Some(sparse) = self.attention.sparse_mut() {
            sparse.forget(blocks.clone());
        }
        if let Some(pages) = self.keys.pages_mut() {
            blocks.for_each(|block| pages.forget(&self.gpu, block));
        }
    }

    /// Invalidates the device's copies of blocks that the last step could not read.
    pub(super) fn lose(&mut self, blocks: impl Iterator<Item = u32>) {
        let Some(pages) = self.keys.pages_mut() else { return };
        let summarised: Vec<u32> = blocks.filter(|block| pages.lose(&self.gpu, *block)).collect();
        if let Some(sparse) = self.attention.sparse_mut().filter(|_| !summarised.is_empty()) {
            sparse.forget(summarised.into_iter());
        }
    }

    /// Copies blocks in every buffer, before the next step. In the pairs `(source, destination)`, no destination may be a source.
    ///
    /// # Errors
    /// [`ModelError::Block`] for a block outside of the pool, else errors of the device.
    pub fn copy_blocks(&mut self, pairs: &[(BlockId, BlockId)]) -> Result<(), ModelError> {
        self.kv.check_blocks(pairs.iter().flat_map(|(from, to)| [from.get(), to.get()]))?;
        self.forget(pairs.iter().map(|(_, to)| to.get()));
        self.blocks().copy(pairs)
    }

    /// Reads the contents of blocks, in the form that [`write_block`](Self::write_block) takes: the block's part of every buffer
    /// of the cache.
    ///
    /// # Errors
    /// [`ModelError::Block`] for a block outside of the pool, else errors of the device.
    pub fn read_blocks(&self, blocks: &[BlockId]) -> Result<Vec<Vec<u32>>, ModelError> {
        self.blocks().read(blocks)
    }

    /// Starts reading blocks as they are after the steps so far; later steps may overwrite them.
    ///
    /// # Errors
    /// [`ModelError::Block`] for a block outside of the pool, else errors of the device.
    ///
    /// # Panics
    /// When there are more than [`BlockRead::MAX_BLOCKS`] blocks.
    pub fn begin_read(&self, blocks: &[BlockId]) -> Result<BlockRead, ModelError> {
        self.blocks().begin_read(blocks)
    }

    /// Writes the contents that [`read_blocks`](Self::read_blocks) returned for a block into another block, before the next step.
    ///
    /// # Errors
    /// [`ModelError::Block`] for a block outside of the pool, else errors of the device.
    ///
    /// # Panics
    /// When `contents` is not a block of this cache.
    pub fn write_block(&mut self, block: BlockId, contents: &[u32]) -> Result<(), ModelError> {
        self.kv.check_blocks(std::iter::once(block.get()))?;
        self.forget(std::iter::once(block.get()));
        self.blocks().write(block, contents)
    }
}
