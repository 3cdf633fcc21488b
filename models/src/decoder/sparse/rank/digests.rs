//! Scores from digests of pages: Quest, and the policies that look at mean keys.

use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::KvShape;
use attn_kernels::kernel::block_digest::{self, BlockDigestParams, Digest};
use attn_kernels::kernel::block_score::{self, BlockScoreParams};
use sparse_select::{ByDigests, DigestKind};

use super::super::{fit, u32_of};
use super::Site;
use crate::{DecoderConfig, KvPool, ModelError};

/// Digests beside the cache, one of every page and layer that selects.
#[derive(Debug)]
pub(super) struct DigestPools {
    shape: KvShape,
    num_pages: u32,
    pipeline: Arc<Pipeline>,
    /// Of each layer, `None` where it does not select.
    pub(super) pools: Vec<Option<Buf<u32>>>,
    /// `(page, tokens)` to digest, by view.
    touched: Vec<(u32, Buf<[u32; 2]>)>,
}

impl DigestPools {
    pub(super) fn new(
        gpu: &Gpu,
        kv: &KvPool,
        digest: Digest,
        selects: &[bool],
        views: usize,
    ) -> Result<Self, ModelError> {
        let (shape, num_pages) = (*kv.shape(), kv.num_blocks());
        let len = digest.pool_len(&shape, num_pages as usize);
        let pool = |selects: &bool| selects.then(|| gpu.buffer("digests", len)).transpose();
        Ok(Self {
            shape,
            num_pages,
            pipeline: gpu.pipeline(&block_digest::variant(&shape, digest))?,
            pools: selects.iter().map(pool).collect::<Result<_, _>>()?,
            touched: (0..views)
                .map(|_| Ok((0, gpu.buffer("touched", 1)?)))
                .collect::<Result<_, ModelError>>()?,
        })
    }

    /// Lays out full pages to digest in the layers of a view.
    pub(super) fn touch(&mut self, gpu: &Gpu, view: usize, pages: &[u32]) -> Result<(), ModelError> {
        let pages: Vec<[u32; 2]> = pages.iter().map(|page| [*page, self.shape.block_size]).collect();
        block_digest::check(&self.shape, &pages, self.num_pages)?;
        let (count, touched) = &mut self.touched[view];
        fit(gpu, touched, pages.len())?;
        gpu.write(touched, 0, &pages);
        *count = u32_of(pages.len());
        Ok(())
    }

    pub(super) fn take_in(&self, pass: &mut Pass, site: &Site<'_>) {
        let (Some(pool), (touched, pages)) = (&self.pools[site.layer], &self.touched[site.view]) else {
            return;
        };
        if *touched > 0 {
            let params = BlockDigestParams {
                num_kv_heads: self.shape.num_kv_heads,
                touched: *touched,
                pad0: 0,
                pad1: 0,
            };
            let bindings = [pages.into(), site.k.into(), pool.into()];
            pass.dispatch(&self.pipeline, &params, &bindings, block_digest::grid(&self.shape, *touched));
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
    /// Of the step: the same in all its layers.
    params: BlockScoreParams,
    /// What blocks may hold, `[rows, num_heads, score_stride]`, of the layer at hand; `None` without a certificate.
    pub(super) bounds: Option<Buf<f32>>,
}

impl Digests {
    pub(super) fn new(
        gpu: &Gpu,
        (by, block, certifies): (ByDigests, u32, bool),
        (config, kv): (&DecoderConfig, &KvPool),
        selects: &[bool],
        views: usize,
    ) -> Result<Self, ModelError> {
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
            pools: DigestPools::new(gpu, kv, digest, selects, views)?,
            score: gpu.pipeline(&score)?,
            params: BlockScoreParams::default(),
            bounds: certifies.then(|| gpu.buffer("bounds", 1)).transpose()?,
        })
    }

    pub(super) fn begin(
        &mut self,
        gpu: &Gpu,
        config: &DecoderConfig,
        (rows, score_stride): (usize, u32),
    ) -> Result<(), ModelError> {
        let group = config.num_heads / config.num_kv_heads;
        self.params = BlockScoreParams {
            num_heads: config.num_heads,
            num_kv_heads: config.num_kv_heads,
            q_stride: config.num_heads * config.head_dim,
            heads_a_set: if self.by.one_set { config.num_heads } else { group },
            score_stride,
            sink_blocks: self.by.sink_blocks,
            recent_blocks: self.by.recent_blocks,
            recent_full: u32::from(self.by.recent_full),
            logit_scale: config.scale,
            ..BlockScoreParams::default()
        };
        let len = block_score::bounds_len(&self.params, rows);
        self.bounds.as_mut().map_or(Ok(()), |bounds| fit(gpu, bounds, len))
    }

    pub(super) fn score(&self, pass: &mut Pass, site: &Site<'_>, scores: &Buf<f32>) {
        let Some(pool) = &self.pools.pools[site.layer] else { return };
        let bindings = [site.q.into(), pool.into(), site.tables.into(), site.rows.into(), scores.into()];
        let bindings: Vec<Bind> = bindings.into_iter().chain(self.bounds.as_ref().map(Bind::from)).collect();
        pass.dispatch(
            &self.score,
            &self.params,
            &bindings,
            block_score::grid(self.digest, &self.params, site.count),
        );
    }
}
