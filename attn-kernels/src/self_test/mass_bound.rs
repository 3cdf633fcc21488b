//! Cases of `mass_bound` and `mass_merge`.

use super::block_digest::pages;
use super::layer::{Layer, floats, queries};
use super::{Case, count, size};
use crate::Variant;
use crate::cpu::{self, Tolerance};
use crate::kernel::block_digest::Digest;
use crate::kernel::mass_bound::{self, MassBoundParams};
use crate::kernel::mass_merge::{self, MassMergeParams};
use crate::kernel::paged_decode::{TILE, partition_of};
use crate::kernel::{KvDtype, KvShape};

/// What the bounds of logits give away grows with their size.
const SHARES: Tolerance = Tolerance { abs: 1e-7, rel: 2e-3 };

pub(super) fn cases(variant: &Variant) -> Vec<Case> {
    // Rows that keep every third block, all blocks, the last one, and none.
    vec![case(
        "lists of every kind",
        variant,
        &[|b, _| b % 3 == 1, |_, _| true, |b, n| b + 1 == n, |_, _| false],
    )]
}

fn case(what: &'static str, variant: &Variant, keeps: &[fn(u32, u32) -> bool]) -> Case {
    let shape = KvShape {
        num_kv_heads: 2,
        head_dim: size(variant, "HEAD_DIM"),
        block_size: size(variant, "BLOCK_SIZE"),
        dtype: KvDtype::F32,
    };
    let select_block = shape.block_size * size(variant, "PAGES");
    let lens = [130 * select_block + 3, 3 * select_block, 4 * select_block + 1, select_block];
    let layer = Layer::new(shape, &lens, 3);
    let num_blocks = layer.k.len() * shape.dtype.bytes() / shape.block_bytes();
    let mut digests = vec![f32::NAN; Digest::MinMax.pool_len(&shape, num_blocks)];
    cpu::block_digest::block_digest(&shape, Digest::MinMax, &pages(&layer, &lens), &layer.k, &mut digests);

    let num_heads = 4;
    let width = num_heads * shape.head_dim;
    let blocks = |len: u32| len.div_ceil(select_block);
    let list_stride = 2 + lens.iter().copied().map(blocks).max().unwrap_or(0);
    let mut selected = Vec::new();
    for (len, keep) in lens.iter().zip(keeps) {
        let kept: Vec<u32> = (0..blocks(*len)).filter(|b| keep(*b, blocks(*len))).collect();
        for _ in 0..shape.num_kv_heads {
            let end = selected.len() + list_stride as usize;
            selected.push(count(&kept));
            selected.extend(&kept);
            selected.resize(end, 77_777);
        }
    }
    let params = MassBoundParams {
        num_heads,
        num_kv_heads: shape.num_kv_heads,
        q_stride: width,
        list_stride,
        max_partitions: (list_stride * select_block).div_ceil(TILE),
        scale: 1.0 / 16.0,
        first_list: 0,
        first_share: 0,
        share_stride: mass_bound::share_stride(list_stride),
        pad0: 0,
        pad1: 0,
        pad2: 0,
    };
    let q = queries(lens.len(), width as usize, width as usize, 4);
    let sequences = (0..).zip(lens.iter().zip(&layer.table_of));
    let rows: Vec<[u32; 4]> = sequences.map(|(row, (len, table))| [row, *len, *table, 0]).collect();
    let stats = stats(&layer, &params, select_block, &q, &rows, &selected);
    let of = (&layer.kv(), select_block as usize);
    let shares = cpu::mass_bound::mass_bound(of, &params, &q, &layer.tables, &rows, &selected);
    Case::new(what, variant, &params, mass_bound::grid(&params, count(&rows)))
        .binding(&q)
        .binding(&digests)
        .binding(&layer.tables)
        .binding(&rows)
        .binding(&selected)
        .binding(&stats)
        .finite(SHARES, &shares)
}

pub(super) fn merge_cases(variant: &Variant) -> Vec<Case> {
    // More layers than lanes; every third row of a layer drops nothing.
    let params = MassMergeParams { layers: 70, rows: 5, share_stride: 4, pad0: 0 };
    let mut shares: Vec<f32> = floats((params.layers * params.rows * params.share_stride) as usize, 2)
        .iter()
        .map(|x| x.abs())
        .collect();
    shares.chunks_mut(4).step_by(3).for_each(|shares| shares[0] = -1.0);
    // And one row in no layer.
    shares.chunks_mut(4).skip(4).step_by(5).for_each(|shares| shares[0] = -1.0);
    let masses = cpu::mass_merge::mass_merge(&params, &shares);
    let case = Case::new("a row that drops nothing", variant, &params, mass_merge::grid(&params))
        .binding(&shares)
        .finite(SHARES, &masses);
    vec![case]
}

/// `(max, sum)` of the kept logits of every partition, as `paged_decode` leaves them.
fn stats(
    layer: &Layer,
    params: &MassBoundParams,
    select_block: u32,
    q: &[f32],
    rows: &[[u32; 4]],
    selected: &[u32],
) -> Vec<[f32; 2]> {
    let (kv, dim) = (layer.kv(), layer.shape.head_dim as usize);
    let group = params.num_heads / params.num_kv_heads;
    let mut stats = Vec::new();
    for (index, [row, len, table, _]) in (0..).zip(rows.iter().copied()) {
        for head in 0..params.num_heads {
            let list = ((index * params.num_kv_heads + head / group) * params.list_stride) as usize;
            let kept = &selected[list + 1..][..selected[list] as usize];
            let tokens = kept.iter().flat_map(|b| b * select_block..len.min((b + 1) * select_block));
            let q = &q[(row * params.q_stride + head * layer.shape.head_dim) as usize..][..dim];
            let logits: Vec<f64> = tokens
                .map(|t| {
                    let key = kv.key(&layer.tables[table as usize..], (head / group) as usize, t as usize);
                    key.zip(q).map(|(k, q)| k * f64::from(*q)).sum::<f64>() * f64::from(params.scale)
                })
                .collect();
            let end = stats.len() + params.max_partitions as usize;
            stats.extend(logits.chunks(partition_of(count(&logits)) as usize).map(|part| {
                let top = part.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                [top, part.iter().map(|logit| (logit - top).exp()).sum()].map(cpu::f32_of)
            }));
            stats.resize(end, [f32::NAN; 2]);
        }
    }
    stats
}
