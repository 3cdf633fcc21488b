//! Index logits of fp8 queries and keys.

use core::ops::Range;

use super::fp8::{ScaleFormat, decode, quantise};
use crate::{Heads, SelectError};

/// fp8 index keys, each with its scale.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexKeys {
    dim: usize,
    /// `[len, dim]`
    codes: Vec<u8>,
    /// `[len]`
    scales: Vec<f32>,
}

impl IndexKeys {
    /// Quantises the keys of one head.
    #[must_use]
    pub fn quantise(k: &Heads<'_>, head: usize, format: ScaleFormat) -> Self {
        let mut keys = Self { dim: k.dim(), codes: Vec::new(), scales: Vec::new() };
        for row in k.rows(head) {
            let (codes, scale) = quantise(row, format);
            keys.codes.extend(codes);
            keys.scales.push(scale);
        }
        keys
    }

    /// Number of keys.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.scales.len()
    }

    /// Whether there are no keys.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.scales.is_empty()
    }

    /// Codes and scale of a key.
    #[must_use]
    pub fn get(&self, token: usize) -> (&[u8], f32) {
        (&self.codes[token * self.dim..][..self.dim], self.scales[token])
    }
}

/// fp8 index queries `[q_len, heads, dim]` with their folded head gates.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexQueries {
    heads: usize,
    /// `[q_len][heads]`: codes, and `gate * heads^-0.5 * q_scale * dim^-0.5`
    rows: Vec<Vec<(Vec<u8>, f32)>>,
}

impl IndexQueries {
    /// Quantises queries `[heads, q_len, dim]` and folds gates `[q_len, heads]` (all 1 if absent) with their scales.
    ///
    /// # Errors
    /// [`SelectError::Count`] unless there is one gate for each query and head.
    pub fn quantise(q: &Heads<'_>, gates: Option<&[f32]>, format: ScaleFormat) -> Result<Self, SelectError> {
        let (heads, needed) = (q.heads(), q.heads() * q.len());
        if let Some(gates) = gates.filter(|gates| gates.len() != needed) {
            return Err(SelectError::Count { tensor: "gates", needed, actual: gates.len() });
        }
        let norm = 1.0 / ((heads as f32).sqrt() * (q.dim() as f32).sqrt());
        let query = |t: usize, head: usize| {
            let (codes, scale) = quantise(q.row(head, t), format);
            (codes, gates.map_or(1.0, |gates| gates[t * heads + head]) * scale * norm)
        };
        let rows = (0..q.len()).map(|t| (0..heads).map(|head| query(t, head)).collect());
        Ok(Self { heads, rows: rows.collect() })
    }

    /// Number of queries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no queries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Logits of query `m` over the keys `range`: `Σ_h w[m, h] k_scale[n] relu(q8[m, h] · k8[n])`, f32.
    /// `keys` has one entry for all heads, or one for each group of heads.
    #[must_use]
    pub fn row(&self, m: usize, keys: &[IndexKeys], range: Range<usize>) -> Vec<f32> {
        let group = self.heads / keys.len();
        let logit = |n: usize| {
            let heads = self.rows[m].iter().enumerate().map(|(head, (codes, weight))| {
                let (key, scale) = keys[head / group].get(n);
                let dot: f32 = codes.iter().zip(key).map(|(&a, &b)| decode(a) * decode(b)).sum();
                weight * scale * dot.max(0.0)
            });
            heads.sum()
        };
        range.map(logit).collect()
    }

    /// Logits `[rows, keys]` of the queries `rows`: -inf outside `ks[m] .. ke[m]`. O(rows · keys · heads · dim).
    #[must_use]
    pub fn logits(&self, rows: Range<usize>, keys: &IndexKeys, ks: &[u32], ke: &[u32]) -> Vec<f32> {
        let keys = core::slice::from_ref(keys);
        let mut out = vec![f32::NEG_INFINITY; rows.len() * keys[0].len()];
        for (m, out) in rows.zip(out.chunks_mut(keys[0].len().max(1))) {
            let end = (ke[m] as usize).min(out.len());
            let seen = (ks[m] as usize).min(end)..end;
            out[seen.clone()].copy_from_slice(&self.row(m, keys, seen));
        }
        out
    }
}

/// Index keys in pages: the codes of all tokens of a page, then their scales as little-endian f32. 132 bytes
/// per token for 128 channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagedIndexKeys {
    page_tokens: usize,
    dim: usize,
    bytes: Vec<u8>,
}

/// Bytes per stored scale.
const SCALE_BYTES: usize = size_of::<f32>();

impl PagedIndexKeys {
    /// Number of tokens per page in the published layout.
    pub const PAGE_TOKENS: usize = 64;

    /// `pages` zeroed pages.
    #[must_use]
    pub fn new(pages: usize, page_tokens: usize, dim: usize) -> Self {
        Self { page_tokens, dim, bytes: vec![0; pages * page_tokens * (dim + SCALE_BYTES)] }
    }

    fn at(&self, slot: usize) -> (Range<usize>, Range<usize>) {
        let (page, offset) = (slot / self.page_tokens, slot % self.page_tokens);
        let codes = page * self.page_tokens * (self.dim + SCALE_BYTES);
        let scales = codes + self.page_tokens * self.dim;
        let (code, scale) = (codes + offset * self.dim, scales + offset * SCALE_BYTES);
        (code..code + self.dim, scale..scale + SCALE_BYTES)
    }

    /// Stores a key in a slot.
    ///
    /// # Panics
    /// When the slot or the number of channels is out of range.
    pub fn store(&mut self, slot: usize, codes: &[u8], scale: f32) {
        let (code, at) = self.at(slot);
        self.bytes[code].copy_from_slice(codes);
        self.bytes[at].copy_from_slice(&scale.to_le_bytes());
    }

    /// Gathers the keys in `slots`.
    #[must_use]
    pub fn gather(&self, slots: &[u32]) -> IndexKeys {
        let mut keys = IndexKeys { dim: self.dim, codes: Vec::new(), scales: Vec::new() };
        for &slot in slots {
            let (code, scale) = self.at(slot as usize);
            keys.codes.extend_from_slice(&self.bytes[code]);
            let bytes = self.bytes[scale].try_into().expect("a scale has four bytes");
            keys.scales.push(f32::from_le_bytes(bytes));
        }
        keys
    }

    /// The bytes of all pages.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
