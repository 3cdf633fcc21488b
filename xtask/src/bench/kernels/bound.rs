//! The certificate of a step of decode: scores that keep their bounds, and what dropped blocks may hold of the mass.

use anyhow::Result;
use attn_kernels::Level;
use attn_kernels::gpu::{Bind, Buf, Gpu};
use attn_kernels::kernel::mass_bound::{self, MassBoundParams};

use super::attention::Step;
use super::lists::{Lists, SELECT_BLOCK};
use super::select::{self, Policy};
use super::work::{Bench, Timed, Work};

/// Scores with bounds, and the certificate of lists with a share `density` of the blocks.
pub(super) fn certificate(bench: &Bench, step: &Step, density: f64) -> Result<Vec<Timed>> {
    let (gpu, kv_heads) = (bench.gpu, step.heads.shape.num_kv_heads);
    let longest = step.cache.rows.iter().map(|row| row[1]).max().unwrap_or(0);
    let blocks = longest.div_ceil(SELECT_BLOCK);
    let bounds = gpu.buffer::<f32>("bounds", (step.batch() * step.heads.num_heads * blocks) as usize)?;
    let (scores, ..) = select::scores(gpu, step, Policy::Quest, Some(&bounds))?;
    let lens = step.cache.rows.iter().flat_map(|row| (0..kv_heads).map(move |_| row[1]));
    let lists = Lists::random(gpu, lens, kv_heads, density)?;
    bench.each([scores, mass_bound(gpu, step, &lists, (&bounds, blocks))?])
}

fn mass_bound(gpu: &Gpu, step: &Step, lists: &Lists, (bounds, blocks): (&Buf<f32>, u32)) -> Result<Work> {
    let num_heads = step.heads.num_heads;
    let heads = (step.batch() * num_heads) as usize;
    let (_, partition_size, max_partitions) = step.cut(gpu, Some(lists));
    let params = MassBoundParams {
        num_heads,
        num_kv_heads: step.heads.shape.num_kv_heads,
        select_block: SELECT_BLOCK,
        list_stride: lists.stride,
        max_partitions,
        bound_stride: blocks,
        first_list: 0,
        first_share: 0,
        share_stride: mass_bound::share_stride(blocks),
        partition_size,
        pad0: 0,
        pad1: 0,
    };
    let stats = gpu.upload("stats", &vec![[1.0_f32; 2]; heads * max_partitions as usize])?;
    let shares = gpu.buffer::<f32>("shares", heads * params.share_stride as usize)?;
    let bindings: [Bind; 5] =
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
