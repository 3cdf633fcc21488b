//! Compressed attention of NSA and its scores of blocks, in the published sizes.

use anyhow::Result;
use attn_kernels::Level;
use attn_kernels::gpu::{Bound, Gpu};
use attn_kernels::kernel::block_digest::{self, Digest};
use attn_kernels::kernel::nsa_block_score::{self, NsaBlockScoreParams};
use attn_kernels::kernel::nsa_probs::{self, NsaProbsParams};

use super::attention::{Heads, Step};
use super::ceiling::random;
use super::work::Work;

/// Tokens of a compressed key, from one to the next, and of a block that is selected.
const KERNEL: u32 = 32;
const STRIDE: u32 = 16;
const BLOCK: u32 = 64;

/// Probabilities of compressed keys, and the scores of blocks from them.
pub(super) fn compressed(gpu: &Gpu, step: &Step) -> Result<[Work; 2]> {
    let Heads { num_heads, shape } = step.heads;
    let elements = Digest::Mean.pool_elements(&shape, step.cache.table.len());
    let digests = random(gpu, block_digest::dtype(shape.dtype), elements, 1)?;
    let longest = step.cache.rows.iter().map(|row| row[1]).max().unwrap_or(0);
    let params = NsaProbsParams {
        num_heads,
        num_kv_heads: shape.num_kv_heads,
        q_stride: step.heads.width(),
        prob_stride: longest / STRIDE,
        scale: step.heads.scale(),
    };
    let probs = gpu.buffer::<f32>("probs", (step.batch() * num_heads * params.prob_stride) as usize)?;
    let binds: [Bound; 5] = [
        (&step.q).into(),
        (&digests).into(),
        (&step.cache.tables).into(),
        (&step.rows).into(),
        (&probs).into(),
    ];
    let (level, name) = (Level::Baseline.name(), format!("{}, {}", step.name, step.heads.name()));
    let group = f64::from(num_heads / shape.num_kv_heads);
    let attend = Work::new("nsa_probs", level, name.clone())
        .costs((digests.len() + probs.len()) as f64 * 4.0, 2.0 * elements as f64 * group)
        .dispatch(
            nsa_probs::variant(&shape, KERNEL, STRIDE),
            &params,
            binds,
            nsa_probs::grid(&params, step.batch()),
        );
    let params = NsaBlockScoreParams {
        num_heads,
        num_kv_heads: shape.num_kv_heads,
        prob_stride: params.prob_stride,
        score_stride: longest.div_ceil(BLOCK),
        stride: STRIDE,
        init_blocks: 1,
        local_blocks: 2,
        infinity: f32::INFINITY,
    };
    let scores = step.batch() * shape.num_kv_heads * params.score_stride;
    let scores = gpu.buffer::<f32>("scores", scores as usize)?;
    let binds: [Bound; 3] = [(&probs).into(), (&step.rows).into(), (&scores).into()];
    let score = Work::new("nsa_block_score", level, name)
        .costs((probs.len() + scores.len()) as f64 * 4.0, 0.0)
        .dispatch(
            nsa_block_score::variant(KERNEL, STRIDE, BLOCK),
            &params,
            binds,
            nsa_block_score::grid(&params, step.batch()),
        );
    Ok([attend, score])
}
