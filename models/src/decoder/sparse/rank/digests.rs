//! Scores from digests of pages: Quest, and the policies that look at mean keys.

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::KvShape;
use attn_kernels::kernel::block_digest::{self, BlockDigestBuffers, BlockDigestParams, Digest};
use attn_kernels::kernel::block_score::BlockScoreBuffers;
use attn_kernels::kernel::block_score::{self, BlockScoreParams};
use attn_kernels::rows::BlockTokens;
use sparse_select::{ByDigests, DigestKind, Policy};

use super::RankContext;
use crate::cast::u32_of;
use crate::decoder::attention::LoadContext;
use crate::decoder::buffers::GrowBuf;
use crate::{DecoderConfig, ModelError};

/// Digests beside the cache, one of every page and layer that selects.
#[derive(Debug)]
pub(super) struct DigestPools {
    shape: KvShape,
    num_pages: u32,
    pipeline: Arc<Pipeline>,
    /// Digests of each layer, `None` where it does not select.
    pub(super) pools: Vec<Option<Buf<u32>>>,
    /// Pages to digest and their number, by view.
    touched: Vec<(u32, GrowBuf<BlockTokens>)>,
}

impl DigestPools {
    pub(super) fn new(load: &LoadContext<'_>, digest: Digest, selects: &[bool]) -> Result<Self, ModelError> {
        let LoadContext { gpu, kv, views, .. } = *load;
        let (shape, num_pages) = (*kv.shape(), kv.num_blocks());
        let len = digest.pool_len(&shape, num_pages as usize);
        let pool = |selects: &bool| selects.then(|| gpu.buffer("digests", len)).transpose();
        Ok(Self {
            shape,
            num_pages,
            pipeline: gpu.pipeline(&block_digest::variant(&shape, digest))?,
            pools: selects.iter().map(pool).collect::<Result<_, _>>()?,
            touched: (0..views.all.len())
                .map(|_| Ok((0, GrowBuf::new(gpu, "touched", 1)?)))
                .collect::<Result<_, ModelError>>()?,
        })
    }

    /// Lays out full pages to digest in the layers of a view.
    pub(super) fn touch(&mut self, gpu: &Gpu, view: usize, pages: &[u32]) -> Result<(), ModelError> {
        let tokens = self.shape.block_size;
        let pages: Vec<BlockTokens> = pages.iter().map(|page| BlockTokens { block: *page, tokens }).collect();
        block_digest::check(&self.shape, bytemuck::cast_slice(&pages), self.num_pages)?;
        let (count, touched) = &mut self.touched[view];
        touched.write(gpu, &pages)?;
        *count = u32_of(pages.len());
        Ok(())
    }

    pub(super) fn take_in(&self, pass: &mut Pass, context: &RankContext<'_>) {
        let (Some(pool), (touched, pages)) = (&self.pools[context.layer], &self.touched[context.view]) else {
            return;
        };
        if *touched > 0 {
            let params = BlockDigestParams { num_kv_heads: self.shape.num_kv_heads, touched: *touched };
            let buffers =
                BlockDigestBuffers { touched: pages.bind(), k_cache: context.k.bind(), digests: pool.bind() };
            pass.dispatch(&self.pipeline, &params, buffers, block_digest::grid(&self.shape, *touched));
        }
    }
}

/// Scores of blocks from their digests.
#[derive(Debug)]
pub(super) struct Digests {
    by: ByDigests,
    digest: Digest,
    pub(super) pools: DigestPools,
    score: Arc<Pipeline>,
    /// Parameters of the step, the same in all its layers.
    params: BlockScoreParams,
    /// Bounds of the mass of blocks in the current layer, `[rows, num_heads, score_stride]`; `None` without a certificate.
    pub(super) bounds: Option<GrowBuf<f32>>,
}

impl Digests {
    pub(super) fn new(
        load: &LoadContext<'_>,
        by: ByDigests,
        policy: &dyn Policy,
        selects: &[bool],
    ) -> Result<Self, ModelError> {
        let LoadContext { gpu, config, kv, .. } = *load;
        let (block, certifies) = (policy.block_size().get(), policy.certifies());
        let digest = match by.digest {
            DigestKind::MinMax => Digest::MinMax,
            DigestKind::Mean => Digest::Mean,
        };
        let score = match certifies {
            true => block_score::with_bounds(kv.shape(), config.num_heads, block),
            false => block_score::variant(kv.shape(), config.num_heads, digest, block),
        };
        Ok(Self {
            by,
            digest,
            pools: DigestPools::new(load, digest, selects)?,
            score: gpu.pipeline(&score)?,
            params: BlockScoreParams::default(),
            bounds: certifies.then(|| GrowBuf::new(gpu, "bounds", 1)).transpose()?,
        })
    }

    pub(super) fn begin(
        &mut self,
        gpu: &Gpu,
        config: &DecoderConfig,
        rows: usize,
        score_stride: u32,
    ) -> Result<(), ModelError> {
        let group = config.num_heads / config.num_kv_heads;
        self.params = BlockScoreParams {
            num_heads: config.num_heads,
            num_kv_heads: config.num_kv_heads,
            q_stride: config.num_heads * config.head_dim,
            heads_per_set: if self.by.one_set { config.num_heads } else { group },
            score_stride,
            sink_blocks: self.by.sink_blocks,
            recent_blocks: self.by.recent_blocks,
            recent_full: u32::from(self.by.recent_full),
            logit_scale: config.scale,
            ..BlockScoreParams::default()
        };
        let len = block_score::bounds_len(&self.params, rows);
        self.bounds.as_mut().map_or(Ok(()), |bounds| bounds.fit(gpu, len))
    }

    pub(super) fn score(&self, pass: &mut Pass, context: &RankContext<'_>, scores: &Buf<f32>) {
        let Some(pool) = &self.pools.pools[context.layer] else { return };
        let buffers = BlockScoreBuffers {
            q: context.q.bind(),
            digests: pool.bind(),
            tables: context.tables.bind(),
            rows: context.rows.bind(),
            scores: scores.bind(),
            bounds: self.bounds.as_deref().map(Buf::bind),
        };
        let grid = block_score::grid(self.digest, &self.params, context.count);
        pass.dispatch(&self.score, &self.params, buffers, grid);
    }
}
