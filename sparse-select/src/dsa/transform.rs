//! Top-k of every row, as positions, physical slots, or indices into a ragged buffer.
//!
//! Library only: the engine's kernels leave lists of tokens, or slots where entries are compressed (`top_k` of attn-kernels,
//! which has these transforms too), and are held to references of their own. Here they are on a CPU.

use core::ops::Range;

use crate::topk::order_key;

/// Index that fills a row after its last entry.
pub const PADDING: i32 = -1;

/// Logits, and the valid columns of each row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopkRows<'a> {
    /// `[rows, width]`
    pub logits: &'a [f32],
    /// Number of logits per row.
    pub width: usize,
    /// First valid column of each row, `[rows]`.
    pub starts: &'a [u32],
    /// Number of valid columns of each row, `[rows]`.
    pub lens: &'a [u32],
}

/// Translation of positions. Positions count from the start of their row's valid columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transform<'a> {
    /// Positions, unchanged.
    Positions,
    /// Physical slots `page_table[batch][position / page_size] * page_size + position % page_size`.
    Paged {
        /// Physical pages, `[batch, pages_per_row]`.
        page_table: &'a [u32],
        /// Number of pages per table row.
        pages_per_row: usize,
        /// Number of tokens per page; with 1, the table lists slots.
        page_size: u32,
        /// Batch entry of each row, [`token_to_batch`]; rows beyond the end of this list are padding.
        batch: &'a [u32],
    },
    /// `position + offset[row]`.
    Ragged {
        /// `[rows]`
        offset: &'a [u32],
    },
}

impl Transform<'_> {
    /// The transform for a range of rows.
    #[must_use]
    pub fn slice(&self, rows: Range<usize>) -> Self {
        let mut part = *self;
        match &mut part {
            Self::Positions => {}
            Self::Paged { batch, .. } => {
                *batch = &batch[rows.start.min(batch.len())..rows.end.min(batch.len())]
            }
            Self::Ragged { offset } => *offset = &offset[rows],
        }
        part
    }

    fn apply(&self, row: usize, position: u32) -> i32 {
        let index = match *self {
            Self::Positions => Some(position),
            Self::Ragged { offset } => Some(position + offset[row]),
            Self::Paged { page_table, pages_per_row, page_size, batch } => batch.get(row).map(|&b| {
                let page = page_table[b as usize * pages_per_row + (position / page_size) as usize];
                page * page_size + position % page_size
            }),
        };
        index.map_or(PADDING, |index| i32::try_from(index).expect("slots fit the i32 of index tensors"))
    }
}

/// The batch entry of each query row, from the query *lengths* of the batch (not their cumulative sums): row
/// r belongs to entry b when `sum(lens[..b]) <= r < sum(lens[..=b])`.
#[must_use]
pub fn token_to_batch(q_lens: &[u32]) -> Vec<u32> {
    (0..).zip(q_lens).flat_map(|(b, &len)| core::iter::repeat_n(b, len as usize)).collect()
}

/// The `k` best positions of every row, transformed: `[rows, k]`, padded with -1.
///
/// A row of at most `k` valid columns yields all of them in order, whatever their logits. Otherwise, larger
/// logits come first, and equal ones in order of position. Kernels may order a row differently; compare rows
/// as sets.
///
/// O(width + k log k) for each row.
///
/// # Panics
/// When a row's valid columns exceed `width`.
#[must_use]
pub fn topk_transform(rows: &TopkRows<'_>, k: usize, transform: &Transform<'_>) -> Vec<i32> {
    topk_transform_by(rows, k, transform, Ties::SmallIndex)
}

/// Order of equal logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ties {
    /// Equal logits are ordered by position, the smaller one first.
    SmallIndex,
    /// Equal logits are ordered by position, the larger one first.
    LargeIndex,
}

/// [`topk_transform`] with a choice of tie-breaking rule.
#[must_use]
pub fn topk_transform_by(rows: &TopkRows<'_>, k: usize, transform: &Transform<'_>, ties: Ties) -> Vec<i32> {
    let mut out = Vec::with_capacity(rows.starts.len() * k);
    for (row, (&start, &len)) in rows.starts.iter().zip(rows.lens).enumerate() {
        let chosen = if len as usize <= k {
            (0..len).collect()
        } else {
            let logits = &rows.logits[row * rows.width..][..rows.width];
            best(&logits[start as usize..(start + len) as usize], k, ties)
        };
        let filled = out.len() + k;
        out.extend(chosen.into_iter().map(|position| transform.apply(row, position)));
        out.resize(filled, PADDING);
    }
    out
}

fn best(logits: &[f32], k: usize, ties: Ties) -> Vec<u32> {
    if ties == Ties::SmallIndex {
        return crate::topk::top_k_ranked(logits, k);
    }
    let mut order: Vec<u32> = (0..crate::selection::count_u32(logits.len())).rev().collect();
    order.sort_by_key(|&i| core::cmp::Reverse(order_key(logits[i as usize])));
    order.truncate(k);
    order
}
