//! Work on lists, apart from attention: rows that attend listed blocks under a mask, lists that vote, and lengths of lists.

use anyhow::Result;
use attn_kernels::Level;
use attn_kernels::gpu::{Bound, Gpu};
use attn_kernels::kernel::list_counts::{self, ListCountsParams};
use attn_kernels::kernel::masked_attention::{self, MaskedAttentionParams, MaskedRow};
use attn_kernels::kernel::vote_blocks::{self, VoteBlocksParams};

use super::attention::{Heads, Step};
use super::lists::{Lists, SELECT_BLOCK};
use super::work::Work;

/// One row of each sequence of `step` over a share `density` of its blocks, under a mask that leaves all keys.
pub(super) fn attend(gpu: &Gpu, step: &Step, density: f64) -> Result<Work> {
    let Heads { num_heads, shape } = step.heads;
    let lens = || step.cache.rows.iter().map(|row| row[1]);
    let lists = Lists::random(gpu, lens(), 1, density)?;
    let mask_stride = lens().max().unwrap_or(0).div_ceil(32);
    let masks = gpu.upload("masks", &vec![u32::MAX; (step.batch() * mask_stride) as usize])?;
    let row = |[q, len, table, _]: &[u32; 4]| MaskedRow {
        q: *q,
        out: *q,
        mask: *q,
        list: *q,
        len: *len,
        table: *table,
    };
    let rows: Vec<MaskedRow> = step.cache.rows.iter().map(row).collect();
    let rows = gpu.upload("rows", &rows)?;
    let out = gpu.buffer::<f32>("out", (step.batch() * step.heads.width()) as usize)?;
    let params = MaskedAttentionParams {
        num_heads,
        num_kv_heads: shape.num_kv_heads,
        q_stride: step.heads.width(),
        list_stride: lists.stride,
        mask_stride,
        rows: step.batch(),
        scale: step.heads.scale(),
        k_scale: 1.0,
        v_scale: 1.0,
    };
    let binds: [Bound; 8] = [
        (&step.q).into(),
        (&step.cache.k).into(),
        (&step.cache.v).into(),
        (&step.cache.tables).into(),
        (&rows).into(),
        (&masks).into(),
        (&out).into(),
        (&lists.buffer).into(),
    ];
    let name = format!("{}, {}{}", step.name, step.heads.name(), lists.kind());
    Ok(Work::new("masked_attention", Level::Baseline.name(), name)
        .costs(lists.tokens * step.heads.token_bytes(), lists.tokens * step.heads.pair_operations())
        .dispatch(
            masked_attention::variant(&shape, SELECT_BLOCK),
            &params,
            binds,
            masked_attention::grid(&params),
        ))
}

/// `voters` lists of a quarter of a context's blocks: the list of most of them, and how many blocks all of them name.
pub(super) fn votes(gpu: &Gpu, voters: u32, context: u32) -> Result<[Work; 2]> {
    let lists = Lists::random(gpu, std::iter::repeat_n(context, voters as usize), 1, 0.25)?;
    let blocks = context.div_ceil(SELECT_BLOCK);
    let params = VoteBlocksParams {
        voters,
        in_stride: lists.stride,
        votes: voters / 2 + 1,
        blocks,
        end: blocks,
        copies: 1,
        out_stride: 1 + blocks,
        first_list: 0,
    };
    let out = gpu.buffer::<u32>("out", params.out_stride as usize)?;
    let binds: [Bound; 2] = [(&lists.buffer).into(), (&out).into()];
    let name = format!("{voters} lists of {blocks} blocks{}", lists.kind());
    let vote = Work::new("vote_blocks", Level::Baseline.name(), name.clone())
        .costs(4.0 * lists.buffer.len() as f64, 0.0)
        .dispatch(vote_blocks::variant(), &params, binds, vote_blocks::grid());
    let params = ListCountsParams { list_stride: lists.stride, first: 0 };
    let spans = gpu.upload("spans", &[[0, voters]])?;
    let counts = gpu.buffer::<u32>("counts", 1)?;
    let binds: [Bound; 3] = [(&lists.buffer).into(), (&spans).into(), (&counts).into()];
    let count = Work::new("list_counts", Level::Baseline.name(), name)
        .costs(4.0 * f64::from(voters), 0.0)
        .dispatch(list_counts::variant(), &params, binds, list_counts::grid(1));
    Ok([vote, count])
}
