//! Cases of `paged_prefill` and `paged_prefill_coop`.

use super::layer::{ATTENTION, COOP, Layer, queries};
use super::options::{self, AttentionInputs};
use super::{Case, count, dtype, module, shape, size};
use crate::Variant;
use crate::cpu::{self, Tolerance};
use crate::kernel::paged_prefill::{self, KeyLoads, PagedPrefillParams, TILE_ROWS, Tile};
use crate::kernel::{KvShape, paged_prefill_coop};

/// Chunks `(position of the first row, rows)` of one sequence each.
const CHUNKS: [(u32, u32); 4] = [(0, 1), (15, 3), (16, 2), (0, 70)];

pub(super) fn cases(variant: &Variant) -> Vec<Case> {
    if variant.kernel.name == paged_prefill_coop::KERNEL.name {
        let shape = KvShape {
            num_kv_heads: 2,
            head_dim: 16 * size(variant, "SPANS"),
            block_size: size(variant, "BLOCK_SIZE"),
            dtype: dtype(variant),
        };
        let tile_rows = paged_prefill_coop::TILE_ROWS;
        let grid = |tiles| paged_prefill_coop::grid(4, tiles);
        // All keys, and some of them, that do not fill the last step.
        return [(0, u32::MAX), (16, 24)]
            .map(|(first_key, num_keys)| {
                let dispatch = Dispatch { tile_rows, first_key, num_keys, tolerance: COOP, grid: &grid };
                case(variant, shape, 4, &dispatch)
            })
            .into();
    }
    let (shape, num_heads) = (shape(variant, 2), 2 * size(variant, "GROUP"));
    let loads = if module(variant, "trips") == Some("trips_hidden") {
        KeyLoads::Broadcast
    } else {
        KeyLoads::Uniform
    };
    let grid = |tiles| paged_prefill::grid(&shape, num_heads, loads, tiles);
    let (tile_rows, tolerance) = (TILE_ROWS, ATTENTION);
    let dispatch = Dispatch { tile_rows, first_key: 0, num_keys: u32::MAX, tolerance, grid: &grid };
    vec![case(variant, shape, num_heads, &dispatch)]
}

/// Dispatch of a case, and its tolerance.
struct Dispatch<'a> {
    tile_rows: u32,
    first_key: u32,
    num_keys: u32,
    tolerance: Tolerance,
    grid: &'a dyn Fn(u32) -> [u32; 3],
}

fn case(variant: &Variant, shape: KvShape, num_heads: u32, dispatch: &Dispatch<'_>) -> Case {
    let Dispatch { tile_rows, first_key, num_keys, tolerance, grid } = *dispatch;
    let lens = CHUNKS.map(|(first, rows)| first + rows);
    let layer = Layer::new(shape, &lens, 3);
    let (mut tiles, mut ends, mut at) = (Vec::new(), Vec::new(), 0);
    for ((first, rows), table) in CHUNKS.iter().zip(&layer.table_of) {
        for start in (0..*rows).step_by(tile_rows as usize) {
            let rows = tile_rows.min(rows - start);
            let (row, position, list) = (at + start, first + start, count(&tiles));
            tiles.push(Tile::new(row..row + rows, position, *table).listed(list));
            ends.push(position + rows);
        }
        at += rows;
    }
    let asked = AttentionInputs::of(variant, num_heads, &ends);
    let width = num_heads * shape.head_dim;
    let params = PagedPrefillParams {
        num_heads,
        num_kv_heads: shape.num_kv_heads,
        q_stride: width + 4,
        scale: 1.0 / (shape.head_dim as f32).sqrt(),
        list_stride: asked.list_stride(),
        window: asked.attention.mask.tokens(),
        softcap: asked.softcap,
        first_key,
        num_keys,
        ..PagedPrefillParams::default()
    };
    let q = queries(at as usize, width as usize, width as usize + 4, 4);
    let heads = (at * num_heads) as usize;
    let (mut out, mut lse) = (vec![f32::NAN; heads * shape.head_dim as usize], vec![f32::NAN; heads]);
    let tables = &layer.tables;
    let (kv, reads) = (layer.kv(), asked.options());
    cpu::paged_prefill::paged_prefill(&kv, &params, &q, tables, &tiles, &mut out, &mut lse, &reads);
    let [k, v] = layer.words_of(variant);
    Case::new("chunks round blocks and tiles", variant, &params, grid(count(&tiles)))
        .binding(&q)
        .binding(&k)
        .binding(&v)
        .binding(&options::tables(variant, tables, shape.num_kv_heads))
        .binding(&tiles)
        .output(tolerance, &out)
        .output(tolerance, &lse)
        .optional(asked.words().as_deref())
}
