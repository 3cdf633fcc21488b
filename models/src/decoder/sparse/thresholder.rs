//! Blocks of chunks of prompts from energies of mean keys (FlashPrefill), in kernels: nothing of a layer is read back.
//!
//! A layer's lists are `block_mean` once a chunk, then `block_energy` and `keep_blocks` for some query blocks at a time, so that
//! scratch stays bounded. Means are made anew in each chunk: that reads the keys once, and leaves nothing to keep up to date.

use std::sync::Arc;

use attn_kernels::gpu::{Gpu, Pass, Pipeline};
use attn_kernels::kernel::block_energy::BlockEnergyBuffers;
use attn_kernels::kernel::block_mean::BlockMeanBuffers;
use attn_kernels::kernel::flashprefill::FlashPrefill;
use attn_kernels::kernel::keep_blocks::KeepBlocksBuffers;
use attn_kernels::kernel::{KvShape, block_energy, block_energy_coop, block_mean, keep_blocks};
use kvblock::BlockSize;
use sparse_select::{Energies, Policy};

use super::SelectingRows;
use super::chunks::{Inputs, ListChunks};
use super::lists::DeviceLists;
use crate::ModelError;
use crate::cast::{f32_of, u32_of};
use crate::decoder::batch::Batch;
use crate::decoder::buffers::GrowBuf;
use crate::decoder::kernels::LoadContext;

/// f32 of energies that exist at one time, unless one query block has more.
const ENERGIES: usize = 16 << 20;

/// Kernels and buffers of a selection by thresholds.
#[derive(Debug)]
pub(super) struct Thresholder {
    form: Energies,
    block: BlockSize,
    shape: KvShape,
    num_pages: u32,
    num_heads: u32,
    pipelines: Pipelines,
    /// Whether energies go through cooperative matrices.
    coop: bool,
    means: GrowBuf<f32>,
    energies: GrowBuf<f32>,
}

#[derive(Debug)]
struct Pipelines {
    mean: Arc<Pipeline>,
    energy: Arc<Pipeline>,
    keep: Arc<Pipeline>,
}

impl Thresholder {
    /// `None` where the policy has no such form.
    pub(super) fn new(load: &LoadContext<'_>, policy: &dyn Policy) -> Result<Option<Self>, ModelError> {
        let LoadContext { gpu, config, options, kv, .. } = *load;
        let (shape, block) = (*kv.shape(), policy.block_size().get());
        let Some(form) = policy.energies() else { return Ok(None) };
        let coop = options.uses_coop(gpu) && block_energy_coop::serves(&shape, block);
        let energy = match coop {
            true => block_energy_coop::variant(&shape, block),
            false => block_energy::variant(&shape, block),
        };
        let pipelines = Pipelines {
            mean: gpu.pipeline(&block_mean::variant(&shape, block))?,
            energy: gpu.pipeline(&energy)?,
            keep: gpu.pipeline(&keep_blocks::variant(config.num_heads / config.num_kv_heads))?,
        };
        Ok(Some(Self {
            form,
            block: policy.block_size(),
            shape,
            num_pages: kv.num_blocks(),
            num_heads: config.num_heads,
            pipelines,
            coop,
            means: GrowBuf::new(gpu, "means", 1)?,
            energies: GrowBuf::new(gpu, "energies", 1)?,
        }))
    }

    /// A chunk's queries against the blocks before them.
    fn chunk(&self, chosen: &SelectingRows) -> FlashPrefill {
        FlashPrefill {
            num_heads: self.num_heads,
            q_stride: self.num_heads * self.shape.head_dim,
            q_first: u32_of(chosen.row),
            q_len: u32_of(chosen.rows),
            kv_len: u32_of(chosen.kv_len()),
            table: u32_of(chosen.table.start),
            block: self.block.get(),
            alpha: f32_of(self.form.alpha),
            sink_blocks: self.form.sink_blocks,
            recent_blocks: self.form.recent_blocks,
        }
    }
}

impl ListChunks for Thresholder {
    fn fit(
        &mut self,
        gpu: &Gpu,
        batch: &Batch,
        chosen: &SelectingRows,
        stride: u32,
        first: u32,
    ) -> Result<(), ModelError> {
        let chunk = self.chunk(chosen);
        let out_len = (first + chosen.lists * self.shape.num_kv_heads) as usize * stride as usize;
        let q_len = batch.rows as usize * chunk.q_stride as usize;
        let tables = (bytemuck::cast_slice(&batch.tables), self.num_pages);
        chunk.check(&self.shape, [stride, first], tables, [q_len, out_len])?;
        let round = chunk.rounds(ENERGIES).next().map_or(0, |round| round.end);
        let [means, energies] = chunk.scratch_lens(&self.shape, round);
        self.means.fit(gpu, means)?;
        self.energies.fit(gpu, energies)
    }

    fn list(&self, pass: &mut Pass, chosen: &SelectingRows, from: &Inputs, to: &DeviceLists) {
        let chunk = self.chunk(chosen);
        if let Some(params) = chunk.block_mean(&self.shape) {
            let (tables, k_cache) = (from.tables.clone(), from.k.clone());
            let buffers = BlockMeanBuffers { tables, k_cache, means: self.means.bind() };
            pass.dispatch(&self.pipelines.mean, &params, buffers, block_mean::grid(&self.shape, &params));
        }
        for blocks in chunk.rounds(ENERGIES) {
            let params = chunk.block_energy(&self.shape, &blocks);
            let count = blocks.end - blocks.start;
            let grid = match self.coop {
                true => block_energy_coop::grid(&params, count),
                false => block_energy::grid(&params, count),
            };
            let (means, energies) = (self.means.bind(), self.energies.bind());
            let buffers = BlockEnergyBuffers { q: from.q.clone(), means, energies: energies.clone() };
            pass.dispatch(&self.pipelines.energy, &params, buffers, grid);
            let first_list = chosen.list * self.shape.num_kv_heads;
            let params = chunk.keep_blocks(&self.shape, &blocks, to.stride, first_list);
            let buffers = KeepBlocksBuffers { energies, out: to.bind() };
            pass.dispatch(&self.pipelines.keep, &params, buffers, keep_blocks::grid(&params));
        }
    }
}
