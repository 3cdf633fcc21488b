//! Cases of `block_score`.

use super::block_digest::pages;
use super::layer::{queries, words};
use super::{Case, Spec, count, filled, shape};
use crate::cpu::{self, Tolerance};
use crate::kernel::block_digest::{self, Digest};
use crate::kernel::block_score::{self, BlockScoreParams};
use crate::kernel::{KvDtype, KvShape};
use crate::{Variant, slot};

/// Tolerance of scores of some hundred terms of size 4, in f32.
const SCORES: Tolerance = Tolerance { abs: 2e-4, rel: 1e-5 };
/// Tolerance of scores, plus the amount by which bounds exceed them for rounding.
const BOUNDS: Tolerance = Tolerance { abs: 1e-3, rel: 1e-5 };

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
    if spec.size().is_some() {
        return vec![case("as the digest is scored", variant, spec, digest_of(variant) == Digest::Mean)];
    }
    vec![
        case("a set for each KV head", variant, spec, false),
        case("one set for all heads", variant, spec, true),
    ]
}

/// The cache type of the digests of a variant.
pub(crate) fn cache_of(variant: &Variant) -> KvDtype {
    let overflows = variant.get(block_score::OVERFLOWS) == Some(true);
    if overflows { KvDtype::Int8 } else { filled(variant, block_digest::READ) }
}

/// The kind of digest that a variant scores by; `block_score_subgroup` has no choice.
fn digest_of(variant: &Variant) -> Digest {
    variant.get(block_score::SCORING).unwrap_or(Digest::MinMax)
}

fn case(what: &'static str, variant: &Variant, spec: &Spec, shared: bool) -> Case {
    let shape = KvShape { dtype: cache_of(variant), ..shape(variant, spec.kv_heads(2, 1..=3)) };
    let kept = block_digest::dtype(shape.dtype);
    let select_block = shape.block_size * variant.get(slot::PAGES).unwrap_or(1);
    let digest = digest_of(variant);
    // A group is as many heads as share a read.
    let group = match digest {
        Digest::MinMax if spec.size().is_none() => filled(variant, slot::HEADS),
        _ => spec.group(3, 1..=8),
    };
    let num_heads = shape.num_kv_heads * group;
    let usual = [7 * select_block + 3, 1, select_block, 4 * select_block + 1];
    let lens = spec.lens(&usual, select_block, 1..=9 * select_block);
    let layer = spec.layer(shape, &lens, 1);
    let pages = pages(&layer, &lens);
    let width = num_heads * shape.head_dim;
    let q_stride = width + 4 * spec.number(1, 0..=4);
    let sequences = (0..).zip(lens.iter().zip(&layer.table_of));
    let rows: Vec<[u32; 4]> = sequences.map(|(row, (len, table))| [row, *len, *table, 0]).collect();
    let params = BlockScoreParams {
        num_heads,
        num_kv_heads: shape.num_kv_heads,
        q_stride,
        heads_per_set: if shared { num_heads } else { num_heads / shape.num_kv_heads },
        score_stride: spec.named(|size| size.context.div_ceil(select_block), 11, 9..=16),
        sink_blocks: spec.number(1, 0..=3),
        recent_blocks: spec.number(2, 0..=4),
        recent_full: u32::from(shared),
        scale: spec.one_of(0.5, &[0.125, 0.3, 0.5]),
        logit_scale: spec.one_of(0.25, &[0.0625, 0.1, 0.25]),
        rows: count(&rows),
        ..BlockScoreParams::default()
    };
    let bounded = variant.get(block_score::BOUNDS).is_some();
    let bounds = if bounded { block_score::bounds_len(&params, rows.len()) } else { 0 };
    let read = digest.pool_len(&shape, pages.len()) + bounds;
    let operations = 2.0 * digest.pool_elements(&shape, pages.len()) as f64 * f64::from(group);
    let case = Case::new(what, variant, &params).costs(4.0 * read as f64, operations);
    let num_blocks = layer.num_blocks() as usize;
    let mut scores = vec![f32::NAN; block_score::scores_len(&params, rows.len())];
    if spec.size().is_some() {
        let case = case
            .floats_of(count(&rows) * q_stride)
            .random(kept, digest.pool_len(&shape, num_blocks))
            .binding(&layer.tables)
            .binding(&rows)
            .floats_of(count(&scores));
        return if bounded { case.random(KvDtype::F32, bounds) } else { case };
    }
    let mut digests = vec![f32::NAN; digest.pool_elements(&shape, num_blocks)];
    cpu::block_digest::block_digest(&shape, digest, &pages, &layer.k, &mut digests);
    let q = queries(lens.len(), width as usize, q_stride as usize, spec.seed(2));
    let of = (digest, select_block as usize);
    cpu::block_score::block_score(&layer.kv(), of, &params, &q, &layer.tables, &rows, &mut scores);
    let case = case
        .binding(&q)
        .binding(&words(kept, &digests))
        .binding(&layer.tables)
        .binding(&rows)
        .output(SCORES, &scores);
    if !bounded {
        return case;
    }
    let of = (&layer.kv(), select_block as usize);
    let bounds = cpu::block_score::block_bounds(of, &params, &q, &layer.tables, &rows);
    case.finite(BOUNDS, bounds.as_flattened())
}
