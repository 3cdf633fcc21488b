//! Reference of `moe_route`.

use super::f32_of;
use crate::kernel::moe_route::MoeRouteParams;
use crate::{MoeConfig, Score};

/// Returns experts and weights `[rows, top_k]` from `logits` `[rows, num_experts]`; `correction` is added to scores
/// for the choice of experts alone. With `hashed`, which is tokens and a table `[*, top_k]`, a row's token determines
/// its experts.
pub fn moe_route(
    moe: &MoeConfig,
    params: &MoeRouteParams,
    logits: &[f32],
    correction: &[f32],
    hashed: Option<(&[u32], &[u32])>,
) -> (Vec<u32>, Vec<f32>) {
    let (mut experts, mut weights) = (Vec::new(), Vec::new());
    for (row, logits) in logits.chunks_exact(moe.num_experts as usize).enumerate() {
        let scores = scores(moe.router.score, logits);
        let corrected = corrected(&scores, correction);
        let top = moe.top_k as usize;
        let chosen: Vec<usize> = match hashed {
            Some((tokens, table)) => {
                table[tokens[row] as usize * top..][..top].iter().map(|e| *e as usize).collect()
            }
            None => best(&limited(moe, &corrected), top),
        };
        let mut chosen_weights: Vec<f64> = chosen.iter().map(|e| scores[*e]).collect();
        if moe.router.score == Score::SoftmaxOfChosen {
            chosen_weights = softmax(&chosen_weights);
        } else if moe.router.normalise {
            let sum = chosen_weights.iter().sum::<f64>() + 1e-20;
            chosen_weights.iter_mut().for_each(|w| *w /= sum);
        }
        weights.extend(chosen_weights.iter().map(|w| f32_of(w * f64::from(params.scale))));
        experts.extend(chosen.iter().map(|e| u32::try_from(*e).expect("experts fit in 32 bits")));
    }
    (experts, weights)
}

/// Scores by which a row's groups are ranked, `[groups]`: the sum of the `group_top` best corrected scores of each
/// group. A kernel may rank sums either way if they differ by less than f32 resolves.
pub fn group_scores(moe: &MoeConfig, logits: &[f32], correction: &[f32]) -> Vec<f64> {
    sums_of_best(moe, &corrected(&scores(moe.router.score, logits), correction))
}

fn corrected(scores: &[f64], correction: &[f32]) -> Vec<f64> {
    scores.iter().zip(correction).map(|(score, c)| score + f64::from(*c)).collect()
}

fn scores(score: Score, logits: &[f32]) -> Vec<f64> {
    let logits: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
    match score {
        Score::Softmax => softmax(&logits),
        Score::SoftmaxOfChosen => logits,
        Score::Sigmoid => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        Score::SqrtSoftplus => logits.iter().map(|x| x.exp().ln_1p().sqrt()).collect(),
    }
}

fn softmax(values: &[f64]) -> Vec<f64> {
    let top = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = values.iter().map(|x| (x - top).exp()).sum();
    values.iter().map(|x| (x - top).exp() / sum).collect()
}

/// Returns the scores, with minus infinity for experts outside of the best groups.
fn limited(moe: &MoeConfig, scores: &[f64]) -> Vec<f64> {
    let kept = best(&sums_of_best(moe, scores), moe.router.top_groups as usize);
    let limited = |(e, score): (usize, &f64)| {
        if kept.contains(&(e / members(moe))) { *score } else { f64::NEG_INFINITY }
    };
    scores.iter().enumerate().map(limited).collect()
}

fn sums_of_best(moe: &MoeConfig, scores: &[f64]) -> Vec<f64> {
    let of_group =
        |group: &[f64]| best(group, moe.router.group_top as usize).iter().map(|e| group[*e]).sum::<f64>();
    scores.chunks_exact(members(moe)).map(of_group).collect()
}

fn members(moe: &MoeConfig) -> usize {
    (moe.num_experts / moe.router.groups) as usize
}

/// Indices of the `n` largest values, ties to the lower index.
fn best(values: &[f64], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
    order.truncate(n);
    order
}
