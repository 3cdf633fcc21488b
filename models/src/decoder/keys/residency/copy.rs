//! Copies of pages to their slots, from the host or from what a step wrote.

use std::ops::Range;

use attn_kernels::gpu::{Buf, Pass};
use attn_kernels::kernel::fetch_pages::{FetchPagesBuffers, FetchPagesParams};
use attn_kernels::rows::{KvWord, WrittenBlock};

use super::{FetchReason, PageContext, Residency};
use crate::KvPool;

/// Parameters of a copy of pages.
pub(super) struct Copied<'a> {
    pub(super) reason: FetchReason,
    /// Whether to copy the pages that were assigned slots.
    pub(super) fetch: bool,
    /// Blocks whose pages on the device are updated, and their number.
    pub(super) touched: &'a Buf<WrittenBlock>,
    pub(super) count: u32,
    /// K and V that pages are copied from.
    pub(super) source: [&'a Buf<KvWord>; 2],
    /// Range of blocks that the buffers of `source` hold.
    pub(super) held: Range<u32>,
}

impl Residency {
    /// Records fetches, and the update of the first `count` blocks that the step writes.
    pub(super) fn copy_step(
        &self,
        context: &mut PageContext<'_>,
        layer: usize,
        reason: FetchReason,
        fetch: bool,
        count: u32,
    ) {
        let touched = self.touched.on_device();
        let mut copy = |(held, source)| {
            let copied = Copied { reason, fetch, touched, count, source, held };
            self.copy(context.pass, context.kv, layer, &copied);
        };
        match context.written {
            Some(staging) => copy((0..u32::MAX, staging)),
            None => context.kv.host_layers(layer).for_each(copy),
        }
    }

    pub(super) fn copy(&self, pass: &mut Pass, kv: &KvPool, layer: usize, copied: &Copied<'_>) {
        let Some(resident) = &self.layers[layer] else { return };
        let ([host_k, host_v], (k, v)) = (copied.source, kv.layer(layer));
        let params = FetchPagesParams {
            fetch: u32::from(copied.fetch),
            touched: copied.count,
            first_block: copied.held.start,
            num_blocks: copied.held.end - copied.held.start,
            ..self.copied
        };
        let buffers = FetchPagesBuffers {
            fetches: resident.fetches(copied.reason).bind(),
            host_k: host_k.bind(),
            host_v: host_v.bind(),
            places: resident.places.bind(),
            touched: copied.touched.bind(),
            k: k.bind(),
            v: v.bind(),
        };
        pass.dispatch(&self.copy, &params, buffers);
    }
}
