//! Questions that others ask of a decoder between steps.

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

    /// Sizes of the tensors that were loaded.
    #[must_use]
    pub fn weight_sizes(&self) -> &WeightSizes {
        &self.weights.sizes
    }

    /// Division of the weights between device and host; `None` where all are on the device.
    #[must_use]
    pub fn weight_placement(&self) -> Option<&WeightPlacement> {
        self.weights.host.as_ref().map(|host| host.placement())
    }

    /// Returns the bytes of weights that steps have read from host memory so far.
    #[must_use]
    pub fn streamed_weight_bytes(&self) -> u64 {
        self.streamed_bytes
    }

    /// Returns the number of steps that were encoded while the step before them ran.
    #[must_use]
    pub fn steps_ahead(&self) -> u64 {
        self.steps_ahead
    }

    fn roofline(&self) -> Roofline<'_> {
        Roofline { config: &self.config, sizes: &self.weights.sizes, kv: self.kv.plan() }
    }

    /// Bytes that a decode step of `rows` sequences of `context` tokens must read: every weight once, of experts those that
    /// rows which choose at random reach, and the cache of every sequence as far as its layers see. Sparse policies read less.
    #[must_use]
    pub fn decode_bytes(&self, rows: u32, context: u32) -> f64 {
        self.roofline().decode_bytes(rows, context)
    }

    /// Multiplications and additions of the matrices and of dense causal attention over a prompt of `tokens` tokens; logits
    /// are of one token, which does not count.
    #[must_use]
    pub fn prefill_operations(&self, tokens: u32) -> f64 {
        self.roofline().prefill_operations(tokens)
    }

    /// Returns the place where a sparse policy selects; `None` without one. On the host means readbacks in every layer:
    /// positions need none.
    #[must_use]
    pub fn selects_on(&self) -> Option<SelectionPlace> {
        self.attention.sparse().map(super::sparse::Sparse::selects_on)
    }

    /// Turns on or off that steps hand back the selections of the sparse policy, or of the model's indexer; see
    /// [`SparseOptions::trace`](crate::SparseOptions::trace). Long prefills hand back none of an indexer, which are one a token.
    pub fn trace_selections(&mut self, on: bool) {
        if let Some(indexed) = &mut self.indexed {
            indexed.trace = on;
        }
        if let Some(sparse) = self.attention.sparse_mut() {
            sparse.trace(on);
        }
    }

    /// Turns on or off that steps hand back what their routers and indexers chose.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn trace_choices(&mut self, on: bool) -> Result<(), ModelError> {
        self.choices = if on { Some(Choices::new(&self.gpu)?) } else { None };
        Ok(())
    }

    /// Traffic between the pool and its blocks on the host so far.
    #[must_use]
    pub fn host_traffic(&self) -> HostTraffic {
        self.keys.traffic()
    }

    /// Traffic between slots and host so far; `None` where no selected blocks are fetched.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn page_traffic(&self) -> Result<Option<PageTraffic>, ModelError> {
        self.keys.pages().map(|pages| pages.traffic(&self.gpu)).transpose()
    }

    /// Counts of blocks on disk that were read ahead of selections; `None` where a policy selects none there.
    #[must_use]
    pub fn predictions(&self) -> Option<Predictions> {
        self.keys.pages()?.predictions()
    }

    /// Cost of fetches of selected pages, and how much of a fetch ahead hides beside the product that it runs beside:
    /// both alone, then together, with as many pages as steps fetched ahead so far. `None` where no page was fetched or the
    /// adapter has no timestamps.
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

    fn blocks(&self) -> Blocks<'_> {
        Blocks { gpu: &self.gpu, kv: &self.kv, copy: &self.copy }
    }

    /// Forgets what is known of blocks that something other than a step writes.
    fn forget(&mut self, blocks: impl Iterator<Item = u32> + Clone) {
        if let Some(sparse) = self.attention.sparse_mut() {
            sparse.forget(blocks.clone());
        }
        if let Some(pages) = self.keys.pages_mut() {
            blocks.for_each(|block| pages.forget(&self.gpu, block));
        }
    }

    /// Forgets what the device has in place of blocks that the last step could not read.
    pub(super) fn lose(&mut self, blocks: impl Iterator<Item = u32>) {
        let Some(pages) = self.keys.pages_mut() else { return };
        let summarised: Vec<u32> = blocks.filter(|block| pages.lose(&self.gpu, *block)).collect();
        if let Some(sparse) = self.attention.sparse_mut().filter(|_| !summarised.is_empty()) {
            sparse.forget(summarised.into_iter());
        }
    }

    /// Copies blocks in every buffer, before the next step: `(source, destination)` pairs of which no destination is a
    /// source.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn copy_blocks(&mut self, pairs: &[(BlockId, BlockId)]) -> Result<(), ModelError> {
        self.forget(pairs.iter().map(|(_, to)| to.get()));
        self.blocks().copy(pairs)
    }

    /// Contents of blocks, as [`write_block`](Self::write_block) takes them: a page of every buffer of the cache.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn read_blocks(&self, blocks: &[BlockId]) -> Result<Vec<Vec<u32>>, ModelError> {
        self.blocks().read(blocks)
    }

    /// Begins to read blocks as they are after the steps so far; later steps may overwrite them.
    ///
    /// # Errors
    /// Errors of the device.
    ///
    /// # Panics
    /// When there are more than [`BlockRead::MAX_BLOCKS`] blocks.
    pub fn begin_read(&self, blocks: &[BlockId]) -> Result<BlockRead, ModelError> {
        self.blocks().begin_read(blocks)
    }

    /// Writes what [`read_blocks`](Self::read_blocks) read of a block into another, before the next step.
    ///
    /// # Errors
    /// Errors of the device.
    ///
    /// # Panics
    /// When `contents` is not a block of this cache.
    pub fn write_block(&mut self, block: BlockId, contents: &[u32]) -> Result<(), ModelError> {
        self.forget(std::iter::once(block.get()));
        self.blocks().write(block, contents)
    }
}
