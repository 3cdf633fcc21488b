//! Blocks chosen by scores, and the step of decode that attends them: Quest (bounds of keys) and GSA (mean keys).

use anyhow::Result;
use attn_kernels::Level;
use attn_kernels::gpu::{Bound, Buf, Gpu};
use attn_kernels::kernel::KvDtype;
use attn_kernels::kernel::block_digest::{self, Digest};
use attn_kernels::kernel::block_score::{self, BlockScoreParams};
use attn_kernels::kernel::top_k::{self, Output, TopKParams, Transform};
use attn_kernels::kernel::top_k_long::{self, TopKLongParams};
use attn_kernels::kernel::top_k_peaks;

use super::attention::Step;
use super::ceiling::random;
use super::lists::{Lists, SELECT_BLOCK, budget};
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

/// Bounds or means of all blocks of every sequence, scored for its row of queries; Quest's bounds kept in `bounds` if it is
/// there.
pub(super) fn scores(
    gpu: &Gpu,
    step: &Step,
    policy: Policy,
    bounds: Option<&Buf<f32>>,
) -> Result<(Work, BlockScoreParams, Buf<f32>)> {
    let (shape, num_heads) = (&step.heads.shape, step.heads.num_heads);
    let pages = step.cache.table.len();
    let elements = policy.digest().pool_elements(shape, pages);
    let digests = random(gpu, block_digest::dtype(shape.dtype), elements, 1)?;
    let longest = step.cache.rows.iter().map(|row| row[1]).max().unwrap_or(0);
    let heads_per_set = match policy {
        Policy::Quest => num_heads / shape.num_kv_heads,
        Policy::Gsa => num_heads,
    };
    let params = BlockScoreParams {
        num_heads,
        num_kv_heads: shape.num_kv_heads,
        q_stride: step.heads.width(),
        heads_per_set,
        score_stride: longest.div_ceil(SELECT_BLOCK),
        sink_blocks: 1,
        recent_blocks: 1,
        logit_scale: step.heads.scale(),
        ..BlockScoreParams::default()
    };
    let scores = gpu.buffer::<f32>("scores", block_score::scores_len(&params, step.cache.rows.len()))?;
    let mut bindings: Vec<Bound> = vec![
        (&step.q).into(),
        (&digests).into(),
        (&step.cache.tables).into(),
        (&step.rows).into(),
        (&scores).into(),
    ];
    bindings.extend(bounds.map(Bound::from));
    let (what, variant) = match bounds {
        Some(_) => (", bounds", block_score::with_bounds(shape, num_heads, SELECT_BLOCK)),
        None => ("", block_score::variant(shape, num_heads, policy.digest(), SELECT_BLOCK)),
    };
    // Two operations an element and query head for means, four for bounds, of which there are two vectors.
    let operations = 2.0 * elements as f64 * f64::from(num_heads / shape.num_kv_heads);
    let name = format!("{}, {}", step.name, step.heads.name());
    let work = Work::new(&format!("block_score, {}{what}", policy.name()), Level::Baseline.name(), name)
        .costs((digests.len() + bounds.map_or(0, Buf::len)) as f64 * 4.0, operations)
        .dispatch(variant, &params, bindings, block_score::grid(policy.digest(), &params, step.batch()));
    Ok((work, params, scores))
}

/// The works that select a share of the blocks, and where their lists are.
fn select(gpu: &Gpu, step: &Step, policy: Policy, density: f64) -> Result<(Work, Lists)> {
    let (work, params, scores) = scores(gpu, step, policy, None)?;
    let kv_heads = params.num_kv_heads;
    let sets = params.num_heads / params.heads_per_set;
    let mut tops = Vec::new();
    let (mut tokens, mut longest) = (0.0, 0);
    for (index, row) in (0..).zip(&step.cache.rows) {
        let blocks = row[1].div_ceil(SELECT_BLOCK);
        let k = budget(row[1], density);
        tops.extend((0..sets).map(|set| [(index * sets + set) * params.score_stride, blocks, k, 0]));
        tokens += f64::from(k * SELECT_BLOCK);
        longest = longest.max(k);
    }
    let stride = 1 + longest;
    let buffer = gpu.buffer::<u32>("lists", (step.batch() * kv_heads * stride) as usize)?;
    let rows = u32::try_from(tops.len())?;
    let top = TopKParams { rows, out_stride: stride, copies: kv_heads / sets, page_size: 1 };
    let top = top_k(gpu, &top, Output::List, &tops, (&scores).into(), &buffer)?;
    Ok((work.then("select", top), Lists { buffer, stride, block: SELECT_BLOCK, tokens, density }))
}

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
