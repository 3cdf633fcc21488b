//! Quality of selections, measured on the host: recall of dense attention mass, and density before heads were merged.

use sparse_select::measure::{Mask, recall};
use sparse_select::policy::num_blocks;
use sparse_select::{Heads, Selection};

use super::SelectingRows;
use crate::ModelError;
use crate::sparse::{Attended, Mean, SparseOptions};

/// Number of queries of a chunk that are measured, evenly spread. Each measured query needs dense attention in f64.
const QUERIES: usize = 16;

/// A selection of selecting rows in a layer, with its inputs.
pub(super) struct Measured<'a> {
    pub(super) selecting: &'a SelectingRows,
    pub(super) selection: &'a Selection,
    pub(super) layer: usize,
    pub(super) q: Heads<'a>,
    pub(super) k: Heads<'a>,
}

impl SparseOptions {
    /// Measures a selection.
    pub(super) fn measure_into(
        &self,
        attended: &mut Attended,
        measured: &Measured<'_>,
    ) -> Result<(), ModelError> {
        attended.recall.join(self.recall(measured)?);
        let Measured { selecting, layer, q, k, .. } = *measured;
        let density = self.policy.head_density(&self.input(selecting, layer, Some((q, k))))?;
        density.into_iter().for_each(|density| attended.head_density.add(density));
        Ok(())
    }

    fn recall(&self, measured: &Measured<'_>) -> Result<Mean, ModelError> {
        let Measured { selecting, selection, q, k, .. } = measured;
        let block = self.policy.block_size();
        let mut mean = Mean::default();
        for row in (0..selecting.rows).step_by(selecting.rows.div_ceil(QUERIES)) {
            let position = selecting.position as usize + row;
            let (list, seen) = (selecting.list_of(position, block.get()), num_blocks(position + 1, block));
            let mut attended = Selection::new();
            attended.begin(seen, k.heads(), 1);
            for head in 0..k.heads() {
                let blocks = self.blocks(selecting, selection, head, list);
                attended.push_row(blocks.into_iter().filter(|block| *block < seen));
            }
            mean.add(recall(&attended, &q.window(row, 1), &k.window(0, position + 1), block, Mask::Causal)?);
        }
        Ok(mean)
    }
}
