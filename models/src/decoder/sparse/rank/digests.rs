//! Scores by digests of blocks: Quest, and policies that use mean keys.

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::KvShape;
use attn_kernels::kernel::block_digest::{self, BlockDigestBuffers, BlockDigestParams, Digest};
use attn_kernels::kernel::block_score::BlockScoreBuffers;
use attn_kernels::kernel::block_score::{self, BlockScoreParams};
use attn_kernels::rows::BlockTokens;
use sparse_select::{ByDigests, DigestKind, Policy};

use super::context::RankContext;
use crate::cast::u32_of;
use crate::decoder::buffers::GrowBuf;
use crate::decoder::kernels::LoadContext;
use crate::{DecoderConfig, ModelError};

/// Digests of every block, in each layer that selects.
#[derive(Debug)]
pub(super) struct DigestPools {
    shape: KvShape,
    num_blocks: u32,
    pipeline: Arc<Pipeline>,
    /// Digests of each layer; `None` if the layer does not select.
    pub(super) pools: Vec<Option<Buf<u32>>>,
    /// Number of blocks to digest, and their list, by attention group.
    touched: Vec<(u32, GrowBuf<BlockTokens>)>,
}

impl DigestPools {
    pub(super) fn new(load: &LoadContext<'_>, digest: Digest, selects: &[bool]) -> Result<Self, ModelError> {
        let LoadContext { gpu, kv, attn_groups, .. } = *load;
        let (shape, num_blocks) = (*kv.shape(), kv.num_blocks());
        let len = digest.pool_len(&shape, num_blocks as usize);
        let pool = |selects: &bool| selects.then(|| gpu.buffer("digests", len)).transpose();
        Ok(Self {
            shape,
            num_blocks,
            pipeline: gpu.pipeline(&block_digest::variant(&shape, digest))?,
            pools: selects.iter().map(pool).collect::<Result<_, _>>()?,
            touched: (0..attn_groups.all.len())
                .map(|_| Ok((0, GrowBuf::new(gpu, "touched", 1)?)))
                .collect::<Result<_, ModelError>>()?,
        })
    }

    /// Plans the full blocks to digest in the layers of an attention group, in a list of `list_len` entries.
    pub(super) fn touch(
        &mut self,
        gpu: &Gpu,
        attn_group: usize,
        blocks: &[u32],
        list_len: usize,
    ) -> Result<(), ModelError> {
        let tokens = self.shape.block_size;
        let block = |block: &u32| BlockTokens { block: *block, tokens };
        let mut blocks: Vec<BlockTokens> = blocks.iter().map(block).collect();
        blocks.resize(list_len, BlockTokens::NONE);
        block_digest::check(&self.shape, bytemuck::cast_slice(&blocks), self.num_blocks)?;
        let (count, touched) = &mut self.touched[attn_group];
        touched.write(gpu, &blocks)?;
        *count = u32_of(blocks.len());
        Ok(())
    }

    /// Adds the numbers that the step's commands depend on.
    pub(super) fn shape(&self, shape: &mut Vec<usize>) {
        shape.extend(self.touched.iter().flat_map(|(count, list)| [*count as usize, list.len()]));
    }

    pub(super) fn summarise(&self, pass: &mut Pass, context: &RankContext<'_>) {
        let (Some(pool), (touched, blocks)) = (&self.pools[context.layer], &self.touched[context.attn_group])
        else {
            return;
        };
        if *touched == 0 {
            return;
        }
        for (held, [k, _]) in context.kv.by_id(context.layer) {
            let whole = BlockDigestParams::new(self.shape.num_kv_heads, *touched);
            let params =
                BlockDigestParams { first_block: held.start, num_blocks: held.end - held.start, ..whole };
            let buffers =
                BlockDigestBuffers { touched: blocks.bind(), k_cache: k.bind(), digests: pool.bind() };
            pass.dispatch(&self.pipeline, &params, buffers);
        }
    }
}

/// Scores of blocks from their digests.
#[derive(Debug)]
pub(super) struct DigestScorer {
    by: ByDigests,
    pub(super) pools: DigestPools,
    score: Arc<Pipeline>,
    /// Parameters of the step, the same in all its layers.
    params: BlockScoreParams,
    /// Kernels and buffers of scores with bounds of attention mass; `None` if the digests give no bounds.
    bounding: Option<Bounding>,
    /// Whether the step requests bounds.
    bounds: bool,
}

/// Kernels and buffers of scores with bounds of attention mass.
#[derive(Debug)]
struct Bounding {
    score: Arc<Pipeline>,
    /// Bounds in the current layer, `[rows, num_heads, score_stride]`.
    bounds: GrowBuf<f32>,
}

impl DigestScorer {
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
        let bounding = || -> Result<Bounding, ModelError> {
            let score = block_score::with_bounds(kv.shape(), config.num_heads, block);
            Ok(Bounding { score: gpu.pipeline(&score)?, bounds: GrowBuf::new(gpu, "bounds", 1)? })
        };
        Ok(Self {
            by,
            pools: DigestPools::new(load, digest, selects)?,
            score: gpu.pipeline(&gpu.block_score(block_score::variant(
                kv.shape(),
                config.num_heads,
                digest,
                block,
            )))?,
            params: BlockScoreParams::default(),
            bounding: certifies.then(bounding).transpose()?,
            bounds: false,
        })
    }

    pub(super) fn begin(
        &mut self,
        gpu: &Gpu,
        config: &DecoderConfig,
        rows: usize,
        score_stride: u32,
        bounds: bool,
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
        self.bounds = bounds;
        let len = block_score::bounds_len(&self.params, rows);
        let bounding = self.bounding.as_mut().filter(|_| bounds);
        bounding.map_or(Ok(()), |bounding| bounding.bounds.fit(gpu, len))
    }

    /// Adds the numbers that the step's commands depend on.
    pub(super) fn shape(&self, shape: &mut Vec<usize>) {
        self.pools.shape(shape);
        shape.push(self.bounds().map_or(0, |bounds| 1 + bounds.len()));
    }

    /// Returns bounds of the attention mass of blocks in the current layer, in steps that request them.
    pub(super) fn bounds(&self) -> Option<&Buf<f32>> {
        self.bounding.as_ref().filter(|_| self.bounds).map(|bounding| &*bounding.bounds)
    }

    pub(super) fn score(&self, pass: &mut Pass, context: &RankContext<'_>, scores: &Buf<f32>) {
        let Some(pool) = &self.pools.pools[context.layer] else { return };
        let buffers = BlockScoreBuffers {
            q: context.q.bind(),
            digests: pool.bind(),
            tables: context.tables.bind(),
            rows: context.rows.bind(),
            scores: scores.bind(),
            bounds: self.bounds().map(Buf::bind),
        };
        let bounding = self.bounding.as_ref().filter(|_| self.bounds);
        let score = bounding.map_or(&self.score, |bounding| &bounding.score);
        let params = BlockScoreParams { rows: context.count, ..self.params };
        pass.dispatch(score, &params, buffers);
    }
}
