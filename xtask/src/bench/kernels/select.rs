//! Blocks chosen by scores, and the step of decode that attends them: Quest (bounds of keys) and GSA (mean keys).

use anyhow::Result;
use attn_kernels::Level;
use attn_kernels::gpu::{Bound, Buf, Gpu};
use attn_kernels::kernel::block_digest::Digest;
use attn_kernels::kernel::top_k::{self, Output, TopKParams, Transform};
use attn_kernels::kernel::top_k_long::{self, TopKLongParams};
use attn_kernels::kernel::top_k_peaks;
use attn_kernels::kernel::{KvDtype, block_score};
use attn_kernels::self_test::{Size, options};

use super::attention::{Heads, Step};
use super::ceiling::random;
use super::lists::{Lists, SELECT_BLOCK};
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

/// Dense decode, and over blocks: a share `density` of them as given, and as each policy selects, selection included.
pub(super) fn decode(bench: &Bench, step: &Step, density: f64, policies: &[Policy]) -> Result<Vec<Timed>> {
    let gpu = bench.gpu;
    let mut others = Vec::new();
    let kv_heads = step.heads.shape.num_kv_heads;
    let lens = step.cache.rows.iter().flat_map(|row| (0..kv_heads).map(move |_| row[1]));
    let given = Lists::random(gpu, lens, kv_heads, density)?;
    others.push(step.attend(gpu, Some(&given))?);
    for policy in policies {
        let (selection, lists) = select(gpu, step, *policy, density)?;
        let whole = format!("decode, {}", policy.name());
        let attention = step.attend(gpu, Some(&lists))?;
        others.push(selection.then(&whole, attention));
    }
    bench.beside(step.attend(gpu, None)?, others)
}

/// Bounds or means of all blocks of every sequence, scored for its row of queries.
pub(super) fn scores(gpu: &Gpu, heads: &Heads, policy: Policy, [batch, context]: [u32; 2]) -> Result<Work> {
    let variant = block_score::variant(&heads.shape, heads.num_heads, policy.digest(), SELECT_BLOCK);
    let size = Size { batch, context, ..heads.size() };
    let kernel = format!("block_score, {}", policy.name());
    Work::of(gpu, &kernel, &variant, size, &format!("{batch} x {context}, {}", heads.name()))
}

/// The works that select a share of the blocks, and where their lists are.
fn select(gpu: &Gpu, step: &Step, policy: Policy, density: f64) -> Result<(Work, Lists)> {
    let (batch, context, kv_heads) = (step.batch(), step.cache.rows[0][1], step.heads.shape.num_kv_heads);
    let scored = scores(gpu, &step.heads, policy, [batch, context])?;
    let sets = match policy {
        Policy::Quest => kv_heads,
        Policy::Gsa => 1,
    };
    let (blocks, k) =
        (context.div_ceil(SELECT_BLOCK), options::Lists::budget(context, SELECT_BLOCK, density));
    let tops: Vec<[u32; 4]> = (0..batch * sets).map(|set| [set * blocks, blocks, k, 0]).collect();
    let stride = 1 + k;
    let buffer = gpu.buffer::<u32>("lists", (batch * kv_heads * stride) as usize)?;
    let top = TopKParams { rows: batch * sets, out_stride: stride, copies: kv_heads / sets, page_size: 1 };
    let top = top_k(gpu, &top, Output::List, &tops, scored.binding(SCORES), &buffer)?;
    let tokens = f64::from(batch * k * SELECT_BLOCK);
    Ok((scored.then("select", top), Lists { buffer, stride, block: SELECT_BLOCK, tokens, density }))
}

/// Index of the scores among the bindings of `block_score`.
const SCORES: usize = 4;

/// The largest of the rows `[first score, scores, k, base]` of `scores`, by as many workgroups per row as its length
/// requires.
pub(super) fn top_k(
    gpu: &Gpu,
    params: &TopKParams,
    output: Output,
    rows: &[[u32; 4]],
    scores: Bound,
    out: &Buf<u32>,
) -> Result<Work> {
    let longest = rows.iter().map(|row| row[1]).max().unwrap_or(0);
    let all: f64 = rows.iter().map(|row| f64::from(row[1])).sum();
    let k = rows.iter().map(|row| row[2]).max().unwrap_or(0);
    let level = gpu.profile().top_k_level().min(Level::Subgroup);
    let list = gpu.upload("rows", rows)?;
    let table = gpu.buffer::<u32>("table", 1)?;
    let work = Work::new("top_k", level.name(), format!("{k} of {longest}, {} rows", params.rows));
    let work = work.costs(all * 4.0, 0.0);
    if longest < top_k_peaks::LONG {
        let bindings: [Bound; 4] = [scores, (&list).into(), (&table).into(), out.into()];
        return Ok(work.dispatch(top_k::variant(output, level), params, bindings, top_k::grid(params)));
    }
    let params = TopKLongParams::new(params, longest, k);
    let [peaks, chosen, kept] = params.scratch_lens();
    let peaks = gpu.buffer::<u32>("peaks", peaks)?;
    let (chosen, kept) = (gpu.buffer::<u32>("chosen", chosen)?, gpu.buffer::<u32>("kept", kept)?);
    let of_peaks = params.peaks();
    let bindings: [Bound; 3] = [scores.clone(), (&list).into(), (&peaks).into()];
    let work = work.dispatch(top_k_peaks::variant(), &of_peaks, bindings, top_k_peaks::grid(&of_peaks));
    let bindings: [Bound; 7] = [
        scores,
        (&list).into(),
        (&table).into(),
        (&peaks).into(),
        (&chosen).into(),
        (&kept).into(),
        out.into(),
    ];
    Ok(work.dispatch(top_k_long::variant(output, level), &params, bindings, top_k_long::grid(&params)))
}

/// The positions of the `k` largest of each of `rows` rows of `len` random scores.
pub(super) fn top_k_of(gpu: &Gpu, rows: u32, len: u32, k: u32) -> Result<Work> {
    let scores = random(gpu, KvDtype::F32, rows as usize * len as usize, 1)?;
    let list: Vec<[u32; 4]> = (0..rows).map(|row| [row * len, len, k, 0]).collect();
    let out = gpu.buffer::<u32>("out", (rows * k) as usize)?;
    let params = TopKParams { rows, out_stride: k, copies: 1, page_size: 1 };
    top_k(gpu, &params, Output::Positions(Transform::None), &list, (&scores).into(), &out)
}
