//! Rows of prefills that are attended in tiles.

use std::ops::RangeInclusive;

use attn_kernels::gpu::{Bind, Buf};
use attn_kernels::kernel::apply_sinks::{ApplySinksBuffers, ApplySinksParams};
use attn_kernels::kernel::paged_prefill::{self, PagedPrefillBuffers, PagedPrefillParams, Tile};
use attn_kernels::kernel::prefill_reduce::{PrefillReduceBuffers, PrefillReduceParams};
use attn_kernels::split::KeySplit;

use super::heads::Heads;
use super::merge::contiguous_rows;
use super::rows::HeadRows;
use crate::cast::u32_of;
use crate::decoder::keys::{Keys, Needed, Residency, SlotCapacity, TILE_KEYS};
use crate::decoder::ops::Ctx;
use crate::decoder::sparse::Selected;
use crate::kv::KeysIn;

/// Range of keys of one dispatch over tiles.
struct Segment {
    first_key: u32,
    num_keys: u32,
}

/// The tiles of some rows.
pub(super) struct Tiles<'a> {
    pub(super) heads: &'a Heads,
    pub(super) rows: &'a HeadRows<'a>,
}

impl Tiles<'_> {
    /// Records the attention of all tiles.
    pub(super) fn attend(&self, ctx: &mut Ctx<'_>) {
        let (act, rows) = (ctx.act, self.rows.rows);
        let Some(seen) = self.seen(ctx, &rows.tiles) else { return };
        let params = self.params(ctx);
        let by_prefixes = self.heads.attend_prefixes(ctx, self.rows.layer, params);
        if !by_prefixes && self.rows.parts.count > 1 {
            self.attend_parts(ctx, params);
        } else if !by_prefixes {
            let buffers = |to| self.buffers(ctx, rows.tiles.bind(), KeysIn::Layer, to);
            let whole = buffers([&act.attended, &act.lse]);
            let part = self.heads.merge.as_ref().map(|merge| (merge, buffers(merge.part())));
            for (n, Segment { first_key, num_keys }) in self.segments(ctx, seen).enumerate() {
                self.make_resident(ctx, first_key, num_keys);
                let params =
                    PagedPrefillParams { first_key, num_keys, tiles: u32_of(rows.tiles.len()), ..params };
                let part = part.as_ref().filter(|_| n > 0);
                let to = part.map_or(&whole, |(_, part)| part);
                ctx.pass.dispatch(&self.rows.kernels.prefill, &params, to.clone());
                if let Some((merge, _)) = part {
                    merge.record(ctx, &rows.tiles);
                }
            }
        }
        if let Some(selected) = self.rows.selected {
            selected.correct(ctx, self.rows.layer);
        }
        self.apply_sinks(ctx, &rows.tiles);
    }

    /// Records the attention of all tiles to each part of their keys concurrently, and the reduction of the parts.
    fn attend_parts(&self, ctx: &mut Ctx<'_>, params: PagedPrefillParams) {
        let (act, c, KeySplit { count, keys }) = (ctx.act, ctx.config, self.rows.parts);
        let to = [&*act.part_out, &*act.part_lse];
        let buffers = self.buffers(ctx, self.rows.rows.tiles.bind(), KeysIn::Layer, to);
        let tiles = u32_of(self.rows.rows.tiles.len());
        let params =
            PagedPrefillParams { tiles, parts: count, part_keys: keys, part_rows: ctx.rows(), ..params };
        ctx.pass.dispatch(&self.rows.kernels.prefill, &params, buffers);
        for run in contiguous_rows(&self.rows.rows.tiles) {
            let params = PrefillReduceParams {
                rows: (run.end - run.start) * c.num_heads,
                first_row: run.start * c.num_heads,
                parts: count,
                part_rows: ctx.rows() * c.num_heads,
                neg_inf: f32::NEG_INFINITY,
            };
            let buffers = PrefillReduceBuffers {
                part_out: act.part_out.bind(),
                part_lse: act.part_lse.bind(),
                out: act.attended.bind(),
                lse: act.lse.bind(),
            };
            ctx.pass.dispatch(&self.heads.prefill_reduce, &params, buffers);
        }
    }

    /// Returns the positions that the rows of the tiles see, from the first to the last; `None` without tiles.
    pub(super) fn seen(&self, ctx: &Ctx<'_>, tiles: &[Tile]) -> Option<RangeInclusive<u32>> {
        let last = tiles.iter().map(|tile| tile.position + tile.rows - 1).max()?;
        let reach = ctx.config.layers[self.rows.layer].reach;
        Some(tiles.iter().map(|tile| reach.first_key(tile.position)).min()?..=last)
    }

    /// Returns the buffers of a dispatch over `tiles` that writes to `out` and `lse`.
    pub(super) fn buffers(
        &self,
        ctx: &Ctx<'_>,
        tiles: Bind<Tile>,
        keys: KeysIn,
        [out, lse]: [&Buf<f32>; 2],
    ) -> PagedPrefillBuffers {
        let [k, v] = ctx.kv.keys_in(self.rows.layer, keys) else {
            unreachable!("heads have keys and values")
        };
        PagedPrefillBuffers {
            q: self.rows.q.bind(),
            k_cache: k.bind(),
            v_cache: v.bind(),
            tables: self.rows.tables(ctx),
            tiles,
            out: out.bind(),
            lse: lse.bind(),
            selected: self.rows.selected.map(|selected| selected.chunk_lists.bind.clone()),
            slopes: None,
        }
    }

    /// Returns the parameters of a dispatch over all keys.
    pub(super) fn params(&self, ctx: &Ctx<'_>) -> PagedPrefillParams {
        let c = ctx.config;
        PagedPrefillParams {
            num_heads: c.num_heads,
            num_kv_heads: c.num_kv_heads,
            q_stride: c.num_heads * c.head_dim,
            scale: c.scale,
            softcap: c.score_softcap.unwrap_or_default(),
            list_stride: self.rows.selected.map_or(0, |selected| selected.chunk_lists.stride),
            window: c.layers[self.rows.layer].reach.tokens(),
            log_skip: self.heads.log_skip(self.rows.layer, ctx.batch.longest),
            ..PagedPrefillParams::default()
        }
    }

    /// Returns the selection and the capacity for its pages, if these have slots on the device.
    fn in_slots(&self) -> Option<(&Selected<'_>, SlotCapacity)> {
        match (self.rows.keys, self.rows.selected) {
            (Keys::Slots(capacity), Some(selected)) => Some((selected, capacity)),
            _ => None,
        }
    }

    fn make_resident(&self, ctx: &mut Ctx<'_>, first_key: u32, num_keys: u32) {
        let Some((selected, _)) = self.in_slots() else { return };
        let page = |key: u32| key / ctx.kv.shape().block_size;
        let pages = page(first_key)..page(first_key + num_keys);
        let Some(requests) = ctx.keys.pages().map(Residency::tile_requests) else { return };
        ctx.make_resident(&Needed { layer: self.rows.layer, lists: &selected.chunk_lists, requests, pages });
    }

    /// Returns the dispatches over tiles that see a range of keys. If pages have slots, a dispatch covers only as many keys as
    /// fit for all lists together.
    fn segments(&self, ctx: &Ctx<'_>, seen: RangeInclusive<u32>) -> impl Iterator<Item = Segment> + use<> {
        let (first, last) = seen.into_inner();
        let (slots, end) = match self.in_slots() {
            Some((selected, capacity)) => {
                let keys = capacity.tile_pages() * ctx.kv.shape().block_size;
                (Some(keys / TILE_KEYS * TILE_KEYS), last.min(selected.chunk_tokens().saturating_sub(1)))
            }
            None => (None, last),
        };
        paged_prefill::segments(first, end, ctx.gpu.is_cpu()).flat_map(move |(segment, keys)| {
            let step = slots.map_or(keys, |slots| slots.min(keys));
            let past = segment.saturating_add(keys);
            let segment = segment..past.min(end + 1);
            let of = move |first_key| Segment { first_key, num_keys: step.min(past - first_key) };
            segment.step_by(step as usize).map(of)
        })
    }

    /// Records the sinks of the rows of tiles. Decode rows get theirs in the reduction.
    pub(super) fn apply_sinks(&self, ctx: &mut Ctx<'_>, tiles: &[Tile]) {
        let Some(sinks) = self.rows.sinks else { return };
        let (act, c) = (ctx.act, ctx.config);
        for run in contiguous_rows(tiles) {
            let (first_row, rows) = (run.start, run.end - run.start);
            let params = ApplySinksParams { first_row, rows, num_heads: c.num_heads };
            let buffers =
                ApplySinksBuffers { lse: act.lse.bind(), sinks: sinks.bind(), out: act.attended.bind() };
            ctx.pass.dispatch(&self.heads.apply_sinks, &params, buffers);
        }
    }
}
