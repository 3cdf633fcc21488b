//! Tiles of prefills whose keys come to the device in parts: through the ring, or in slots for pages.

use std::ops::Range;

use attn_kernels::kernel::paged_prefill::{self, PagedPrefillParams};

use super::merge::Merge;
use super::tiles::Tiles;
use crate::cast::u32_of;
use crate::decoder::keys::RingGroup;
use crate::decoder::ops::Ctx;
use crate::decoder::ring_schedule::KeyRange;
use crate::decoder::ring_schedule::RingAttention;

/// Tiles of a ring group that attend chunk by chunk.
struct StreamedTiles<'a> {
    tiles: &'a Tiles<'a>,
    /// Range of these tiles among all tiles of the step.
    range: Range<usize>,
    seen: Range<u32>,
    /// Number of chunks so far.
    chunks: u32,
}

impl<'a> Tiles<'a> {
    /// Returns the tiles of a ring group, if it has any.
    pub(super) fn streamed(
        &'a self,
        ctx: &Ctx<'_>,
        group: &RingGroup,
    ) -> Option<Box<dyn RingAttention + 'a>> {
        let range = group.tiles(&self.rows.rows.tiles);
        let tiles = &self.rows.rows.tiles[range.clone()];
        let (first, last) = self.seen(ctx, tiles)?.into_inner();
        Some(Box::new(StreamedTiles { tiles: self, range, seen: first..last + 1, chunks: 0 }))
    }
}

impl RingAttention for StreamedTiles<'_> {
    fn seen(&self) -> Range<u32> {
        self.seen.clone()
    }

    fn attend(&mut self, ctx: &mut Ctx<'_>, keys: KeyRange) {
        let (act, rows) = (ctx.act, self.tiles.rows);
        let merge = self.tiles.heads.merge.as_ref().filter(|_| self.chunks > 0);
        self.chunks += 1;
        let to = merge.map_or([&act.attended, &act.lse], Merge::part);
        let buffers = self.tiles.buffers(ctx, rows.rows.tiles.bind_from(self.range.start), keys.at, to);
        let tiles = u32_of(self.range.len());
        let end = keys.first + keys.len;
        let last = self.seen.end.min(end) - 1;
        for (offset, num_keys) in paged_prefill::segments(0, last - keys.first, ctx.gpu.is_cpu()) {
            let first_key = keys.first + offset;
            let num_keys = num_keys.min(end - first_key);
            let params = PagedPrefillParams { first_key, num_keys, tiles, ..self.tiles.params(ctx) };
            ctx.pass.dispatch(&rows.kernels.prefill, &params, buffers.clone());
        }
        if let Some(merge) = merge {
            merge.record(ctx, &rows.rows.tiles[self.range.clone()]);
        }
    }

    fn end(&mut self, ctx: &mut Ctx<'_>) {
        self.tiles.apply_sinks(ctx, &self.tiles.rows.rows.tiles[self.range.clone()]);
    }
}
