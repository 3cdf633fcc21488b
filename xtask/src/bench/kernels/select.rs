//! Blocks chosen by scores, and the step of decode that attends them: Quest (bounds of keys) and GSA (mean keys).

use anyhow::Result;
use attn_kernels::Level;
use attn_kernels::gpu::{Bound, Gpu};
use attn_kernels::kernel::block_digest::Digest;
use attn_kernels::kernel::top_k::{self, Output, Transform};
use attn_kernels::kernel::{block_score, top_k_long, top_k_peaks};
use attn_kernels::self_test::{Size, options};

use super::attention::{Heads, Step};
use super::lists::SELECT_BLOCK;
use super::work::{Bench, Timed, Work};

/// Policy by which blocks are scored.
#[derive(Debug, Clone, Copy)]
pub(super) enum Policy {
    /// Bounds from smallest and largest keys, for each KV head.
    Quest,
    /// Mean keys, one score for all heads.
    Gsa,
}

impl Policy {
    fn name(self) -> &'static str {
        match self {
            Self::Quest => "quest",
            Self::Gsa => "gsa",
        }
    }

    fn digest(self) -> Digest {
        match self {
            Self::Quest => Digest::MinMax,
            Self::Gsa => Digest::Mean,
        }
    }
}

/// Dense decode, and decode over blocks: a given share of them, and those that each policy selects, with the
/// selection included.
pub(super) fn decode(bench: &Bench, step: &Step, policies: &[Policy]) -> Result<Vec<Timed>> {
    let gpu = bench.gpu;
    let dense = step.dense(gpu)?;
    let mut others = vec![step.selected(gpu, &dense, None)?];
    for policy in policies {
        let selection = select(gpu, step, *policy)?;
        let attention = step.selected(gpu, &dense, Some(&selection))?;
        others.push(selection.then(&format!("decode, {}", policy.name()), attention));
    }
    bench.beside(dense, others)
}

/// Scores of all blocks of every sequence for its row of queries, by bounds on the keys or by their means.
pub(super) fn scores(gpu: &Gpu, heads: &Heads, policy: Policy, [batch, context]: [u32; 2]) -> Result<Work> {
    let variant = block_score::variant(&heads.shape, heads.num_heads, policy.digest(), SELECT_BLOCK);
    let size = Size { batch, context, ..heads.size() };
    let kernel = format!("block_score, {}", policy.name());
    Work::of(gpu, &kernel, &variant, size, &format!("{batch} x {context}, {}", heads.name()))
}

/// Work of scoring the blocks and listing a share of them.
fn select(gpu: &Gpu, step: &Step, policy: Policy) -> Result<Work> {
    let Size { batch, context, select_block, density, cache, .. } = step.size;
    let scored = scores(gpu, &step.heads, policy, [batch, context])?;
    let sets = match policy {
        Policy::Quest => cache.num_kv_heads,
        Policy::Gsa => 1,
    };
    let k = options::Lists::budget(context, select_block, density);
    let size = Size { rows: batch * sets, context: context.div_ceil(select_block), k, ..step.size };
    let top = top_k(gpu, Output::List, size, &scored.shared(&["scores"]))?;
    Ok(scored.then("select", top))
}

/// Work of finding the largest scores of each row, by as many workgroups per row as its length requires.
pub(super) fn top_k(gpu: &Gpu, output: Output, size: Size, scores: &[(&str, Bound)]) -> Result<Work> {
    let Size { rows, context, k, .. } = size;
    let level = gpu.profile().top_k_level().min(Level::Subgroup);
    let name = format!("{k} of {context}, {rows} rows");
    if context < top_k_peaks::LONG {
        return Work::sharing(gpu, "top_k", &top_k::variant(output, level), size, &name, scores);
    }
    let peaks = Work::sharing(gpu, "top_k_peaks", &top_k_peaks::variant(), size, &name, scores)?;
    let shared = peaks.shared(&["scores", "rows", "peaks"]);
    let long = Work::sharing(gpu, "top_k", &top_k_long::variant(output, level), size, &name, &shared)?;
    // What scratch there is between the two need not be moved.
    Ok(peaks.then("top_k", long).costs(4.0 * f64::from(rows) * f64::from(context), 0.0))
}

/// Work of finding the positions of the `k` largest scores in each of `rows` rows of `len` random scores.
pub(super) fn top_k_of(gpu: &Gpu, heads: &Heads, [rows, len, k]: [u32; 3]) -> Result<Work> {
    top_k(gpu, Output::Positions(Transform::None), Size { rows, context: len, k, ..heads.size() }, &[])
}
