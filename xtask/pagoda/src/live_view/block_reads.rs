//! Blocks that a sequence read in one step, layer by layer, drawn small: at most [`MAX_COLUMNS`] columns of several blocks
//! each.

use kvblock::{BlockSize, SeqId};
use models::Attended;
use serde::Serialize;
use sparse_select::Selection;

use super::MAX_COLUMNS;
use crate::snapshot::id;

/// Blocks that a sequence read in one step.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct BlockReads {
    /// The sequence.
    #[serde(serialize_with = "id")]
    pub seq: SeqId,
    /// Number of tokens of context at that step.
    pub tokens: u32,
    /// Number of tokens of a block that the policy selects, or that an indexer chooses.
    pub block_size: u32,
    /// Number of blocks of a column; the last column may have fewer.
    pub blocks_per_column: u32,
    /// Number of columns.
    pub columns: u32,
    /// Attended share of the blocks in that step, mean over layers and heads, 0 to 1.
    pub density: f64,
    /// Attention mass that is certified in that step, 0 to 1.
    pub bound: Option<f64>,
    /// Layers in which blocks were selected, ascending.
    pub layers: Vec<LayerReads>,
}

/// Blocks that a sequence read in a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LayerReads {
    /// The layer.
    pub layer: u32,
    /// One digit per column: the fraction of the column's blocks that were read, over KV heads and queries, in
    /// tenths, rounded up. 9 also stands for all, and `-` for a column in which the policy had nothing to choose.
    pub read: String,
}

/// A step of a sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadStep {
    pub(crate) seq: SeqId,
    /// Number of tokens of context.
    pub(crate) tokens: u32,
    /// Tokens of a block that the policy selects, or that an indexer chooses.
    pub(crate) block_size: BlockSize,
}

impl BlockReads {
    /// The reads of a step; `None` if its selections were not traced. O(blocks read).
    pub(crate) fn of(step: ReadStep, attended: &Attended) -> Option<Self> {
        let ReadStep { seq, tokens, block_size } = step;
        if attended.selections.is_empty() {
            return None;
        }
        let blocks = tokens.div_ceil(block_size.get()).max(1);
        let blocks_per_column = blocks.div_ceil(MAX_COLUMNS);
        let columns = blocks.div_ceil(blocks_per_column);
        let mut layers: Vec<(u32, Columns)> = Vec::new();
        for (layer, selection) in &attended.selections {
            if layers.last().is_none_or(|(last, _)| last != layer) {
                layers.push((*layer, Columns::new(columns, blocks_per_column)));
            }
            let (_, counted) = layers.last_mut().expect("one was pushed");
            counted.add(selection);
        }
        layers.sort_by_key(|(layer, _)| *layer);
        let digits = |(layer, columns): (u32, Columns)| LayerReads { layer, read: columns.digits() };
        Some(Self {
            seq,
            tokens,
            block_size: block_size.get(),
            blocks_per_column,
            columns,
            density: attended.density(),
            bound: attended.mass,
            layers: layers.into_iter().map(digits).collect(),
        })
    }
}

/// Counts of the block reads in one layer, by column.
struct Columns {
    blocks_per_column: u32,
    /// Number of blocks that were read, and of blocks that could be read, by column, summed over KV heads and
    /// queries.
    counts: Vec<(u64, u64)>,
}

impl Columns {
    fn new(columns: u32, blocks_per_column: u32) -> Self {
        Self { blocks_per_column, counts: vec![(0, 0); columns as usize] }
    }

    fn add(&mut self, selection: &Selection) {
        let queries = selection.query_blocks();
        let groups = (selection.indptr().len() - 1).checked_div(queries).unwrap_or(0);
        let per_column = self.blocks_per_column;
        for query in 0..queries {
            let visible = selection.visible(query);
            for (column, (_, there)) in (0..).zip(&mut self.counts) {
                let begin = column * per_column;
                *there += u64::from(visible.saturating_sub(begin).min(per_column)) * groups as u64;
            }
            for block in (0..groups).flat_map(|group| selection.row(group, query)) {
                if let Some((read, _)) = self.counts.get_mut((block.get() / per_column) as usize) {
                    *read += 1;
                }
            }
        }
    }

    fn digits(&self) -> String {
        let digit = |&(read, there): &(u64, u64)| match (read * 10).checked_div(there) {
            None => '-',
            Some(_) => {
                let tenths = (read * 10).div_ceil(there).min(9);
                char::from(b'0' + u8::try_from(tenths).expect("at most 9"))
            }
        };
        self.counts.iter().map(digit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attended(selections: Vec<(u32, Selection)>) -> Attended {
        Attended { selections, mass: Some(0.75), ..Attended::default() }
    }

    fn step(tokens: u32) -> ReadStep {
        ReadStep { seq: SeqId::new(3), tokens, block_size: BlockSize::new(16).unwrap() }
    }

    #[test]
    fn a_digit_is_a_share_of_heads() {
        let mut selection = Selection::new();
        selection.begin(5, 2, 1);
        selection.push_row([0, 3, 4]);
        selection.push_row([0, 4]);
        let reads =
            BlockReads::of(step(70), &attended(vec![(1, selection.clone()), (6, selection)])).unwrap();
        assert_eq!((reads.columns, reads.blocks_per_column, reads.bound), (5, 1, Some(0.75)));
        let layers: Vec<_> = reads.layers.iter().map(|layer| (layer.layer, layer.read.as_str())).collect();
        assert_eq!(layers, [(1, "90059"), (6, "90059")]);
        assert_eq!(BlockReads::of(step(70), &attended(Vec::new())), None);
    }

    #[test]
    fn a_chunk_sees_less_at_its_begin() {
        let mut selection = Selection::new();
        selection.begin_causal(4, 1, [3, 4]);
        selection.push_row([0]);
        selection.push_row([0, 3]);
        let reads = BlockReads::of(step(80), &attended(vec![(0, selection)])).unwrap();
        assert_eq!(reads.layers[0].read, "9009-");
    }

    #[test]
    fn long_contexts_are_drawn_small() {
        let blocks = 1000;
        let mut selection = Selection::new();
        selection.begin(blocks, 1, 1);
        selection.push_row([999]);
        let reads = BlockReads::of(step(blocks * 16), &attended(vec![(0, selection)])).unwrap();
        assert_eq!((reads.blocks_per_column, reads.columns), (8, 125));
        assert_eq!(reads.layers[0].read, "0".repeat(124) + "2");
    }
}
