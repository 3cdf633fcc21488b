//! Reference of `paged_prefill`.

use std::collections::BTreeSet;
use std::ops::Range;

use super::PagedKv;
use super::attention::{Options, SkipTiles, attend};
use crate::kernel::paged_prefill::{PagedPrefillParams, Tile};

/// Computes the attention of tiles to the keys of the dispatch, `num_keys` keys from `first_key` on, up to each row's
/// position. Writes `out` `[*, num_heads, head_dim]` and `lse` `[*, num_heads]`. With `options.skip`, whole tiles of
/// rows and keys are left out, in the order of the keys, as `params.log_skip` says.
#[expect(clippy::too_many_arguments, reason = "the bindings of the kernel")]
pub fn paged_prefill(
    cache: &PagedKv<'_>,
    params: &PagedPrefillParams,
    q: &[f32],
    tables: &[u32],
    tiles: &[Tile],
    out: &mut [f32],
    lse: &mut [f32],
    options: &Options<'_>,
) {
    let head_dim = cache.shape.head_dim as usize;
    for tile in tiles {
        let table = &tables[tile.table as usize..];
        let rows = TileRows { cache, params, q, table, tile, options };
        for row in 0..tile.rows {
            for head in 0..params.num_heads as usize {
                let keys = rows.keys(row, head);
                let dropped = options.skip.map_or_else(BTreeSet::new, |skip| {
                    let first = row / skip.rows * skip.rows;
                    rows.dropped(first..tile.rows.min(first + skip.rows), head, skip)
                });
                let kept = keys.iter().filter(|(index, _)| !dropped.contains(index)).map(|(_, key)| *key);
                let logit = |product, key| rows.logit(row, head, product, key);
                let state = attend(cache, table, rows.kv_head(head), rows.query(row, head), kept, logit);
                let at = (tile.row + row) as usize * params.num_heads as usize + head;
                let row = &mut out[at * head_dim..][..head_dim];
                row.iter_mut().zip(state.output()).for_each(|(to, x)| *to = x);
                lse[at] = state.lse();
            }
        }
    }
}

/// Attention of the rows of one tile; rows are counted from the tile's first.
struct TileRows<'a> {
    cache: &'a PagedKv<'a>,
    params: &'a PagedPrefillParams,
    q: &'a [f32],
    table: &'a [u32],
    tile: &'a Tile,
    options: &'a Options<'a>,
}

impl TileRows<'_> {
    fn kv_head(&self, head: usize) -> usize {
        head / (self.params.num_heads / self.params.num_kv_heads) as usize
    }

    fn query(&self, row: u32, head: usize) -> &[f32] {
        let head_dim = self.cache.shape.head_dim as usize;
        &self.q[((self.tile.row + row) * self.params.q_stride) as usize + head * head_dim..][..head_dim]
    }

    /// Returns the keys that a row sees in this dispatch, as `(index in the order of attention, position)`.
    fn keys(&self, row: u32, head: usize) -> Vec<(usize, usize)> {
        let position = self.tile.position + row;
        let list = (self.tile.list * self.params.num_kv_heads) as usize + self.kv_head(head);
        let keys = self.options.context(list, position as usize + 1).into_iter().enumerate();
        let first = self.options.mask.first_key(position) as usize;
        let asked = keys.skip(self.params.first_key as usize).take(self.params.num_keys as usize);
        asked.filter(|(_, key)| *key >= first).collect()
    }

    fn logit(&self, row: u32, head: usize, product: f64, key: usize) -> f64 {
        let distance = (self.tile.position + row) as usize - key;
        self.options.logit(f64::from(self.params.scale) * product, head, distance)
    }

    /// Returns the indices of the keys that all `rows` skip. Rows skip a tile if, in every row, all scores of the
    /// tile are below the row's largest earlier score plus its threshold.
    fn dropped(&self, rows: Range<u32>, head: usize, skip: SkipTiles) -> BTreeSet<usize> {
        let mut peaks = vec![f64::NEG_INFINITY; rows.len()];
        let seen: Vec<Vec<(usize, usize)>> = rows.clone().map(|row| self.keys(row, head)).collect();
        let all: BTreeSet<usize> = seen.iter().flatten().map(|(index, _)| index / skip.keys).collect();
        let is_dropped = |step: &usize| {
            let mut wanted = false;
            for ((row, keys), peak) in rows.clone().zip(&seen).zip(&mut peaks) {
                let of_step = keys.iter().filter(|(index, _)| index / skip.keys == *step);
                let scores = of_step.map(|(_, key)| self.score(row, head, *key));
                let below = f64::from(self.params.log_skip) - f64::from(self.tile.position + row + 1).ln();
                for score in scores.collect::<Vec<_>>() {
                    wanted |= below >= 0.0 || score >= *peak + below;
                    *peak = peak.max(score);
                }
            }
            !wanted
        };
        let dropped = all.into_iter().filter(is_dropped).collect::<Vec<_>>();
        dropped.into_iter().flat_map(|step| step * skip.keys..(step + 1) * skip.keys).collect()
    }

    fn score(&self, row: u32, head: usize, key: usize) -> f64 {
        let keys = self.cache.key(self.table, self.kv_head(head), key);
        let product = self.query(row, head).iter().zip(keys).map(|(q, k)| f64::from(*q) * k).sum();
        self.logit(row, head, product, key)
    }
}
