//! Selection of as many blocks as a mass takes.

use anyhow::Result;
use attn_kernels::Level;
use attn_kernels::gpu::{Bound, Gpu};
use attn_kernels::kernel::KvDtype;
use attn_kernels::kernel::block_lse::{self, BlockLseParams};
use attn_kernels::kernel::mass_cut::{self, MassCutParams};

use super::attention::{Heads, Step};
use super::ceiling::random;
use super::lists::SELECT_BLOCK;
use super::work::Work;

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
