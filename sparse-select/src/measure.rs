//! Measures of a selection, and a comparison of two.

use kvblock::{BlockIdx, BlockSize};

use crate::{
    Heads, SelectError, Selection,
    attention::{default_scale, logits, softmax},
    blocks::block_tokens,
    heads::gqa_group,
};

/// Fraction of the visible blocks that are selected, over all rows; 1 for a selection without visible blocks.
#[must_use]
pub fn density(selection: &Selection) -> f64 {
    let visible: u64 = (0..selection.query_blocks()).map(|b| u64::from(selection.visible(b))).sum();
    let total = visible * selection.groups() as u64;
    if total == 0 { 1.0 } else { selection.indices().len() as f64 / total as f64 }
}

/// Keys that a query can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// The queries sit at the last positions of the keys; each sees the keys up to its own position.
    Causal,
    /// Every query sees every key.
    None,
}

/// The attention-mass recall of a selection: the share of the dense softmax in the selected blocks, averaged over query heads
/// and queries. Softmax and sums in f64. O(heads · q_len · kv_len · head_dim).
///
/// # Errors
/// When the shapes do not match, or there are more queries than keys under [`Mask::Causal`].
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

/// Mass of the selected blocks under the token probabilities of one query.
fn selected_mass(probabilities: &[f64], row: &[BlockIdx], block_size: BlockSize) -> f64 {
    let mass = |b: &BlockIdx| {
        let tokens = block_tokens(b.get(), block_size, probabilities.len());
        probabilities.get(tokens).map_or(0.0, |p| p.iter().sum::<f64>())
    };
    row.iter().map(mass).sum()
}

/// Overlap of two selections: blocks in both over blocks in either (Jaccard index), averaged over rows. If one
/// selection has a single group or query block, it is compared with each one of the other selection.
///
/// # Errors
/// [`SelectError::Incomparable`] when their numbers of blocks, groups or query blocks do not match.
pub fn overlap(a: &Selection, b: &Selection) -> Result<f64, SelectError> {
    let fits = |x: usize, y: usize| x == y || x == 1 || y == 1;
    let shapes_fit = fits(a.groups(), b.groups()) && fits(a.query_blocks(), b.query_blocks());
    if a.num_blocks() != b.num_blocks() || !shapes_fit {
        let shape = |s: &Selection| [s.groups(), s.query_blocks(), s.num_blocks() as usize];
        return Err(SelectError::Incomparable { left: shape(a), right: shape(b) });
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

/// Index of the query block of query `t`, where query 0 is at position `first`. A selection has one query block for
/// all queries, one for each query, or one for each block of positions.
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
