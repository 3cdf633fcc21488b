//! Cases of `paged_prefill` and `paged_prefill_coop`.

use super::layer::{ATTENTION, COOP, Layer, loudly};
use super::options::{self, AttentionInputs};
use super::spec::LOUDNESS;
use super::{Case, Spec, cached, count, filled, shape};
use crate::cpu::attention::{Options, SkipTiles};
use crate::cpu::{self, Tolerance};
use crate::kernel::attention;
use crate::kernel::paged_prefill::{self, PagedPrefillParams, Tile};
use crate::kernel::{KvLayout, KvShape, paged_prefill_coop};
use crate::{Level, Variant, slot};

/// Chunks as `(position of the first row, number of rows)`, each of another sequence.
const CHUNKS: [(u32, u32); 4] = [(0, 1), (15, 3), (16, 2), (0, 70)];

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if variant.level == Level::Coop {
        let shape = KvShape {
            num_kv_heads: spec.number(2, 1..=3),
            head_dim: 16 * filled(variant, slot::SPANS),
            block_size: filled(variant, slot::BLOCK_SIZE),
            dtype: cached(variant).1,
            layout: KvLayout::Native,
        };
        let tile_rows = paged_prefill_coop::TILE_ROWS;
        let heads = shape.num_kv_heads * spec.number(2, 1..=8);
        let all =
            Dispatch { tile_rows, first_key: 0, num_keys: u32::MAX, part_keys: u32::MAX, tolerance: COOP };
        // All keys, some of them, that do not fill the last step, and parts of which the last has no key.
        let dispatches =
            [all, Dispatch { first_key: 16, num_keys: 24, ..all }, Dispatch { part_keys: 32, ..all }];
        return dispatches.map(|dispatch| case(variant, shape, heads, &dispatch, spec)).into();
    }
    let shape = shape(variant, spec.number(2, 1..=4));
    let num_heads = shape.num_kv_heads * filled(variant, slot::GROUP);
    let most = paged_prefill::tile_rows(filled(variant, paged_prefill::TRIPS));
    let (tile_rows, tolerance) = (spec.number(most, 1..=most), ATTENTION);
    let (num_keys, part_keys) = (u32::MAX, u32::MAX);
    let all = Dispatch { tile_rows, first_key: 0, num_keys, part_keys, tolerance };
    let dispatches = [all, Dispatch { part_keys: spec.one_of(32, &[8, 32, 64, 96]), ..all }];
    dispatches.map(|dispatch| case(variant, shape, num_heads, &dispatch, spec)).into()
}

/// Returns one chunk for each of up to four sequences. In the usual chunks, no score is close to the threshold below
/// which a variant skips tiles.
fn chunks(variant: &Variant, spec: &Spec, block: u32) -> Vec<(u32, u32)> {
    if variant.get(attention::SKIP) == Some(true) {
        return CHUNKS.into();
    }
    // Few rows of long prompts, or more than a tile.
    let (far, rows) = spec.one_of((150, 80), &[(150, 130), (150, 80), (1400, 8)]);
    spec.list(&CHUNKS, 4, |spec| (spec.len(0, block, 0..=far), spec.len(0, block, 1..=rows)))
}

/// Number of parts of a row's keys, in cases that split the keys.
const PARTS: u32 = 4;

/// Logarithm of the threshold for skipping tiles of scores. With it, rows of up to 33 keys skip none.
const LOG_SKIP: f32 = 3.5;

/// Returns the tiles of scores that a variant may leave out.
fn skip_tiles(variant: &Variant) -> SkipTiles {
    if variant.level == Level::Coop {
        SkipTiles { rows: 32 / filled(variant, paged_prefill_coop::HALVES), keys: 16 }
    } else {
        SkipTiles { rows: 1, keys: 8 }
    }
}

/// Dispatch of a case, and its tolerance.
#[derive(Clone, Copy)]
struct Dispatch {
    tile_rows: u32,
    first_key: u32,
    num_keys: u32,
    part_keys: u32,
    tolerance: Tolerance,
}

/// Divides chunks into tiles, each with a list of its own.
fn tiles_of(chunks: &[(u32, u32)], table_of: &[u32], tile_rows: u32) -> Vec<Tile> {
    let (mut tiles, mut at) = (Vec::new(), 0);
    for ((first, rows), table) in chunks.iter().zip(table_of) {
        for start in (0..*rows).step_by(tile_rows as usize) {
            let rows = tile_rows.min(rows - start);
            let (row, position, list) = (at + start, first + start, count(&tiles));
            tiles.push(Tile::new(row..row + rows, position, *table).listed(list));
        }
        at += rows;
    }
    tiles
}

/// Splits the case into dispatches of as many keys as a software driver computes at once.
fn in_segments(mut case: Case, params: &PagedPrefillParams, ends: &[u32]) -> Case {
    let last = ends.iter().copied().max().unwrap_or(1) - 1;
    case.dispatches.clear();
    let segments = paged_prefill::segments(0, last, true);
    let params = |(first_key, num_keys)| PagedPrefillParams { first_key, num_keys, ..*params };
    segments.map(params).fold(case, |case, params| case.dispatch(&params))
}

fn case(variant: &Variant, shape: KvShape, num_heads: u32, dispatch: &Dispatch, spec: &Spec) -> Case {
    let Dispatch { tile_rows, first_key, num_keys, part_keys, tolerance } = *dispatch;
    let chunks = chunks(variant, spec, shape.block_size);
    let lens: Vec<u32> = chunks.iter().map(|(first, rows)| first + rows).collect();
    let mut layer = Layer::new(shape, &lens, spec.seed(3));
    let tiles = tiles_of(&chunks, &layer.table_of, tile_rows);
    let ends: Vec<u32> = tiles.iter().map(|tile| tile.position + tile.rows).collect();
    let at = tiles.iter().map(|tile| tile.rows).sum();
    let asked = AttentionInputs::of(variant, [num_heads, shape.num_kv_heads], &ends, spec);
    if asked.attention.skip {
        layer.hush();
    }
    // Blocks that no row sees a key of are taken away.
    layer.recycle_each(chunks.iter().map(|(first, _)| asked.attention.mask.first_key(*first)));
    let width = num_heads * shape.head_dim;
    let q_stride = width + 4 * spec.number(1, 0..=4);
    let parts = if part_keys == u32::MAX { 1 } else { PARTS };
    let params = PagedPrefillParams {
        num_heads,
        num_kv_heads: shape.num_kv_heads,
        q_stride,
        scale: 1.0 / (shape.head_dim as f32).sqrt(),
        list_stride: asked.list_stride(),
        window: asked.attention.mask.tokens(),
        softcap: asked.softcap,
        first_key,
        num_keys,
        part_keys,
        part_rows: at,
        log_skip: LOG_SKIP,
        tiles: count(&tiles),
        parts,
        ..PagedPrefillParams::default()
    };
    // What scores leave out is clear in queries of the usual size.
    let loudness = if asked.attention.skip { &[1.0] } else { &LOUDNESS[..] };
    let (loud, q) = spec.queries([at as usize, width as usize, q_stride as usize], 4, loudness);
    let tolerance = loudly(tolerance, loud);
    let heads = (at * num_heads) as usize;
    let (mut out, mut lse) = (Vec::new(), Vec::new());
    let tables = &layer.tables;
    let skip = asked.attention.skip.then_some(skip_tiles(variant));
    let (kv, reads) = (layer.kv(), Options { skip, ..asked.options() });
    for part in 0..parts {
        let params = PagedPrefillParams {
            first_key: first_key + part * part_keys,
            num_keys: num_keys.min(part_keys),
            ..params
        };
        let mut of_part = [heads * shape.head_dim as usize, heads].map(|len| vec![f32::NAN; len]);
        let [part_out, part_lse] = &mut of_part;
        cpu::paged_prefill::paged_prefill(&kv, &params, &q, tables, &tiles, part_out, part_lse, &reads);
        out.append(part_out);
        lse.append(part_lse);
    }
    let [k, v] = layer.words();
    let name = if parts == 1 { "chunks round blocks and tiles" } else { "keys in parts" };
    let made = Case::new(name, variant, &params);
    // Matrices do not go on where an earlier dispatch ended.
    let goes_on = parts == 1 && variant.level < Level::Coop;
    let made = if goes_on { in_segments(made, &params, &ends) } else { made };
    made.binding(&q)
        .binding(&k)
        .binding(&v)
        .binding(&options::tables(variant, tables, shape.num_kv_heads))
        .binding(&tiles)
        .output(tolerance, &out)
        .output(tolerance, &lse)
        .optional(asked.words().as_deref())
}
