//! The compressor of DeepSeek-V4: one entry for every `ratio` tokens, a softmax-weighted sum over a window of them.

use crate::{
    dsa::fp8::{self, ScaleFormat},
    dsa::transform::PADDING,
    heads::dot,
};

/// Number of channels at the end of an entry that have rotary embedding.
pub const ROPE_DIM: usize = 64;
/// Number of channels per scale in the main cache; scales are UE8M0. Library only: the engine's kernels round by
/// themselves.
pub const MAIN_SCALE_BLOCK: usize = 64;
/// Number of channels per scale in the indexer's cache; scales are f32. Library only: the engine's kernels round by
/// themselves.
pub const INDEXER_SCALE_BLOCK: usize = 128;

/// Number of tokens per entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ratio {
    /// One entry for every 4 tokens, from the last 8: windows overlap.
    C4,
    /// One entry for every 128 tokens, from the last 128.
    C128,
}

impl Ratio {
    /// Number of tokens from one entry to the next, `r`.
    #[must_use]
    pub const fn tokens(self) -> usize {
        match self {
            Self::C4 => 4,
            Self::C128 => 128,
        }
    }

    /// Number of spans of `r` tokens that an entry combines. The state of a token has as many vectors.
    #[must_use]
    pub const fn coff(self) -> usize {
        match self {
            Self::C4 => 2,
            Self::C128 => 1,
        }
    }

    /// Number of tokens that an entry combines, `coff r`, which the state cache must keep.
    #[must_use]
    pub const fn window(self) -> usize {
        self.coff() * self.tokens()
    }

    /// Number of tokens per block of the state cache.
    #[must_use]
    pub const fn state_block_size(self) -> usize {
        match self {
            Self::C4 => 4,
            Self::C128 => 8,
        }
    }

    /// Whether an entry is complete at `pos`.
    #[must_use]
    pub const fn completes(self, pos: usize) -> bool {
        (pos + 1).is_multiple_of(self.tokens())
    }

    /// The slot of the entry that `pos` completes, or -1 if it completes none. `table` lists physical blocks
    /// of `block_size` raw tokens, or `block_size / r` entries.
    ///
    /// # Panics
    /// When the table ends before the position, or a block is too small for an entry.
    #[must_use]
    pub fn slot(self, pos: usize, table: &[u32], block_size: usize) -> i32 {
        if !self.completes(pos) {
            return PADDING;
        }
        let (entry, entries) = (pos / self.tokens(), block_size / self.tokens());
        assert!(entries > 0, "a block of {block_size} tokens for entries of {}", self.tokens());
        let slot = table[entry / entries] as usize * entries + entry % entries;
        i32::try_from(slot).expect("slots fit the i32 of index tensors")
    }
}

/// State of the tokens of a sequence, from position 0 on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State<'a> {
    /// `[len, coff * dim]`
    pub kv: &'a [f32],
    /// `[len, coff * dim]`, with the positional embedding added ([`add_ape`]).
    pub score: &'a [f32],
    /// Number of channels of an entry.
    pub dim: usize,
}

/// Adds `ape[pos % r]`, `[r, coff * dim]`, to the scores of the token at `pos`.
pub fn add_ape(score: &mut [f32], ape: &[f32], pos: usize, ratio: Ratio) {
    let row = &ape[pos % ratio.tokens() * score.len()..][..score.len()];
    score.iter_mut().zip(row).for_each(|(s, a)| *s += a);
}

/// The entry that `pos` completes, `[dim]`, before norm and rotation; `None` if it completes none. With
/// overlap, the first `r` tokens of the window contribute the first half of their state, and the last `r` the
/// second half. Positions before 0 are masked.
#[must_use]
pub fn pool(ratio: Ratio, state: &State<'_>, pos: usize) -> Option<Vec<f32>> {
    if !ratio.completes(pos) {
        return None;
    }
    let (r, width) = (ratio.tokens(), ratio.coff() * state.dim);
    let rows = (pos + 1).saturating_sub(ratio.window())..pos + 1;
    let half = |p: usize| if ratio.coff() == 2 && p + r > pos { state.dim } else { 0 };
    let channel = |d: usize| {
        let at = |p: usize| p * width + half(p) + d;
        let max = rows.clone().map(|p| state.score[at(p)]).fold(f32::NEG_INFINITY, f32::max);
        let (mut sum, mut weights) = (0.0, 0.0);
        for p in rows.clone() {
            let weight = (state.score[at(p)] - max).exp();
            sum += weight * state.kv[at(p)];
            weights += weight;
        }
        sum / weights
    };
    Some((0..state.dim).map(channel).collect())
}

/// RMSNorm with weights, in place.
pub fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    x.iter_mut().zip(weight).for_each(|(x, w)| *x *= scale * w);
}

/// Applies rotary embedding to the last [`ROPE_DIM`] channels of the entry that `pos` completes, in adjacent
/// pairs, at position `(pos / r) r`.
///
/// # Panics
/// When the entry has fewer channels than that.
pub fn rotate(x: &mut [f32], ratio: Ratio, pos: usize, theta: f64) {
    assert!(x.len() >= ROPE_DIM, "{} channels, {ROPE_DIM} of them rotated", x.len());
    let at = (pos / ratio.tokens() * ratio.tokens()) as f64;
    let first = x.len() - ROPE_DIM;
    for (i, pair) in x[first..].chunks_mut(2).enumerate() {
        let (sin, cos) = (at * theta.powf(-2.0 * i as f64 / ROPE_DIM as f64)).sin_cos();
        let (a, b) = (f64::from(pair[0]), f64::from(pair[1]));
        pair[0] = f32_of(a * cos - b * sin);
        pair[1] = f32_of(a * sin + b * cos);
    }
}

/// fp8 codes of `x`, and one scale per `block` channels. Library only: the engine's kernels round by themselves.
#[must_use]
pub fn quantise_blocks(x: &[f32], block: usize, format: ScaleFormat) -> (Vec<u8>, Vec<f32>) {
    let (codes, scales): (Vec<_>, Vec<_>) = x.chunks(block).map(|part| fp8::quantise(part, format)).unzip();
    (codes.concat(), scales)
}

#[expect(clippy::cast_possible_truncation, reason = "rounds once to the type of the cache")]
const fn f32_of(x: f64) -> f32 {
    x as f32
}
