//! Scores by attention to compressed keys (NSA), which are the means of blocks.

use attn_kernels::kernel::nsa_block_score::NsaBlockScoreBuffers;
use attn_kernels::kernel::nsa_probs::NsaProbsBuffers;
use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::block_digest::Digest;
use attn_kernels::kernel::nsa_block_score::{self, NsaBlockScoreParams};
use attn_kernels::kernel::nsa_probs::{self, NsaProbsParams};
use bytemuck::Zeroable;
use sparse_select::ByCompressed;

use super::super::lists;
use super::context::RankContext;
use super::digests::DigestPools;
use crate::decoder::buffers::GrowBuf;
use crate::decoder::kernels::LoadContext;
use crate::{DecoderConfig, ModelError};

/// Mean keys of blocks, and buffers of a step.
#[derive(Debug)]
pub(super) struct CompressedScorer {
    by: ByCompressed,
    pub(super) pools: DigestPools,
    attend: Arc<Pipeline>,
    score: Arc<Pipeline>,
    /// Probabilities of compressed keys, `[rows, num_heads, prob_stride]`.
    probs: GrowBuf<f32>,
    params: (NsaProbsParams, NsaBlockScoreParams),
}

impl CompressedScorer {
    /// Creates the scorer; `None` if strides are not whole blocks.
    pub(super) fn new(
        load: &LoadContext<'_>,
        by: ByCompressed,
        block: u32,
        selects: &[bool],
    ) -> Result<Option<Self>, ModelError> {
        let LoadContext { gpu, kv, .. } = *load;
        let ByCompressed { kernel_size, kernel_stride, .. } = by;
        if !kernel_stride.is_multiple_of(kv.shape().block_size) {
            return Ok(None);
        }
        Ok(Some(Self {
            by,
            pools: DigestPools::new(load, Digest::Mean, selects)?,
            attend: gpu.pipeline(&nsa_probs::variant(kv.shape(), kernel_size, kernel_stride))?,
            score: gpu.pipeline(&nsa_block_score::variant(kernel_size, kernel_stride, block))?,
            probs: GrowBuf::new(gpu, "probs", 1)?,
            params: (NsaProbsParams::zeroed(), NsaBlockScoreParams::zeroed()),
        }))
    }

    /// Plans a step of `rows` decode rows of at most `longest` tokens.
    pub(super) fn begin(
        &mut self,
        gpu: &Gpu,
        config: &DecoderConfig,
        rows: usize,
        longest: u32,
        score_stride: u32,
    ) -> Result<(), ModelError> {
        let (num_heads, num_kv_heads) = (config.num_heads, config.num_kv_heads);
        let prob_stride = lists::score_stride(longest / self.by.kernel_stride);
        self.probs.fit(gpu, rows * (num_heads * prob_stride) as usize)?;
        #[expect(clippy::cast_precision_loss, reason = "heads have few channels")]
        let scale = 1.0 / (config.head_dim as f32).sqrt();
        let q_stride = num_heads * config.head_dim;
        self.params = (
            // Each dispatch sets its rows.
            NsaProbsParams { num_heads, num_kv_heads, q_stride, prob_stride, scale, rows: 0 },
            NsaBlockScoreParams {
                num_heads,
                num_kv_heads,
                prob_stride,
                score_stride,
                stride: self.by.kernel_stride,
                init_blocks: self.by.init_blocks,
                local_blocks: self.by.local_blocks,
                infinity: f32::INFINITY,
                rows: 0,
            },
        );
        Ok(())
    }

    /// Adds the numbers that the step's commands depend on.
    pub(super) fn shape(&self, shape: &mut Vec<usize>) {
        self.pools.shape(shape);
        shape.extend([self.params.0.prob_stride as usize, self.probs.len()]);
    }

    pub(super) fn score(&self, pass: &mut Pass, context: &RankContext<'_>, scores: &Buf<f32>) {
        let Some(pool) = &self.pools.pools[context.layer] else { return };
        let (attend, score) = self.params;
        let attend = NsaProbsParams { rows: context.count, ..attend };
        let score = NsaBlockScoreParams { rows: context.count, ..score };
        let (rows, probs) = (context.rows.bind(), self.probs.bind());
        let buffers = NsaProbsBuffers {
            q: context.q.bind(),
            digests: pool.bind(),
            tables: context.tables.bind(),
            rows: rows.clone(),
            probs: probs.clone(),
        };
        pass.dispatch(&self.attend, &attend, buffers);
        let buffers = NsaBlockScoreBuffers { probs, rows, scores: scores.bind() };
        pass.dispatch(&self.score, &score, buffers);
    }
}
