//! The certificate of a step: a lower bound of the attention mass that lists keep, from bounds of what they drop.

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Gpu, Pass, Pipeline, Read};
use attn_kernels::kernel::mass_bound::{self, MassBoundBuffers, MassBoundParams};
use attn_kernels::kernel::mass_merge::{self, MassMergeBuffers, MassMergeParams};

use super::{ListedRows, Rules};
use crate::ModelError;
use crate::cast::u32_of;
use crate::decoder::buffers::GrowBuf;
use crate::decoder::ops::Ctx;

/// Shares of attention mass that each layer's lists keep, and their minimum for every row and query head.
#[derive(Debug)]
pub(super) struct Shares {
    shares_of: Arc<Pipeline>,
    merge: Arc<Pipeline>,
    /// Shares of the attention mass that lists keep, `[selecting layers, rows, num_heads, share_stride]`.
    shares: GrowBuf<f32>,
    share_stride: u32,
    /// Minimum share over the layers, `[rows, num_heads]`.
    masses: GrowBuf<f32>,
    /// Number of rows of the step times the number of heads; 0 in a step without a certificate. The next field is the
    /// number of selecting layers.
    rows: u32,
    layers: u32,
}

/// Bounds of the attention mass of blocks in a layer.
pub(super) struct Bounds<'a> {
    /// Upper bounds of the attention mass of blocks, `[rows, num_heads, stride]`.
    pub(super) bounds: &'a Buf<f32>,
    pub(super) stride: u32,
    /// Number of selecting layers before this one.
    pub(super) before: u32,
}

impl Shares {
    pub(super) fn new(gpu: &Gpu) -> Result<Self, ModelError> {
        Ok(Self {
            shares_of: gpu.pipeline(&mass_bound::variant())?,
            merge: gpu.pipeline(&mass_merge::variant())?,
            shares: GrowBuf::new(gpu, "shares", 1)?,
            share_stride: 1,
            masses: GrowBuf::new(gpu, "masses", 1)?,
            rows: 0,
            layers: 0,
        })
    }

    /// Starts a step without a certificate.
    pub(super) fn clear(&mut self) {
        self.rows = 0;
    }

    /// Allocates buffers for `rows` pairs of a row and a head, with at most `blocks` blocks each, in `layers` layers.
    pub(super) fn fit(
        &mut self,
        gpu: &Gpu,
        layers: usize,
        rows: usize,
        blocks: u32,
    ) -> Result<(), ModelError> {
        self.share_stride = mass_bound::share_stride(blocks);
        (self.rows, self.layers) = (u32_of(rows), u32_of(layers));
        self.shares.fit(gpu, layers * rows * self.share_stride as usize)?;
        self.masses.fit(gpu, rows)
    }

    /// Returns the numbers that the step's commands depend on.
    pub(super) fn shape(&self) -> [usize; 5] {
        let [rows, layers, stride] = [self.rows, self.layers, self.share_stride].map(|n| n as usize);
        [rows, layers, stride, self.shares.len(), self.masses.len()]
    }

    /// Records the shares that lists keep in a layer, from the statistics of its attention.
    pub(super) fn record(
        &self,
        rules: &Rules,
        ctx: &mut Ctx<'_>,
        listed: &ListedRows<'_>,
        bounds: &Bounds<'_>,
    ) {
        if self.rows == 0 {
            return;
        }
        let params = listed.params;
        let shares_of = MassBoundParams {
            num_heads: params.num_heads,
            num_kv_heads: params.num_kv_heads,
            select_block: rules.block(),
            list_stride: params.list_stride,
            max_partitions: params.max_partitions,
            bound_stride: bounds.stride,
            first_row: params.first_row,
            first_share: bounds.before * self.rows * self.share_stride,
            share_stride: self.share_stride,
            partition_size: params.partition_size,
            slack: rules.slack,
            rows: listed.count,
        };
        let buffers = MassBoundBuffers {
            bounds: bounds.bounds.bind(),
            rows: listed.rows.clone(),
            selected: listed.lists.bind.clone(),
            stats: ctx.act.stats.bind(),
            shares: self.shares.bind(),
        };
        ctx.pass.dispatch(&self.shares_of, &shares_of, buffers);
    }

    /// Records the readback of the minimum shares of a step, `[rows, num_heads]`.
    pub(super) fn read(&self, pass: &mut Pass) -> Option<Read<f32>> {
        (self.rows > 0).then(|| {
            let Self { layers, rows, share_stride, .. } = *self;
            let params = MassMergeParams { layers, rows, share_stride };
            let buffers = MassMergeBuffers { shares: self.shares.bind(), masses: self.masses.bind() };
            pass.dispatch(&self.merge, &params, buffers);
            pass.read(&self.masses, 0..rows as usize)
        })
    }
}
