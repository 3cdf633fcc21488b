//! Reference of `nsa_block_score`: the importance of `sparse-select`.

use crate::kernel::nsa_block_score::NsaBlockScoreParams;
use sparse_select::nsa::Nsa;

/// Computes the scores `[n, num_kv_heads, score_stride]` of the selection blocks of `nsa`.
pub fn nsa_block_score(
    nsa: &Nsa,
    params: &NsaBlockScoreParams,
    probs: &[f32],
    rows: &[[u32; 4]],
    scores: &mut [f32],
) {
    let (heads, kv_heads) = (params.num_heads as usize, params.num_kv_heads as usize);
    let group = heads / kv_heads;
    for (list, scores) in scores.chunks_mut(params.score_stride as usize).enumerate() {
        let (row, kv) = (list / kv_heads, list % kv_heads);
        let len = rows[row][1];
        let mut sum = vec![0.0_f32; nsa.visible_compressed(len as usize)];
        for head in kv * group..(kv + 1) * group {
            let of_head = &probs[(row * heads + head) * params.prob_stride as usize..];
            sum.iter_mut().zip(of_head).for_each(|(sum, p)| *sum += p);
        }
        let blocks = len.div_ceil(nsa.block_size.get());
        scores.fill(f32::NEG_INFINITY);
        for ((block, score), importance) in (0..).zip(scores).zip(nsa.importance(&sum, blocks)) {
            let forced = block < nsa.init_blocks || block + nsa.recent_blocks() >= blocks;
            *score = if forced { f32::INFINITY } else { importance };
        }
    }
}
