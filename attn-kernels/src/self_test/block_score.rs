//! Cases of `block_score`.

use super::block_digest::pages;
use super::layer::{Layer, queries, words};
use super::{Case, count, module, size};
use crate::Variant;
use crate::cpu::{self, Tolerance};
use crate::kernel::block_digest::{self, Digest};
use crate::kernel::block_score::{self, BlockScoreParams};
use crate::kernel::{KvDtype, KvShape};

/// Tolerance of scores of some hundred terms of size 4, in f32.
const SCORES: Tolerance = Tolerance { abs: 2e-4, rel: 1e-5 };
/// Tolerance of scores, and what bounds add for rounding.
const BOUNDS: Tolerance = Tolerance { abs: 1e-3, rel: 1e-5 };

pub(super) fn cases(variant: &Variant) -> Vec<Case> {
    vec![case("a set for each KV head", variant, false), case("one set for all heads", variant, true)]
}

/// A type of cache that the digests of a variant are beside.
pub(super) fn cache_of(variant: &Variant) -> KvDtype {
    match module(variant, "digests") {
        Some("digests_f32") => KvDtype::F32,
        _ if variant.size_in("OVERFLOWS") == Some(1) => KvDtype::Int8,
        _ => KvDtype::F16,
    }
}

/// The digest that a variant scores by.
fn digest_of(variant: &Variant) -> Digest {
    if module(variant, "scoring") == Some("blocks_mean") { Digest::Mean } else { Digest::MinMax }
}

fn case(what: &'static str, variant: &Variant, shared: bool) -> Case {
    let shape = KvShape {
        num_kv_heads: 2,
        head_dim: size(variant, "HEAD_DIM"),
        block_size: size(variant, "BLOCK_SIZE"),
        dtype: cache_of(variant),
    };
    let select_block = shape.block_size * variant.size_in("PAGES").unwrap_or(1);
    let digest = digest_of(variant);
    // A group is as many heads as share a read.
    let group = if digest == Digest::MinMax { size(variant, "HEADS") } else { 3 };
    let num_heads = 2 * group;
    let lens = [7 * select_block + 3, 1, select_block, 4 * select_block + 1];
    let layer = Layer::new(shape, &lens, 1);
    let num_blocks = layer.k.len() / shape.block_elements();
    let mut digests = vec![f32::NAN; digest.pool_elements(&shape, num_blocks)];
    cpu::block_digest::block_digest(&shape, digest, &pages(&layer, &lens), &layer.k, &mut digests);
    let width = num_heads * shape.head_dim;
    let params = BlockScoreParams {
        num_heads,
        num_kv_heads: shape.num_kv_heads,
        q_stride: width + 4,
        heads_per_set: if shared { num_heads } else { num_heads / shape.num_kv_heads },
        score_stride: 11,
        sink_blocks: 1,
        recent_blocks: 2,
        recent_full: u32::from(shared),
        scale: 0.5,
        logit_scale: 0.25,
        ..BlockScoreParams::default()
    };
    let q = queries(lens.len(), width as usize, width as usize + 4, 2);
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
    if module(variant, "bounds") != Some("bounds_kept") {
        return case;
    }
    let of = (&layer.kv(), select_block as usize);
    let bounds = cpu::block_score::block_bounds(of, &params, &q, &layer.tables, &rows);
    case.finite(BOUNDS, bounds.as_flattened())
}
