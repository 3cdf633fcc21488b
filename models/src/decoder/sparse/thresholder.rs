//! Selection for prompt chunks by energies of mean keys (FlashPrefill), in kernels: nothing of a layer is read back.
//!
//! A layer's lists are `block_mean` once a chunk, then `block_energy` and `keep_blocks` for some query blocks at a time, so that
//! scratch stays bounded. Means are made anew in each chunk: that reads the keys once, and leaves nothing to keep up to date.
//! With the correction, `block_means` makes those of the values too, and `attend_means` follows the attention to the lists.

use std::sync::Arc;

use attn_kernels::gpu::{Gpu, Pass, Pipeline};
use attn_kernels::kernel::attend_means::{AttendMeansBuffers, AttendMeansParams};
use attn_kernels::kernel::block_energy::BlockEnergyBuffers;
use attn_kernels::kernel::block_mean::BlockMeanBuffers;
use attn_kernels::kernel::block_means::BlockMeansBuffers;
use attn_kernels::kernel::flashprefill::FlashPrefill;
use attn_kernels::kernel::keep_blocks::KeepBlocksBuffers;
use attn_kernels::kernel::{
    KvShape, attend_means, block_energy, block_energy_coop, block_mean, block_means, keep_blocks,
};
use kvblock::BlockSize;
use sparse_select::{Energies, Policy};

use super::SelectingRows;
use super::chunks::{Inputs, ListChunks, PromptChunk};
use super::lists::{ALIGN, DeviceLists};
use crate::ModelError;
use crate::cast::{f32_of, u32_of};
use crate::decoder::activations::Activations;
use crate::decoder::batch::Batch;
use crate::decoder::buffers::GrowBuf;
use crate::decoder::kernels::LoadContext;

/// Maximum number of f32 energies that exist at one time, unless a single query block has more.
const ENERGIES: usize = 16 << 20;

/// Kernels and buffers of a selection by thresholds.
#[derive(Debug)]
pub(super) struct Thresholder {
    form: Energies,
    block: BlockSize,
    shape: KvShape,
    pool_blocks: u32,
    num_heads: u32,
    /// Factor on attention scores.
    scale: f32,
    pipelines: Pipelines,
    /// Mean keys of all chunks of the step if the policy has a correction, else of the current chunk.
    means: GrowBuf<f32>,
    /// Mean values, if the policy has a correction.
    mean_values: GrowBuf<f32>,
    /// Number of f32 from the means of one chunk to those of the next.
    means_stride: usize,
    energies: GrowBuf<f32>,
}

#[derive(Debug)]
struct Pipelines {
    mean: Arc<Pipeline>,
    energy: Arc<Pipeline>,
    keep: Arc<Pipeline>,
    correction: Option<Correction>,
}

/// Kernels of the correction.
#[derive(Debug)]
struct Correction {
    means: Arc<Pipeline>,
    attend: Arc<Pipeline>,
}

impl Thresholder {
    /// Creates the selector; `None` if the policy does not use energies.
    pub(super) fn new(load: &LoadContext<'_>, policy: &dyn Policy) -> Result<Option<Self>, ModelError> {
        let LoadContext { gpu, config, options, kv, .. } = *load;
        let (shape, block) = (*kv.shape(), policy.block_size().get());
        let Some(form) = policy.energies() else { return Ok(None) };
        let serves = options.uses_coop(gpu) && block_energy_coop::serves(&shape, block);
        let by_matrices = serves.then(|| block_energy_coop::variant(&shape, block));
        let by_matrices = by_matrices.filter(|variant| gpu.profile().runs(variant));
        let energy = by_matrices.unwrap_or_else(|| block_energy::variant(&shape, block));
        let registers = gpu.profile().registers;
        let pipelines = Pipelines {
            mean: gpu.pipeline(&block_mean::variant(&shape, block))?,
            energy: gpu.pipeline(&energy)?,
            keep: gpu.pipeline(&keep_blocks::variant(config.num_heads / config.num_kv_heads))?,
            correction: match form.correction {
                true => Some(Correction {
                    means: gpu.pipeline(&block_means::variant(&shape, block))?,
                    attend: gpu.pipeline(&attend_means::variant(&shape, block, registers))?,
                }),
                false => None,
            },
        };
        Ok(Some(Self {
            form,
            block: policy.block_size(),
            shape,
            pool_blocks: kv.num_blocks(),
            num_heads: config.num_heads,
            scale: config.scale,
            pipelines,
            means: GrowBuf::new(gpu, "means", 1)?,
            mean_values: GrowBuf::new(gpu, "mean_values", 1)?,
            means_stride: 0,
            energies: GrowBuf::new(gpu, "energies", 1)?,
        }))
    }

    /// Returns the parameters of the kernels for a chunk's queries and the blocks before the chunk.
    fn form(&self, selecting: &SelectingRows) -> FlashPrefill {
        FlashPrefill {
            num_heads: self.num_heads,
            q_stride: self.num_heads * self.shape.head_dim,
            q_first: u32_of(selecting.row),
            q_len: u32_of(selecting.rows),
            kv_len: u32_of(selecting.kv_len()),
            table: u32_of(selecting.table.start),
            block: self.block.get(),
            alpha: f32_of(self.form.alpha),
            sink_blocks: self.form.sink_blocks,
            recent_blocks: self.form.recent_blocks,
        }
    }

    /// Returns the position of a chunk's means, in f32.
    fn means_at(&self, chunk: &PromptChunk<'_>) -> usize {
        // They are needed once all chunks have lists.
        if self.form.correction { chunk.number * self.means_stride } else { 0 }
    }
}

impl ListChunks for Thresholder {
    fn fit(
        &mut self,
        gpu: &Gpu,
        batch: &Batch,
        chunk: &PromptChunk<'_>,
        stride: u32,
        first: u32,
    ) -> Result<(), ModelError> {
        let form = self.form(chunk.rows);
        let out_len = (first + chunk.rows.lists * self.shape.num_kv_heads) as usize * stride as usize;
        let q_len = batch.rows as usize * form.q_stride as usize;
        let tables = (bytemuck::cast_slice(&batch.tables), self.pool_blocks);
        form.check(&self.shape, [stride, first], tables, [q_len, out_len])?;
        let round = form.rounds(ENERGIES).next().map_or(0, |round| round.end);
        let [means, energies] = form.scratch_lens(&self.shape, round);
        self.means_stride = self.means_stride.max(means.next_multiple_of(ALIGN));
        let end = self.means_at(chunk) + self.means_stride;
        self.means.fit(gpu, end)?;
        if self.form.correction {
            self.mean_values.fit(gpu, end)?;
        }
        self.energies.fit(gpu, energies)
    }

    fn list(&self, pass: &mut Pass, chunk: &PromptChunk<'_>, from: &Inputs, to: &DeviceLists) {
        let form = self.form(chunk.rows);
        let means = || self.means.bind_from(self.means_at(chunk));
        let (tables, k_cache) = (from.tables.clone(), from.k.clone());
        match (&self.pipelines.correction, form.block_mean(&self.shape), form.block_means(&self.shape)) {
            (Some(correction), _, Some(params)) => {
                let mean_values = self.mean_values.bind_from(self.means_at(chunk));
                let (v_cache, mean_keys) = (from.v.clone(), means());
                let buffers = BlockMeansBuffers { tables, k_cache, v_cache, mean_keys, mean_values };
                pass.dispatch(&correction.means, &params, buffers);
            }
            (None, Some(params), _) => {
                let buffers = BlockMeanBuffers { tables, k_cache, means: means() };
                pass.dispatch(&self.pipelines.mean, &params, buffers);
            }
            // No block is before the last query block.
            _ => {}
        }
        for blocks in form.rounds(ENERGIES) {
            let params = form.block_energy(&self.shape, &blocks);
            let energies = self.energies.bind();
            let buffers =
                BlockEnergyBuffers { q: from.q.clone(), means: means(), energies: energies.clone() };
            pass.dispatch(&self.pipelines.energy, &params, buffers);
            let first_list = chunk.rows.list * self.shape.num_kv_heads;
            let params = form.keep_blocks(&self.shape, &blocks, to.stride, first_list);
            let buffers = KeepBlocksBuffers { energies, out: to.bind() };
            pass.dispatch(&self.pipelines.keep, &params, buffers);
        }
    }

    fn correct(&self, pass: &mut Pass, chunk: &PromptChunk<'_>, act: &Activations, lists: &DeviceLists) {
        let form = self.form(chunk.rows);
        let Some(correction) = self.pipelines.correction.as_ref().filter(|_| form.key_blocks() > 1) else {
            return;
        };
        let first_list = chunk.rows.list * self.shape.num_kv_heads;
        let params = form.attend_means(&self.shape, lists.stride, first_list);
        let params = AttendMeansParams { scale: self.scale, ..params };
        let at = self.means_at(chunk);
        let buffers = AttendMeansBuffers {
            q: act.q.bind(),
            mean_keys: self.means.bind_from(at),
            mean_values: self.mean_values.bind_from(at),
            selected: lists.bind(),
            out: act.attended.bind(),
            lse: act.lse.bind(),
        };
        pass.dispatch(&correction.attend, &params, buffers);
    }
}
