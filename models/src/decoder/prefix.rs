//! Prefills behind prefixes longer than a limit: attended chunk by chunk, merged by log-sum-exp.

use attn_kernels::gpu::{Pass, PrefixBuffers, PrefixPass};
use attn_kernels::kernel::chunked_prefix::{ChunkedPrefix, PrefixRows};
use attn_kernels::kernel::paged_prefill::{self, PagedPrefillParams, Tile};
use attn_kernels::kernel::paged_prefill_coop;

use super::Decoder;
use super::inputs::Plan;
use crate::{ModelError, Reach};

impl Decoder {
    /// Cuts the prefixes of a step, where one is longer than its sequence's share of the capacity, and records the
    /// filling of the chunks' tables. Layers of limited reach see few keys, and selections have lists of their own.
    pub(super) fn begin_prefixes(&mut self, pass: &mut Pass, plan: &Plan) -> Result<(), ModelError> {
        self.prefixes.clear();
        for (view, rows) in self.views.iter().zip(&plan.views) {
            let tiles = &rows.all.tiles;
            let cut = if view.reach == Reach::Full && self.sparse.is_none() && !tiles.is_empty() {
                let tile_rows = self.prefill().tile_rows;
                let capacity = self.options.prefix_capacity;
                Some(ChunkedPrefix::new(&sequences(tiles), capacity, view.block_size, tile_rows)?)
            } else {
                None
            };
            let prefix = match cut.filter(|cut| !cut.chunks.is_empty()) {
                Some(cut) => {
                    let shape = [plan.rows, self.config.num_heads, self.config.head_dim];
                    Some(PrefixPass::new(&self.gpu, pass, &cut, &self.inputs.tables, shape)?)
                }
                None => None,
            };
            self.prefixes.push(prefix);
        }
        if self.prefixes.iter().any(Option::is_some) {
            // Merges go over all rows: those of decode slices must have a finite lse to stay as they are.
            let decode = (plan.decode_until * self.config.num_heads) as usize;
            self.gpu.write(&self.activations.lse, 0, &vec![0.0; decode]);
        }
        Ok(())
    }

    /// Drops the buffers of the step's prefixes.
    pub(super) fn end_prefixes(&mut self) {
        if self.prefixes.iter().any(Option::is_some) {
            self.gpu.forget_bind_groups();
        }
        self.prefixes.clear();
    }

    /// Records the attention of the tiles of layer `index`, if their prefixes are cut.
    pub(super) fn attend_prefixes(&self, pass: &mut Pass, index: usize, params: PagedPrefillParams) -> bool {
        let view = self.layers[index].view;
        let Some(prefix) = self.prefixes.get(view).and_then(Option::as_ref) else { return false };
        let (a, (k, v)) = (&self.activations, self.kv.layer(index));
        let (q, tables) = (&a.q, &self.inputs.tables);
        let buffers = PrefixBuffers { q, k, v, tables, out: &a.attended, lse: &a.lse };
        let (num_heads, shape) = (self.config.num_heads, self.kv.shape());
        let grid = |tiles| match self.coop {
            true => paged_prefill_coop::grid(num_heads, tiles),
            false => paged_prefill::grid(shape, num_heads, self.key_loads, tiles),
        };
        let prefill = &self.pipelines.attention[view].prefill;
        prefix.attend(&self.gpu, pass, buffers, params, (prefill, &grid));
        true
    }
}

/// The sequences that `tiles` are of: each has a block table of its own.
fn sequences(tiles: &[Tile]) -> Vec<PrefixRows> {
    let sequence = |tiles: &[Tile]| PrefixRows {
        row: tiles[0].row,
        rows: tiles.iter().map(|tile| tile.rows).sum(),
        prefix: tiles[0].position,
        table: tiles[0].table,
    };
    tiles.chunk_by(|a, b| a.table == b.table).map(sequence).collect()
}
