//! Cases of `block_score`.

use super::block_digest::pages;
use super::layer::{Layer, queries, words};
use super::{Case, Spec, count, filled, shape};
use crate::cpu::{self, Tolerance};
use crate::kernel::block_digest::{self, Digest};
use crate::kernel::block_score::{self, BlockScoreParams};
use crate::kernel::{KvDtype, KvShape};
use crate::{Variant, slot};

/// Tolerance of scores of some hundred terms of size 4, in f32.
const SCORES: Tolerance = Tolerance { abs: 2e-4, rel: 1e-5 };
/// Tolerance of scores, and what bounds add for rounding.
const BOUNDS: Tolerance = Tolerance { abs: 1e-3, rel: 1e-5 };

pub(crate) fn cases(variant: &Variant, spec: &Spec) -> Vec<Case> {
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

/// The digest that a variant scores by; `block_score_subgroup` has no choice.
fn digest_of(variant: &Variant) -> Digest {
    variant.get(block_score::SCORING).unwrap_or(Digest::MinMax)
}

fn case(what: &'static str, variant: &Variant, spec: &Spec, shared: bool) -> Case {
    let shape = KvShape { dtype: cache_of(variant), ..shape(variant, spec.number(2, 1..=3)) };
    let select_block = shape.block_size * variant.get(slot::PAGES).unwrap_or(1);
    let digest = digest_of(variant);
    // A group is as many heads as share a read.
    let group = if digest == Digest::MinMax { filled(variant, slot::HEADS) } else { spec.number(3, 1..=8) };
    let num_heads = shape.num_kv_heads * group;
    let usual = [7 * select_block + 3, 1, select_block, 4 * select_block + 1];
    let lens = spec.lens(&usual, select_block, 1..=9 * select_block);
    let layer = Layer::new(shape, &lens, spec.seed(1));
    let num_blocks = layer.k.len() / shape.block_elements();
    let mut digests = vec![f32::NAN; digest.pool_elements(&shape, num_blocks)];
    cpu::block_digest::block_digest(&shape, digest, &pages(&layer, &lens), &layer.k, &mut digests);
    let width = num_heads * shape.head_dim;
    let q_stride = width + 4 * spec.number(1, 0..=4);
    let params = BlockScoreParams {
        num_heads,
        num_kv_heads: shape.num_kv_heads,
        q_stride,
        heads_per_set: if shared { num_heads } else { num_heads / shape.num_kv_heads },
        score_stride: spec.number(11, 9..=16),
        sink_blocks: spec.number(1, 0..=3),
        recent_blocks: spec.number(2, 0..=4),
        recent_full: u32::from(shared),
        scale: spec.one_of(0.5, &[0.125, 0.3, 0.5]),
        logit_scale: spec.one_of(0.25, &[0.0625, 0.1, 0.25]),
        ..BlockScoreParams::default()
    };
    let q = queries(lens.len(), width as usize, q_stride as usize, spec.seed(2));
    let sequences = (0..).zip(lens.iter().zip(&layer.table_of));
    let rows: Vec<[u32; 4]> = sequences.map(|(row, (len, table))| [row, *len, *table, 0]).collect();
    let mut scores = vec![f32::NAN; block_score::scores_len(&params, rows.len())];
    let of = (digest, select_block as usize);
    cpu::block_score::block_score(&layer.kv(), of, &params, &q, &layer.tables, &rows, &mut scores);
    let case = Case::new(what, variant, &params, block_score::grid(digest, &params, count(&rows)))
        .binding(&q)
        .binding(&words(block_digest::dtype(shape.dtype), &digests))
        .binding(&layer.tables)
        .binding(&rows)
        .output(SCORES, &scores);
    if variant.get(block_score::BOUNDS).is_none() {
        return case;
    }
    let of = (&layer.kv(), select_block as usize);
    let bounds = cpu::block_score::block_bounds(of, &params, &q, &layer.tables, &rows);
    case.finite(BOUNDS, bounds.as_flattened())
}
