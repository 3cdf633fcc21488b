//! Selections that certify a mass, in kernels: how many blocks a row keeps is decided on the device, and read at the end of a
//! step.

use std::sync::Arc;

use attn_kernels::gpu::{Bind, Buf, Gpu, Pass, Pipeline};
use attn_kernels::kernel::block_lse::{self, BlockLseParams};
use attn_kernels::kernel::list_counts::{self, ListCountsParams};
use attn_kernels::kernel::mass_cut::{self, MassCutParams, TURNS};
use sparse_select::Policy;
use sparse_select::certificate::odds;

use super::rank::Site;
use super::{Place, Sparse, fit, u32_of};
use crate::decoder::Decoder;
use crate::{DecoderConfig, KvPool, ModelError};

/// Kernels and buffers of such a selection.
#[derive(Debug)]
pub(super) struct Mass {
    lse: Arc<Pipeline>,
    cut: Arc<Pipeline>,
    count: Arc<Pipeline>,
    odds: f32,
    /// Tokens of a block.
    select_block: u32,
    /// `[rows, num_heads, score_stride]`
    lses: Buf<f32>,
    /// `[rows, num_kv_heads]`
    cuts: Buf<[u32; 4]>,
    /// `[first list, lists]` of every row.
    spans: Buf<[u32; 2]>,
    /// Blocks that lists name, `[layers, rows]`.
    pub(super) counts: Buf<u32>,
}

impl Mass {
    /// `None` where a budget decides.
    pub(super) fn new(
        gpu: &Gpu,
        policy: &dyn Policy,
        (config, kv): (&DecoderConfig, &KvPool),
    ) -> Result<Option<Self>, ModelError> {
        let Some(mass) = policy.mass() else { return Ok(None) };
        let select_block = policy.block_size().get();
        #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
        let odds = odds(mass) as f32;
        Ok(Some(Self {
            lse: gpu.pipeline(&block_lse::variant(kv.shape(), config.num_heads, select_block))?,
            cut: gpu.pipeline(&mass_cut::variant(config.num_heads / config.num_kv_heads))?,
            count: gpu.pipeline(&list_counts::variant())?,
            odds,
            select_block,
            lses: gpu.buffer("lses", 1)?,
            cuts: gpu.buffer("cuts", 1)?,
            spans: gpu.buffer("spans", 1)?,
            counts: gpu.buffer("counts", 1)?,
        }))
    }

    /// Makes room for `rows` rows of at most `blocks` blocks in `layers` layers.
    pub(super) fn fit(
        &mut self,
        gpu: &Gpu,
        config: &DecoderConfig,
        [layers, rows]: [usize; 2],
        blocks: u32,
    ) -> Result<(), ModelError> {
        let kv_heads = config.num_kv_heads;
        fit(gpu, &mut self.lses, rows * config.num_heads as usize * blocks as usize)?;
        fit(gpu, &mut self.cuts, rows * kv_heads as usize)?;
        fit(gpu, &mut self.spans, rows)?;
        let spans: Vec<[u32; 2]> = (0..u32_of(rows)).map(|row| [row * kv_heads, kv_heads]).collect();
        gpu.write(&self.spans, 0, &spans);
        fit(gpu, &mut self.counts, layers * rows)
    }
}

impl Decoder {
    /// Records the lists of a layer whose blocks are scored: the keys of blocks are read as far down their order as no bound
    /// makes the mass certain.
    pub(super) fn cut_by_mass(&self, pass: &mut Pass, sparse: &Sparse, mass: &Mass, site: &Site<'_>) {
        let Some(ranker) = &sparse.ranker else { return };
        let (Some(bounds), Some(Place { stride, .. })) = (ranker.bounds(), sparse.placed[site.layer]) else {
            return;
        };
        let config = &self.config;
        let lse = BlockLseParams {
            num_heads: config.num_heads,
            num_kv_heads: config.num_kv_heads,
            q_stride: config.num_heads * config.head_dim,
            stride: ranker.score_stride,
            scale: config.scale,
            first: 0,
            pad0: 0,
            pad1: 0,
        };
        let cut = MassCutParams {
            num_heads: config.num_heads,
            num_kv_heads: config.num_kv_heads,
            stride: ranker.score_stride,
            select_block: mass.select_block,
            list_stride: stride,
            turn: 0,
            odds: mass.odds,
            pad0: 0,
        };
        let of_lse: [Bind; 7] = [
            site.q.into(),
            site.k.into(),
            site.tables.into(),
            site.rows.into(),
            (&ranker.scores).into(),
            (&mass.cuts).into(),
            (&mass.lses).into(),
        ];
        let of_cut: [Bind; 6] = [
            site.rows.into(),
            (&ranker.scores).into(),
            bounds.into(),
            (&mass.lses).into(),
            (&mass.cuts).into(),
            (&sparse.lists).into(),
        ];
        let lse_grid = block_lse::grid(&lse, mass.select_block, site.count);
        for turn in TURNS {
            let lse = BlockLseParams { first: u32::from(turn == mass_cut::FIRST), ..lse };
            pass.dispatch(&mass.lse, &lse, &of_lse, lse_grid);
            pass.dispatch(
                &mass.cut,
                &MassCutParams { turn, ..cut },
                &of_cut,
                mass_cut::grid(&cut, site.count),
            );
        }
        let first = u32_of(site.layer) * site.count;
        let params = ListCountsParams { list_stride: stride, first, pad0: 0, pad1: 0 };
        let bindings = [(&sparse.lists).into(), (&mass.spans).into(), (&mass.counts).into()];
        pass.dispatch(&mass.count, &params, &bindings, list_counts::grid(site.count));
    }
}
