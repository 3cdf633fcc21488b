//! Scores from attention to compressed keys (NSA): the means of digests of pages.

use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::block_digest::Digest;
use attn_kernels::kernel::nsa_block_score::{self, NsaBlockScoreParams};
use attn_kernels::kernel::nsa_probs::{self, NsaProbsParams};
use bytemuck::Zeroable;
use sparse_select::ByCompressed;

use super::super::fit;
use super::Site;
use super::digests::DigestPools;
use crate::{DecoderConfig, KvPool, ModelError};

/// Mean keys of pages, and what a step makes of them.
#[derive(Debug)]
pub(super) struct Compressed {
    by: ByCompressed,
    pub(super) pools: DigestPools,
    attend: Arc<Pipeline>,
    score: Arc<Pipeline>,
    /// `[rows, num_heads, prob_stride]`
    probs: Buf<f32>,
    params: (NsaProbsParams, NsaBlockScoreParams),
}

impl Compressed {
    /// `None` where strides are not whole pages.
    pub(super) fn new(
        gpu: &Gpu,
        (by, block): (ByCompressed, u32),
        kv: &KvPool,
        selects: &[bool],
        views: usize,
    ) -> Result<Option<Self>, ModelError> {
        let ByCompressed { kernel_size, kernel_stride, .. } = by;
        if !kernel_stride.is_multiple_of(kv.shape().block_size) {
            return Ok(None);
        }
        Ok(Some(Self {
            by,
            pools: DigestPools::new(gpu, kv, Digest::Mean, selects, views)?,
            attend: gpu.pipeline(&nsa_probs::variant(kv.shape(), kernel_size, kernel_stride))?,
            score: gpu.pipeline(&nsa_block_score::variant(kernel_size, kernel_stride, block))?,
            probs: gpu.buffer("probs", 1)?,
            params: (NsaProbsParams::zeroed(), NsaBlockScoreParams::zeroed()),
        }))
    }

    /// Lays out a step of `rows` decode rows of at most `longest` tokens.
    pub(super) fn begin(
        &mut self,
        gpu: &Gpu,
        config: &DecoderConfig,
        (rows, longest): (usize, u32),
        score_stride: u32,
    ) -> Result<(), ModelError> {
        let (num_heads, num_kv_heads) = (config.num_heads, config.num_kv_heads);
        let prob_stride = longest / self.by.kernel_stride;
        fit(gpu, &mut self.probs, rows * (num_heads * prob_stride) as usize)?;
        #[expect(clippy::cast_precision_loss, reason = "heads have few channels")]
        let scale = 1.0 / (config.head_dim as f32).sqrt();
        let q_stride = num_heads * config.head_dim;
        self.params = (
            NsaProbsParams {
                num_heads,
                num_kv_heads,
                q_stride,
                prob_stride,
                scale,
                pad0: 0,
                pad1: 0,
                pad2: 0,
            },
            NsaBlockScoreParams {
                num_heads,
                num_kv_heads,
                prob_stride,
                score_stride,
                stride: self.by.kernel_stride,
                init_blocks: self.by.init_blocks,
                local_blocks: self.by.local_blocks,
                infinity: f32::INFINITY,
            },
        );
        Ok(())
    }

    pub(super) fn score(&self, pass: &mut Pass, site: &Site<'_>, scores: &Buf<f32>) {
        let Some(pool) = &self.pools.pools[site.layer] else { return };
        let (attend, score) = &self.params;
        let bindings: [Bind; 5] =
            [site.q.into(), pool.into(), site.tables.into(), site.rows.into(), (&self.probs).into()];
        pass.dispatch(&self.attend, attend, &bindings, nsa_probs::grid(attend, site.count));
        let bindings: [Bind; 3] = [(&self.probs).into(), site.rows.into(), scores.into()];
        pass.dispatch(&self.score, score, &bindings, nsa_block_score::grid(score, site.count));
    }
}
