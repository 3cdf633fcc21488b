//! Certainty of a step of decode: scores that keep their bounds, what dropped blocks may hold of the mass, and selection of as
//! many blocks as a mass takes.

use anyhow::Result;
use attn_kernels::Level;
use attn_kernels::gpu::{Bound, Buf, Gpu};
use attn_kernels::kernel::KvDtype;
use attn_kernels::kernel::block_lse::{self, BlockLseParams};
use attn_kernels::kernel::mass_bound::{self, MassBoundParams};
use attn_kernels::kernel::mass_cut::{self, MassCutParams};
use attn_kernels::kernel::mass_merge::{self, MassMergeParams};
use attn_kernels::split::SplitPlan;

use super::attention::{Heads, Step};
use super::ceiling::random;
use super::lists::{Lists, SELECT_BLOCK};
use super::select::{self, Policy};
use super::work::{Bench, Timed, Work};

/// Scores with bounds, and the certificate of lists with a share `density` of the blocks.
pub(super) fn certificate(bench: &Bench, step: &Step, density: f64) -> Result<Vec<Timed>> {
    let (gpu, kv_heads) = (bench.gpu, step.heads.shape.num_kv_heads);
    let longest = step.cache.rows.iter().map(|row| row[1]).max().unwrap_or(0);
    let blocks = longest.div_ceil(SELECT_BLOCK);
    let bounds = gpu.buffer::<f32>("bounds", 2 * (step.batch() * step.heads.num_heads * blocks) as usize)?;
    let (scores, ..) = select::scores(gpu, step, Policy::Quest, Some(&bounds))?;
    let lens = step.cache.rows.iter().flat_map(|row| (0..kv_heads).map(move |_| row[1]));
    let lists = Lists::random(gpu, lens, kv_heads, density)?;
    bench.each([scores, mass_bound(gpu, step, &lists, (&bounds, blocks))?, mass_merge(gpu, step, blocks)?])
}

/// Layers of a model, whose shares are merged at the end of a step.
const LAYERS: u32 = 32;

fn mass_merge(gpu: &Gpu, step: &Step, blocks: u32) -> Result<Work> {
    let (rows, share_stride) = (step.batch() * step.heads.num_heads, mass_bound::share_stride(blocks));
    let params = MassMergeParams { layers: LAYERS, rows, share_stride };
    let shares = random(gpu, KvDtype::F32, (LAYERS * rows * share_stride) as usize, 1)?;
    let masses = gpu.buffer::<f32>("masses", rows as usize)?;
    let bindings: [Bound; 2] = [(&shares).into(), (&masses).into()];
    let name = format!("{}, {}, {LAYERS} layers", step.name, step.heads.name());
    Ok(Work::new("mass_merge", Level::Baseline.name(), name)
        .costs(4.0 * (shares.len() + masses.len()) as f64, 0.0)
        .dispatch(mass_merge::variant(), &params, bindings, mass_merge::grid(&params)))
}

/// Selection of what every head needs to be certain that kept blocks have `odds` times the mass of others: all turns of both
/// kernels, after random scores and bounds.
pub(super) fn by_mass(gpu: &Gpu, step: &Step, odds: f32) -> Result<Work> {
    let Heads { num_heads, shape } = step.heads;
    let longest = step.cache.rows.iter().map(|row| row[1]).max().unwrap_or(0);
    let stride = longest.div_ceil(SELECT_BLOCK);
    let sets = (step.batch() * shape.num_kv_heads) as usize;
    let heads = (step.batch() * num_heads) as usize;
    let scores = random(gpu, KvDtype::F32, sets * stride as usize, 5)?;
    let bounds = random(gpu, KvDtype::F32, 2 * heads * stride as usize, 6)?;
    let lses = gpu.buffer::<f32>("lses", heads * stride as usize)?;
    let cuts = gpu.buffer::<[u32; 4]>("cuts", sets)?;
    let lists = gpu.buffer::<u32>("lists", sets * (stride as usize + 1))?;
    let name = format!("{}, {}", step.name, step.heads.name());
    // Which keys are read depends on the bounds: they do not count.
    let bytes = 4.0 * (scores.len() + bounds.len() + lses.len() + lists.len()) as f64;
    let mut work = Work::new("block_lse, mass_cut", Level::Baseline.name(), name).costs(bytes, 0.0);
    for round in mass_cut::ROUNDS {
        let params = BlockLseParams {
            num_heads,
            num_kv_heads: shape.num_kv_heads,
            q_stride: step.heads.width(),
            stride,
            scale: step.heads.scale(),
            first: u32::from(round == mass_cut::FIRST),
        };
        let binds: [Bound; 7] = [
            (&step.q).into(),
            (&step.cache.k).into(),
            (&step.cache.tables).into(),
            (&step.rows).into(),
            (&scores).into(),
            (&cuts).into(),
            (&lses).into(),
        ];
        let variant = block_lse::variant(&shape, num_heads, SELECT_BLOCK);
        work = work.dispatch(variant, &params, binds, block_lse::grid(&params, SELECT_BLOCK, step.batch()));
        let params = MassCutParams {
            num_heads,
            num_kv_heads: shape.num_kv_heads,
            stride,
            select_block: SELECT_BLOCK,
            list_stride: stride + 1,
            round,
            odds,
            slack: 1.0,
        };
        let binds: [Bound; 6] = [
            (&step.rows).into(),
            (&scores).into(),
            (&bounds).into(),
            (&lses).into(),
            (&cuts).into(),
            (&lists).into(),
        ];
        let variant = mass_cut::variant(num_heads / shape.num_kv_heads);
        work = work.dispatch(variant, &params, binds, mass_cut::grid(&params, step.batch()));
    }
    Ok(work)
}

fn mass_bound(gpu: &Gpu, step: &Step, lists: &Lists, (bounds, blocks): (&Buf<f32>, u32)) -> Result<Work> {
    let num_heads = step.heads.num_heads;
    let heads = (step.batch() * num_heads) as usize;
    let SplitPlan { partition_size, max_partitions, .. } = step.split(gpu, Some(lists));
    let params = MassBoundParams {
        num_heads,
        num_kv_heads: step.heads.shape.num_kv_heads,
        select_block: SELECT_BLOCK,
        list_stride: lists.stride,
        max_partitions,
        bound_stride: blocks,
        first_row: 0,
        first_share: 0,
        share_stride: mass_bound::share_stride(blocks),
        partition_size,
        slack: 1.0,
    };
    let stats = gpu.upload("stats", &vec![[1.0_f32; 2]; heads * max_partitions as usize])?;
    let shares = gpu.buffer::<f32>("shares", heads * params.share_stride as usize)?;
    let bindings: [Bound; 5] =
        [bounds.into(), (&step.rows).into(), (&lists.buffer).into(), (&stats).into(), (&shares).into()];
    let name = format!("{}, {}{}", step.name, step.heads.name(), lists.kind());
    let bytes = 4.0 * (bounds.len() + lists.buffer.len() + 2 * stats.len() + shares.len()) as f64;
    Ok(Work::new("mass_bound", Level::Baseline.name(), name).costs(bytes, 0.0).dispatch(
        mass_bound::variant(),
        &params,
        bindings,
        mass_bound::grid(&params, step.batch()),
    ))
}
