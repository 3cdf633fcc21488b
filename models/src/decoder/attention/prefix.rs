//! Prefills with prefixes longer than a limit, which are attended in chunks and merged by log-sum-exp.

use attn_kernels::kernel::chunked_prefix::{ChunkedPrefix, PrefixRows};
use attn_kernels::kernel::paged_prefill::{PagedPrefillParams, Tile};
use attn_kernels::launch::{PrefixBuffers, PrefixPass};

use super::heads::Heads;
use crate::decoder::batch::Dense;
use crate::decoder::ops::Ctx;
use crate::{ModelError, Reach};

impl Heads {
    /// Divides the prefixes of a step into chunks, if one exceeds its sequence's share of the capacity, and records the block
    /// tables of the chunks. This is not needed for windows, which see few keys, for selections, which have lists, and for keys
    /// that pass through the ring.
    pub(super) fn begin(&mut self, ctx: &mut Ctx<'_>) -> Result<(), ModelError> {
        self.prefixes.clear();
        for ((index, attn_group), rows) in ctx.attn_groups.all.iter().enumerate().zip(&ctx.batch.attn_groups)
        {
            let tiles = &rows.all.tiles;
            let resident = self.sparse.is_none() && ctx.offload_plan.stream(index, Dense::All).is_none();
            let chunked = if attn_group.reach == Reach::Full && resident && !tiles.is_empty() {
                let (capacity, tile_rows) = (self.prefix_capacity, self.forms.tile_rows());
                Some(ChunkedPrefix::new(&sequences(tiles), capacity, attn_group.block_size, tile_rows)?)
            } else {
                None
            };
            let prefix = match chunked.filter(|chunked| !chunked.chunks.is_empty()) {
                Some(chunked) => {
                    let shape = [ctx.rows(), ctx.config.num_heads, ctx.config.head_dim];
                    Some(PrefixPass::new(ctx.gpu, ctx.pass, &chunked, ctx.batch.tables.on_device(), shape)?)
                }
                None => None,
            };
            self.prefixes.push(prefix);
        }
        let streams = ctx.offload_plan.streams() && self.merge.is_some();
        if streams || self.prefixes.iter().any(Option::is_some) {
            // Merges go over all rows: those that are in no tile must have a finite lse to stay as they are.
            let heads = (ctx.rows() * ctx.config.num_heads) as usize;
            ctx.gpu.write(&ctx.act.lse, 0, &vec![0.0; heads]);
        }
        Ok(())
    }

    /// Records the attention of the tiles of a layer, if their prefixes are in chunks. Returns whether they are.
    pub(super) fn attend_prefixes(
        &self,
        ctx: &mut Ctx<'_>,
        layer: usize,
        params: PagedPrefillParams,
    ) -> bool {
        let attn_group = ctx.attn_groups.of_layers[layer];
        let Some(prefix) = self.prefixes.get(attn_group).and_then(Option::as_ref) else { return false };
        let (act, (k, v)) = (ctx.act, ctx.kv.layer(layer));
        let (q, tables) = (&act.q, ctx.batch.tables.on_device());
        let buffers = PrefixBuffers { q, k, v, tables, out: &act.attended, lse: &act.lse };
        prefix.attend(ctx.gpu, ctx.pass, buffers, params, &self.kernels(attn_group).prefill);
        true
    }
}

/// Returns the sequences of `tiles`: each has a block table of its own.
fn sequences(tiles: &[Tile]) -> Vec<PrefixRows> {
    let sequence = |tiles: &[Tile]| PrefixRows {
        row: tiles[0].row,
        rows: tiles.iter().map(|tile| tile.rows).sum(),
        prefix: tiles[0].position,
        table: tiles[0].table,
    };
    tiles.chunk_by(|a, b| a.table == b.table).map(sequence).collect()
}
