//! Copies of blocks between host memory, slots of the ring, staging blocks, and a layer's own buffers.

use std::ops::Range;

use std::sync::Arc;

use attn_kernels::gpu::{Buf, Pipeline};
use attn_kernels::kernel::swap_blocks::{Link, SwapBlocksBuffers, SwapBlocksParams};
use attn_kernels::rows::{BlockCopy, KvWord};

use super::super::lists::is_run;
use super::super::staging::StagingBlocks;
use super::super::transfer::TransferContext;
use crate::KvPool;
use crate::cast::u32_of;
use crate::kv::{KeysIn, block_runs};

/// Transport of blocks between host and device.
#[derive(Debug)]
pub(super) enum BlockTransport {
    /// A kernel copies blocks, as it can access host memory (49 GB/s on an H200).
    Kernel(Arc<Pipeline>),
    /// Copy commands of the queue, if kernels cannot (10 GB/s on an H200).
    Queue,
}

impl BlockTransport {
    /// Records copies of blocks of a layer.
    pub(super) fn copy(
        &self,
        context: &mut TransferContext<'_>,
        staging: &StagingBlocks,
        layer: usize,
        transfer: Transfer,
    ) {
        let Transfer { from, to, pairs } = transfer;
        let kv = context.kv;
        let segment = |pair: &BlockCopy| match (from, to) {
            (End::Host, _) => kv.segment_of(pair.from),
            (_, End::Host | End::Board) => kv.segment_of(pair.to),
            _ => 0,
        };
        let mut copies = Copies { layer, from, to, list: pairs.start, pairs: 0..0, segment: 0 };
        let together = |a: &BlockCopy, b: &BlockCopy| is_run(a, b, |a, b| segment(a) == segment(b));
        for some in context.offload_plan.lists.pairs[pairs].chunk_by(together) {
            copies.segment = if some[0].is_some() { segment(&some[0]) } else { 0 };
            copies.pairs = copies.pairs.end..copies.pairs.end + some.len();
            self.copy_segment(context, staging, &copies);
        }
    }

    fn copy_segment(&self, context: &mut TransferContext<'_>, staging: &StagingBlocks, copies: &Copies) {
        let (kv, words) = (context.kv, context.kv.attended(copies.layer).1);
        let Copies { from, to, list, ref pairs, .. } = *copies;
        let ends = |end| buffers(kv, staging, copies, end).into_iter();
        let [first_source, first_target] = [from, to].map(|end| match end {
            End::Host | End::Board => kv.first_of_segment(copies.segment),
            _ => 0,
        });
        for (source, target) in ends(from).zip(ends(to)) {
            match self {
                Self::Kernel(kernel) => {
                    assert!(
                        words.is_multiple_of(4),
                        "blocks of {words} words, of which four tokens are 16 bytes"
                    );
                    let over_bus = [from, to].contains(&End::Host) && !kv.is_in_place();
                    let way = if over_bus { Link::Bus } else { Link::Memory };
                    let params = SwapBlocksParams {
                        first_pair: u32_of(pairs.start),
                        first_source,
                        first_target,
                        ..SwapBlocksParams::new(u32_of(words / 4), u32_of(pairs.len()), way)
                    };
                    let buffers = SwapBlocksBuffers {
                        pairs: context.offload_plan.lists.pairs.bind_from(list),
                        source: source.bind(),
                        pool: target.bind(),
                    };
                    context.pass.dispatch(kernel, &params, buffers);
                }
                Self::Queue => {
                    let pair = |pair: &BlockCopy| (pair.from - first_source, pair.to - first_target);
                    let of_list = context.offload_plan.lists.pairs[list..][pairs.clone()].iter();
                    for run in
                        block_runs(&of_list.filter(|copy| copy.is_some()).map(pair).collect::<Vec<_>>())
                    {
                        let range = run.from.start as usize * words..run.from.end as usize * words;
                        context.pass.copy(source, range, target, run.device as usize * words);
                    }
                }
            }
        }
    }
}

/// Returns the buffers of a layer at one end of copies.
fn buffers<'a>(
    kv: &'a KvPool,
    staging: &'a StagingBlocks,
    copies: &Copies,
    end: End,
) -> Vec<&'a Buf<KvWord>> {
    let layer = copies.layer;
    match end {
        End::Host => kv.host_attended(layer, copies.segment).iter().collect(),
        End::Layer => kv.attended(layer).0.iter().collect(),
        End::Staging => staging.of(layer).collect(),
        // Keys alone: values end with them.
        End::Board => kv.board().get(copies.segment).into_iter().collect(),
        End::Slot(slot) => kv.keys_in(layer, KeysIn::Slot(slot)).iter().collect(),
    }
}

/// Copies from one end to another.
pub(super) struct Transfer {
    pub(super) from: End,
    pub(super) to: End,
    /// Range in the step's list of pairs.
    pub(super) pairs: Range<usize>,
}

/// Copies of blocks of a layer within one segment of the host's buffers or of the board.
struct Copies {
    layer: usize,
    from: End,
    to: End,
    /// First entry of the copies' list among the step's pairs.
    list: usize,
    /// Range of entries in the list.
    pairs: Range<usize>,
    segment: usize,
}

/// Source or target of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Host,
    Layer,
    Staging,
    Board,
    Slot(usize),
}
