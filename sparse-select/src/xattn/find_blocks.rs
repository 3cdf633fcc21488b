//! Finds the fewest key blocks that reach a share of each query block's mass.

use super::query_grid::QueryGrid;
use crate::{SelectError, topk::order_key};

/// Block sums of every head: `[heads, query_blocks, key_blocks]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockSums<'a> {
    /// `[heads, query_blocks, key_blocks]`, not negative
    pub values: &'a [f32],
    /// Number of query heads.
    pub heads: usize,
    /// Number of query blocks.
    pub query_blocks: usize,
    /// Number of key blocks.
    pub key_blocks: usize,
}

/// Stages in which blocks may be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only in prefill: a decode call keeps everything.
    Prefill,
    /// In prefill and in decode.
    Both,
}

/// The arguments of [`find_blocks_chunked`] other than the sums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FindBlocks<'a> {
    /// Key block of the chunk's first query block.
    pub current_index: usize,
    /// Share of the mass to reach: one value for all heads, or one per head.
    pub thresholds: &'a [f64],
    /// Part of the published signature, but without a published meaning: must be `None`.
    pub num_to_choose: Option<u32>,
    /// Whether this is a decode step.
    pub decoding: bool,
    /// Stages in which blocks may be dropped.
    pub mode: Mode,
    /// Whether query block r sees only the key blocks up to `current_index + r`.
    pub causal: bool,
}

/// Blocks that are kept, `[heads, query_blocks, key_blocks]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockMask {
    values: Vec<bool>,
    query_blocks: usize,
    key_blocks: usize,
}

impl BlockMask {
    /// A mask of this shape that keeps no block.
    #[must_use]
    pub(crate) fn empty(heads: usize, query_blocks: usize, key_blocks: usize) -> Self {
        Self { values: vec![false; heads * query_blocks * key_blocks], query_blocks, key_blocks }
    }

    /// Whether a block is kept.
    #[must_use]
    pub fn get(&self, head: usize, query_block: usize, key_block: usize) -> bool {
        self.row(head, query_block)[key_block]
    }

    /// One row, `[key_blocks]`.
    #[must_use]
    pub fn row(&self, head: usize, query_block: usize) -> &[bool] {
        &self.values[(head * self.query_blocks + query_block) * self.key_blocks..][..self.key_blocks]
    }

    pub(crate) fn row_mut(&mut self, head: usize, query_block: usize) -> &mut [bool] {
        &mut self.values[(head * self.query_blocks + query_block) * self.key_blocks..][..self.key_blocks]
    }

    /// Fraction of the blocks visible in `grid` that is kept; 1 for a mask without blocks.
    #[must_use]
    pub fn density(&self, grid: &QueryGrid) -> f64 {
        let seen = |row: usize| match grid.causal {
            true => self.key_blocks.min(grid.first_block + row + 1),
            false => self.key_blocks,
        };
        let heads = self.values.len() / (self.query_blocks * self.key_blocks).max(1);
        let seen = heads * (0..self.query_blocks).map(seen).sum::<usize>();
        let kept = self.values.iter().filter(|kept| **kept).count();
        if seen == 0 { 1.0 } else { kept as f64 / seen as f64 }
    }

    /// Number of query blocks.
    #[must_use]
    pub const fn query_blocks(&self) -> usize {
        self.query_blocks
    }

    /// Number of key blocks.
    #[must_use]
    pub const fn key_blocks(&self) -> usize {
        self.key_blocks
    }
}

/// Keeps, for each head and query block, blocks in descending order of their sums, as long as the blocks
/// taken *before* hold less than `threshold * total`. Ties go to the lower index. Totals and running masses
/// are computed in f64.
///
/// - Not causal: block 0 is always kept, as an attention sink.
/// - Causal: block 0 and the query block's own block are always kept and counted first; later blocks are
///   never kept.
/// - A row without mass keeps only the blocks that are always kept.
///
/// O(n log n) for each row of n key blocks.
///
/// # Errors
/// When `num_to_choose` is set, or there is neither one threshold nor one per head.
pub fn find_blocks_chunked(sums: &BlockSums<'_>, by: &FindBlocks<'_>) -> Result<BlockMask, SelectError> {
    if let Some(count) = by.num_to_choose {
        return Err(SelectError::NumToChoose { count });
    }
    if by.thresholds.len() != 1 && by.thresholds.len() != sums.heads {
        return Err(SelectError::ThresholdCount { got: by.thresholds.len(), heads: sums.heads });
    }
    let mut mask = BlockMask::empty(sums.heads, sums.query_blocks, sums.key_blocks);
    if sums.key_blocks == 0 {
        return Ok(mask);
    }
    if by.mode == Mode::Prefill && by.decoding {
        mask.values.fill(true);
        return Ok(mask);
    }
    for head in 0..sums.heads {
        let threshold = by.thresholds[if by.thresholds.len() == 1 { 0 } else { head }];
        for row in 0..sums.query_blocks {
            let values =
                &sums.values[(head * sums.query_blocks + row) * sums.key_blocks..][..sums.key_blocks];
            let own = by.causal.then_some(by.current_index + row);
            find_row(values, own, threshold, mask.row_mut(head, row));
        }
    }
    Ok(mask)
}

/// Finds the blocks of one row; `own` is the query block's own key block if the row is causal.
fn find_row(sums: &[f32], own: Option<usize>, threshold: f64, keep: &mut [bool]) {
    let required = threshold * sums.iter().map(|&s| f64::from(s)).sum::<f64>();
    let visible = own.map_or(sums.len(), |own| sums.len().min(own + 1));
    let forced = |block: usize| own.is_some() && (block == 0 || Some(block) == own);
    let mut mass: f64 = (0..visible).filter(|&b| forced(b)).map(|b| f64::from(sums[b])).sum();
    let mut order: Vec<usize> = (0..visible).filter(|&b| !forced(b)).collect();
    order.sort_by_key(|&b| core::cmp::Reverse(order_key(sums[b])));
    for block in order {
        if mass >= required {
            break;
        }
        keep[block] = true;
        mass += f64::from(sums[block]);
    }
    keep[0] = true;
    if let Some(own) = own.filter(|&own| own < keep.len()) {
        keep[own] = true;
    }
}
