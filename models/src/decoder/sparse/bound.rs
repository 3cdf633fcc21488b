//! The certificate of a step: the attention mass that lists certainly keep, from bounds of what they drop.

use attn_kernels::rows::DecodeRow;
use std::sync::Arc;

use attn_kernels::gpu::{Bind, Gpu, Pass, Pipeline, Read};
use attn_kernels::kernel::mass_bound::{self, MassBoundBuffers, MassBoundParams};
use attn_kernels::kernel::mass_merge::{self, MassMergeBuffers, MassMergeParams};
use attn_kernels::kernel::paged_decode::PagedDecodeParams;

use super::{Selected, Selector, Sparse, choosing};
use crate::ModelError;
use crate::cast::u32_of;
use crate::decoder::buffers::GrowBuf;
use crate::decoder::inputs::Plan;
use crate::decoder::ops::Ctx;

/// The certificate: what each layer's lists keep and may drop, and the least share kept of every row and query head.
#[derive(Debug)]
pub(super) struct Bound {
    shares_of: Arc<Pipeline>,
    /// Tokens of a block.
    select_block: u32,
    merge: Arc<Pipeline>,
    /// `[selecting layers, rows, num_heads, share_stride]`
    shares: GrowBuf<f32>,
    share_stride: u32,
    /// `[rows, num_heads]`
    masses: GrowBuf<f32>,
}

impl Bound {
    pub(super) fn new(gpu: &Gpu, select_block: u32) -> Result<Self, ModelError> {
        Ok(Self {
            shares_of: gpu.pipeline(&mass_bound::variant())?,
            select_block,
            merge: gpu.pipeline(&mass_merge::variant())?,
            shares: GrowBuf::new(gpu, "shares", 1)?,
            share_stride: 1,
            masses: GrowBuf::new(gpu, "masses", 1)?,
        })
    }

    /// Makes room for `rows` rows and heads of at most `blocks` blocks in `layers` layers.
    pub(super) fn fit(
        &mut self,
        gpu: &Gpu,
        layers: usize,
        rows: usize,
        blocks: u32,
    ) -> Result<(), ModelError> {
        self.share_stride = mass_bound::share_stride(blocks);
        self.shares.fit(gpu, layers * rows * self.share_stride as usize)?;
        self.masses.fit(gpu, rows)
    }
}

impl Sparse {
    /// Records the readback of the bounds of a step.
    pub(super) fn read_masses(&self, pass: &mut Pass, plan: &Plan) -> Option<Read<f32>> {
        let Selector::Ranked(ranker) = &self.selector else { return None };
        let bound = ranker.bound.as_ref()?;
        let rows = choosing(plan)?.selecting.len() * self.num_heads;
        (rows > 0).then(|| {
            let layers = u32_of(self.placed.iter().flatten().count());
            let share_stride = bound.share_stride;
            let params = MassMergeParams { layers, rows: u32_of(rows), share_stride };
            let buffers = MassMergeBuffers { shares: bound.shares.bind(), masses: bound.masses.bind() };
            pass.dispatch(&bound.merge, &params, buffers, mass_merge::grid(&params));
            pass.read(&bound.masses, 0..rows)
        })
    }

    /// Takes the bounds of a step.
    pub(super) fn take_masses(&mut self, plan: &Plan, masses: &[f32]) {
        let chosen = choosing(plan).into_iter().flat_map(|view| &view.selecting);
        for (chosen, masses) in chosen.zip(masses.chunks_exact(self.num_heads)) {
            let attended = self.attended[chosen.slice].as_mut().expect("the policy acts on chosen rows");
            attended.lower_mass(masses.iter().map(|mass| f64::from(*mass)));
        }
    }
}

impl Selected<'_> {
    /// Records the bound of the mass that `count` listed rows keep, behind the attention that left their stats.
    pub(in crate::decoder) fn bound_mass(
        &self,
        ctx: &mut Ctx<'_>,
        layer: usize,
        rows: &Bind<DecodeRow>,
        params: &PagedDecodeParams,
        count: u32,
    ) {
        let Selector::Ranked(ranker) = &self.sparse.selector else { return };
        let (Some(bound), Some(bounds)) = (&ranker.bound, ranker.bounds()) else { return };
        // Layers that select, one after the other.
        let before = u32_of(self.sparse.placed[..layer].iter().flatten().count());
        let rows_per_layer = ranker.chosen * params.num_heads;
        let shares_of = MassBoundParams {
            num_heads: params.num_heads,
            num_kv_heads: params.num_kv_heads,
            select_block: bound.select_block,
            list_stride: params.list_stride,
            max_partitions: params.max_partitions,
            bound_stride: ranker.score_stride,
            first_list: params.first_list,
            first_share: before * rows_per_layer * bound.share_stride,
            share_stride: bound.share_stride,
            partition_size: params.partition_size,
            slack: self.kernels.slack(),
        };
        let buffers = MassBoundBuffers {
            bounds: bounds.bind(),
            rows: rows.clone(),
            selected: self.lists.bind.clone(),
            stats: ctx.act.stats.bind(),
            shares: bound.shares.bind(),
        };
        ctx.pass.dispatch(&bound.shares_of, &shares_of, buffers, mass_bound::grid(&shares_of, count));
    }
}
