//! Cases of `paged_decode` in all its forms.

use super::layer::{ATTENTION, COOP, loudly};
use super::options::{self, AttentionInputs};
use super::spec::{LOUDNESS, WHOLE};
use super::{Case, Spec, count, filled, shape, token_bytes};
use crate::cpu::{self, Tolerance};
use crate::kernel::paged_decode::{self, PARTITION, PagedDecodeParams};
use crate::kernel::{KvDtype, KvShape};
use crate::{Level, Variant, slot};

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if spec.size().is_some() {
        return vec![case("all rows", variant, spec, &[])];
    }
    let block = filled(variant, slot::BLOCK_SIZE);
    vec![
        case("several partitions", variant, spec, &[1, block - 1, 300, block, 0, 513, block + 1]),
        case("one partition", variant, spec, &[block + 1, 0, 200, 1]),
    ]
}

/// Numbers of keys of a partition that random specs draw from.
const PARTITIONS: [u32; 5] = [128, PARTITION, 512, 2048, WHOLE];
/// Numbers of keys of a partition that random specs draw from for matrices.
const COOP_PARTITIONS: [u32; 6] = [16, 32, 64, PARTITION, 2048, WHOLE];

fn case(what: &'static str, variant: &Variant, spec: &Spec, lens: &[u32]) -> Case {
    let shape = shape(variant, spec.kv_heads(2, 1..=4));
    let most = lens.iter().copied().max().unwrap_or(0);
    let edge = spec.one_of(shape.block_size, &[shape.block_size, PARTITION]);
    let times = spec.one_of(2, &[2, 2, 2, 5]);
    let lens = &spec.lens(lens, edge, 0..=times * most)[..];
    let num_heads =
        spec.size().map_or(shape.num_kv_heads * filled(variant, slot::GROUP), |size| size.num_heads);
    let mut layer = spec.layer(shape, lens, 5);
    let count = count(lens);
    // Rows of queries are in reverse order of sequences, with a gap between them; one sees no key before its tenth.
    let sequences = lens.iter().zip(&layer.table_of).rev();
    let rows: Vec<[u32; 4]> = (0..)
        .zip(sequences)
        .map(|(row, (len, table))| [row, *len, *table, spec.number(10 * u32::from(row == 1), 0..=*len)])
        .collect();
    // Blocks that no row sees a key of are taken away.
    layer.recycle_each(rows.iter().rev().map(|row| row[3]));
    let lens: Vec<u32> = lens.iter().rev().copied().collect();
    let asked = AttentionInputs::of(variant, [num_heads, shape.num_kv_heads], &lens, spec);
    let is_coop = variant.level == Level::Coop;
    let partition_size = spec.partition(if is_coop { &COOP_PARTITIONS } else { &PARTITIONS });
    let max_partitions = max_partitions(&asked, shape.num_kv_heads, partition_size, &rows, spec);
    let width = num_heads * shape.head_dim;
    let q_stride = width + 8 * spec.number(1, 0..=3);
    let params = PagedDecodeParams {
        num_heads,
        num_kv_heads: shape.num_kv_heads,
        q_stride,
        max_partitions,
        partition_size,
        scale: 1.0 / (shape.head_dim as f32).sqrt(),
        reduced: u32::from(max_partitions > 1),
        list_stride: asked.list_stride(),
        softcap: asked.softcap,
        rows: count,
        ..PagedDecodeParams::default()
    };
    let tokens = asked.tokens(&lens, shape.num_kv_heads);
    let case = Case::new(what, variant, &scaled(&shape, params))
        .costs(tokens * token_bytes(&shape), tokens * 4.0 * f64::from(width));
    let (options, tables) = (asked.words(), options::tables(variant, &layer.tables, shape.num_kv_heads));
    if spec.size().is_some() {
        let partials = count * num_heads * max_partitions;
        let cache = |case: Case| case.blocks_of(&shape, layer.num_blocks());
        let case = cache(cache(case.floats_of(count * q_stride))).binding(&tables).binding(&rows);
        let case = case.floats_of(partials * shape.head_dim).floats_of(2 * partials);
        return case.optional(options.as_deref());
    }
    let (loud, q) = spec.queries([lens.len(), width as usize, q_stride as usize], 6, &LOUDNESS);
    let heads = (count * num_heads * max_partitions) as usize;
    let mut partial = vec![f32::NAN; heads * shape.head_dim as usize];
    let mut stats = vec![[f32::NAN; 2]; heads];
    let (kv, reads) = (layer.kv(), asked.options());
    cpu::paged_decode::paged_decode(&kv, &params, &q, &layer.tables, &rows, &mut partial, &mut stats, &reads);
    partial.iter_mut().for_each(|x| *x *= value_scale(&shape));
    let [k, v] = layer.words();
    // Sums of several partitions are not normalised: they grow with the number of keys.
    let keys = if params.reduced == 0 { 1.0 } else { f64::from(PARTITION) };
    let close = loudly(if is_coop { COOP } else { ATTENTION }, loud);
    let tolerance = Tolerance { abs: close.abs * keys, ..close };
    case.binding(&q)
        .binding(&k)
        .binding(&v)
        .binding(&tables)
        .binding(&rows)
        .output(tolerance, &partial)
        .output(close, stats.as_flattened())
        .optional(options.as_deref())
}

/// Returns the scale of values: 0.5 for fp8 codes, otherwise 1.
fn value_scale(shape: &KvShape) -> f32 {
    if shape.dtype == KvDtype::Fp8 { 0.5 } else { 1.0 }
}

/// Returns the parameters with the scales that the kernel multiplies fp8 codes by; other types have none.
fn scaled(shape: &KvShape, params: PagedDecodeParams) -> PagedDecodeParams {
    match shape.dtype {
        KvDtype::Fp8 => PagedDecodeParams {
            scale: 2.0 * params.scale,
            k_scale: 0.5,
            v_scale: value_scale(shape),
            ..params
        },
        _ => params,
    }
}

/// Returns the maximum number of partitions of a row; for a timed case, an upper bound of it.
pub(crate) fn max_partitions(
    asked: &AttentionInputs,
    num_kv_heads: u32,
    partition_size: u32,
    rows: &[[u32; 4]],
    spec: &Spec,
) -> u32 {
    if spec.size().is_some() {
        let longest = rows.iter().map(|row| row[1]).max().unwrap_or(0);
        let listed = asked.lists.as_ref().map_or(longest, |lists| (lists.stride - 1) * lists.block);
        return paged_decode::partitions(partition_size, 0, listed.min(longest));
    }
    let heads = num_kv_heads as usize;
    let options = asked.options();
    let of = |(index, [_, len, _, first]): (usize, &[u32; 4])| {
        let partitions = |head| {
            let keys = options.context(index * heads + head, *len as usize);
            let begin = count(&keys[..keys.partition_point(|key| *key < *first as usize)]);
            paged_decode::partitions(partition_size, begin, count(&keys))
        };
        (0..heads).map(partitions).max().unwrap_or(0)
    };
    rows.iter().enumerate().map(of).max().unwrap_or(0).max(1)
}
