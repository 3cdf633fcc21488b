//! Borrowed `[heads, len, dim]` tensors.

use crate::SelectError;

/// Maximum number of heads of a tensor: the work and the results of every policy grow with them, even if there are no tokens.
pub const MAX_HEADS: usize = 1 << 16;

/// A borrowed f32 tensor `[heads, len, dim]`: queries or keys of one sequence. Rows are contiguous. A view of
/// fewer tokens keeps the stride between heads, so prefixes and windows need no copy.
#[derive(Clone, Copy)]
pub struct Heads<'a> {
    data: &'a [f32],
    heads: usize,
    len: usize,
    dim: usize,
    head_stride: usize,
}

impl<'a> Heads<'a> {
    /// Views `data` as `[heads, len, dim]`; `tensor` names it in errors.
    ///
    /// # Errors
    /// [`SelectError::Shape`] when `data` has a different number of elements, [`SelectError::NoChannels`] when there are tokens
    /// but nothing of them, [`SelectError::TooManyHeads`] over [`MAX_HEADS`].
    pub fn new(
        tensor: &'static str,
        data: &'a [f32],
        [heads, len, dim]: [usize; 3],
    ) -> Result<Self, SelectError> {
        if heads > MAX_HEADS {
            return Err(SelectError::TooManyHeads { tensor, heads, max: MAX_HEADS });
        }
        if dim == 0 && heads > 0 && len > 0 {
            return Err(SelectError::NoChannels { tensor, heads, len });
        }
        // As many as there can be stand for more.
        let needed = heads.saturating_mul(len).saturating_mul(dim);
        if data.len() != needed {
            return Err(SelectError::Shape { tensor, heads, len, dim, needed, actual: data.len() });
        }
        Ok(Self { data, heads, len, dim, head_stride: len.saturating_mul(dim) })
    }

    /// Number of heads.
    #[must_use]
    pub const fn heads(&self) -> usize {
        self.heads
    }

    /// Number of tokens.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no tokens.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of channels.
    #[must_use]
    pub const fn dim(&self) -> usize {
        self.dim
    }

    /// The vector of one token, `[dim]`.
    ///
    /// # Panics
    /// When head or token is out of range.
    #[must_use]
    pub fn row(&self, head: usize, token: usize) -> &'a [f32] {
        assert!(head < self.heads && token < self.len, "[{head}, {token}] of [{}, {}]", self.heads, self.len);
        let first = head * self.head_stride + token * self.dim;
        &self.data[first..first + self.dim]
    }

    /// All tokens of one head in order.
    pub fn rows(&self, head: usize) -> impl Iterator<Item = &'a [f32]> + use<'a> {
        let view = *self;
        (0..view.len).map(move |t| view.row(head, t))
    }

    /// The tokens `first .. first + len` of every head.
    ///
    /// # Panics
    /// When the range exceeds the tokens.
    #[must_use]
    pub fn window(&self, first: usize, len: usize) -> Self {
        assert!(first + len <= self.len, "tokens {first}..{} of {}", first + len, self.len);
        let data = if len == 0 { &[] } else { &self.data[first * self.dim..] };
        Self { data, len, ..*self }
    }

    /// The KV head that query head `head` reads, when `self` are queries: `head / (heads / kv_heads)`.
    #[must_use]
    pub const fn kv_head(&self, head: usize, kv_heads: usize) -> usize {
        head / (self.heads / kv_heads)
    }
}

impl core::fmt::Debug for Heads<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Heads[{}, {}, {}]", self.heads, self.len, self.dim)
    }
}

/// Checks that the shapes of `q` and `k` match, and returns the GQA group size (query heads per KV head).
///
/// # Errors
/// [`SelectError::HeadDim`] or [`SelectError::HeadGroups`].
pub fn gqa_group(q: &Heads<'_>, k: &Heads<'_>) -> Result<usize, SelectError> {
    if q.dim() != k.dim() {
        return Err(SelectError::HeadDim { q: q.dim(), k: k.dim() });
    }
    if k.heads() == 0 || q.heads() == 0 || !q.heads().is_multiple_of(k.heads()) {
        return Err(SelectError::HeadGroups { heads: q.heads(), kv_heads: k.heads() });
    }
    Ok(q.heads() / k.heads())
}

/// Dot product in f32, in channel order.
#[must_use]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// Dot product in f64, for masses and bounds.
#[must_use]
pub fn dot_f64(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
}

/// Mean of the queries of each GQA group at `token`: `[kv_heads][dim]`, f32 sum in head order, then one division.
#[must_use]
pub fn group_mean(q: &Heads<'_>, kv_heads: usize, token: usize) -> Vec<Vec<f32>> {
    let group = q.heads() / kv_heads;
    (0..kv_heads)
        .map(|kv| {
            let mut mean = vec![0.0f32; q.dim()];
            for head in kv * group..(kv + 1) * group {
                mean.iter_mut().zip(q.row(head, token)).for_each(|(m, x)| *m += x);
            }
            mean.iter_mut().for_each(|m| *m /= group as f32);
            mean
        })
        .collect()
}
