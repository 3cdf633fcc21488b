//! Softmax attention of one query to some keys, which every paged attention kernel computes in parts.

use super::{PagedKv, f32_of};
use crate::kernel::attention::Reach;

/// Unnormalised attention over some keys: the state that online softmax carries.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The largest score, minus infinity without keys.
    pub top: f64,
    /// Sum of `exp(score - top)`.
    pub sum: f64,
    /// Sum of `exp(score - top) * value`, `[head_dim]`.
    pub weighted: Vec<f64>,
}

/// Lists of selected blocks, as kernels of [`Context::Blocks`](crate::kernel::attention::Context::Blocks) read them.
#[derive(Clone, Copy, Debug)]
pub struct Selected<'a> {
    /// Lists of `[count, blocks ascending..]`.
    pub lists: &'a [u32],
    /// Number of entries from one list to the next.
    pub stride: usize,
    /// Number of tokens per block.
    pub block: usize,
}

/// Options of attention that the dense causal case does not have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Lists of selected blocks.
    pub selected: Option<Selected<'a>>,
    /// Keys that rows of prefill may attend to.
    pub mask: Reach,
    /// Bound of softcapped scores.
    pub softcap: Option<f32>,
    /// ALiBi slopes `[num_heads]`.
    pub slopes: Option<&'a [f32]>,
    /// Tiles of rows and keys that prefill may skip.
    pub skip: Option<SkipTiles>,
}

/// Size of the tiles of scores that attention skips if all weights of a tile are negligible.
#[derive(Clone, Copy, Debug)]
pub struct SkipTiles {
    /// Number of rows of a tile. The first tile begins at the first row of a tile of prefill.
    pub rows: u32,
    /// Number of keys of a tile. The first tile begins at the first key of the context.
    pub keys: usize,
}

impl Options<'_> {
    /// Returns the attended positions before `len`, in the order of attention: all positions if nothing is selected,
    /// else those in the blocks of list `list`.
    #[must_use]
    pub fn context(&self, list: usize, len: usize) -> Vec<usize> {
        let Some(selected) = self.selected else { return (0..len).collect() };
        let list = &selected.lists[list * selected.stride..];
        let blocks = list[1..=list[0] as usize].iter().map(|block| *block as usize * selected.block);
        blocks.flat_map(|start| start..len.min(start + selected.block)).collect()
    }

    /// Computes the input of the softmax from a scaled score of query head `head` and a key `distance` positions
    /// before the row.
    #[must_use]
    pub fn logit(&self, score: f64, head: usize, distance: usize) -> f64 {
        let capped = match self.softcap {
            None => score,
            Some(_) if !score.is_finite() => f64::NAN,
            Some(cap) => f64::from(cap) * (score / f64::from(cap)).tanh(),
        };
        let slope = self.slopes.map_or(0.0, |slopes| f64::from(slopes[head]));
        #[expect(clippy::cast_precision_loss, reason = "positions are below 2^32")]
        let distance = distance as f64;
        capped - slope * distance
    }
}

/// Attends with one query head `q` over the keys at `keys` of one KV head; `logit` maps the product and the position of a
/// key to its logit.
#[must_use]
pub fn attend(
    cache: &PagedKv<'_>,
    table: &[u32],
    kv_head: usize,
    q: &[f32],
    keys: impl Iterator<Item = usize> + Clone,
    logit: impl Fn(f64, usize) -> f64,
) -> State {
    let dot = |key| q.iter().zip(cache.key(table, kv_head, key)).map(|(q, k)| f64::from(*q) * k).sum::<f64>();
    let scores: Vec<f64> = keys.clone().map(|key| logit(dot(key), key)).collect();
    let keys: Vec<usize> = keys.collect();
    weighted_sum(&scores, q.len(), |index| cache.value(table, kv_head, keys[index]))
}

/// Returns the attention state for `scores`, with one value vector of `dim` elements per score. `value` returns the
/// vector by the index of its score.
#[must_use]
pub fn weighted_sum<V: Iterator<Item = f64>>(
    scores: &[f64],
    dim: usize,
    value: impl Fn(usize) -> V,
) -> State {
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut state = State { top, sum: 0.0, weighted: vec![0.0; dim] };
    for (index, score) in scores.iter().enumerate() {
        let p = (score - top).exp();
        state.sum += p;
        for (total, v) in state.weighted.iter_mut().zip(value(index)) {
            *total += p * v;
        }
    }
    state
}

impl State {
    /// Returns the output of the attention; zero without keys.
    pub fn output(&self) -> impl Iterator<Item = f32> {
        let sum = if self.sum > 0.0 { self.sum } else { 1.0 };
        self.weighted.iter().map(move |x| f32_of(x / sum))
    }

    /// Returns the natural logarithm of the sum of `exp(score)`; minus infinity without keys.
    #[must_use]
    pub fn lse(&self) -> f32 {
        f32_of(self.top + self.sum.ln())
    }
}
