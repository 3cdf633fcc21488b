//! Reference of `attend_means`.

use super::f32_of;
use crate::kernel::attend_means::AttendMeansParams;

/// Adds to the attention in `out` and `lse` the blocks that `lists` does not name, each approximated by its mean key
/// and mean value.
///
/// Blocks have `block` tokens. Shapes are `[rows, num_heads, head_dim]` of `out`, `[rows, num_heads]` of `lse`,
/// `[query_blocks, num_kv_heads]` of `lists`, and `[num_kv_heads, mean_stride, head_dim]` of both means, `[keys,
/// values]`.
pub fn attend_means(
    params: &AttendMeansParams,
    [block, dim]: [usize; 2],
    q: &[f32],
    [keys, values]: [&[f32]; 2],
    lists: &[Vec<u32>],
    (out, lse): (&mut [f32], &mut [f32]),
) {
    let (heads, kv_heads) = (params.num_heads as usize, params.num_kv_heads as usize);
    for token in params.front as usize..(params.front + params.q_len) as usize {
        let row = params.q_first as usize + token - params.front as usize;
        for head in 0..heads {
            let kv = head / (heads / kv_heads);
            let list = &lists[token / block * kv_heads + kv];
            let left_out = (0..params.current + u32::try_from(token / block).expect("few query blocks"))
                .filter(|block| !list.contains(block));
            let query = &q[row * params.q_stride as usize + head * dim..][..dim];
            let at = row * heads + head;
            let out = &mut out[at * dim..][..dim];
            // The listed blocks count as one key, whose score is their log-sum-exp.
            let mut parts: Vec<(f64, Vec<f64>)> =
                vec![(f64::from(lse[at]), out.iter().map(|x| f64::from(*x)).collect())];
            for index in left_out {
                let begin = (kv * params.mean_stride as usize + index as usize) * dim;
                let mean =
                    |of: &[f32]| of[begin..begin + dim].iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
                let product: f64 = query.iter().zip(mean(keys)).map(|(q, k)| f64::from(*q) * k).sum();
                parts.push((f64::from(params.scale) * product + (block as f64).ln(), mean(values)));
            }
            let top = parts.iter().map(|(score, _)| *score).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = parts.iter().map(|(score, _)| (score - top).exp()).sum();
            for (i, out) in out.iter_mut().enumerate() {
                let weighed = parts.iter().map(|(score, value)| (score - top).exp() * value[i]);
                *out = f32_of(weighed.sum::<f64>() / sum);
            }
            lse[at] = f32_of(top + sum.ln());
        }
    }
}
