//! How good a selection is, and how two of them compare.

use kvblock::{BlockIdx, BlockSize};

use crate::{
    Heads, SelectError, Selection,
    attention::{default_scale, logits, softmax},
    heads::gqa_group,
    policy::block_tokens,
};

/// Selected blocks over visible ones, over all rows; 1 for a selection without visible blocks.
#[must_use]
pub fn density(selection: &Selection) -> f64 {
    let visible: u64 = (0..selection.query_blocks()).map(|b| u64::from(selection.visible(b))).sum();
    let total = visible * selection.groups() as u64;
    if total == 0 { 1.0 } else { selection.indices().len() as f64 / total as f64 }
}

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// The queries are the last of the keys' positions; each sees the keys up to its own.
    Causal,
    /// Every query sees every key.
    None,
}

/// The attention mass recall of a selection: the share of the dense softmax that lies in the selected blocks, mean
/// over query heads and queries. Softmax and sums in f64. O(heads · q_len · kv_len · head_dim).
///
/// # Errors
/// When shapes do not fit, or under [`Mask::Causal`] there are more queries than keys.
pub fn recall(
    selection: &Selection,
    q: &Heads<'_>,
    k: &Heads<'_>,
    block_size: BlockSize,
    mask: Mask,
) -> Result<f64, SelectError> {
    let group = gqa_group(q, k)?;
    let first = match mask {
        Mask::Causal if q.len() > k.len() => {
            return Err(SelectError::QueryBeyondHistory { q_len: q.len(), kv_len: k.len() });
        }
        Mask::Causal => k.len() - q.len(),
        Mask::None => 0,
    };
    let mut total = 0.0;
    for head in 0..q.heads() {
        for t in 0..q.len() {
            let seen = if mask == Mask::Causal { first + t + 1 } else { k.len() };
            let row =
                selection.row_shared(head / group, query_block(selection, t, first, q.len(), block_size));
            let logits = logits(q.row(head, t), &k.window(0, seen), head / group, default_scale(q.dim()));
            total += selected_mass(&softmax(&logits), row, block_size);
        }
    }
    let rows = q.heads() * q.len();
    Ok(if rows == 0 || k.is_empty() { 1.0 } else { total / rows as f64 })
}

/// Mass of one query in the selected blocks, out of its token probabilities.
fn selected_mass(probabilities: &[f64], row: &[BlockIdx], block_size: BlockSize) -> f64 {
    let mass = |b: &BlockIdx| {
        let tokens = block_tokens(b.get(), block_size, probabilities.len());
        probabilities.get(tokens).map_or(0.0, |p| p.iter().sum::<f64>())
    };
    row.iter().map(mass).sum()
}

/// Overlap of two policies: blocks selected by both over blocks selected by either, mean over rows. A single group or
/// query block of one side answers for all of the other's.
///
/// # Errors
/// [`SelectError::Incomparable`] when they count other blocks, groups or query blocks.
pub fn overlap(a: &Selection, b: &Selection) -> Result<f64, SelectError> {
    let fits = |x: usize, y: usize| x == y || x == 1 || y == 1;
    let shapes_fit = fits(a.groups(), b.groups()) && fits(a.query_blocks(), b.query_blocks());
    if a.num_blocks() != b.num_blocks() || !shapes_fit {
        return Err(SelectError::Incomparable { left: a.num_blocks(), right: b.num_blocks() });
    }
    let (groups, query_blocks) = (a.groups().max(b.groups()), a.query_blocks().max(b.query_blocks()));
    let mut total = 0.0;
    for group in 0..groups {
        for query_block in 0..query_blocks {
            total += jaccard(a.row_shared(group, query_block), b.row_shared(group, query_block));
        }
    }
    Ok(if groups * query_blocks == 0 { 1.0 } else { total / (groups * query_blocks) as f64 })
}

fn jaccard(a: &[BlockIdx], b: &[BlockIdx]) -> f64 {
    let both = a.iter().filter(|x| b.binary_search(x).is_ok()).count();
    let either = a.len() + b.len() - both;
    if either == 0 { 1.0 } else { both as f64 / either as f64 }
}

/// The query block of query `t`, the first query being at position `first`: one for all queries, one for each, or the
/// block its position lies in.
pub(crate) fn query_block(
    s: &Selection,
    t: usize,
    first: usize,
    q_len: usize,
    block_size: BlockSize,
) -> usize {
    let size = block_size.get() as usize;
    match s.query_blocks() {
        1 => 0,
        each if each == q_len => t,
        _ => (first + t) / size - first / size,
    }
}
