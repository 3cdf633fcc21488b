//! Counts of a step under a policy: attended blocks by slice and layer, certified mass, and traced selections.

use attn_kernels::gpu::Timing;
use kvblock::BlockIdx;
use sparse_select::Selection;
use sparse_select::policy::num_blocks;

use super::{Rules, SelectingRows};
use crate::Reach;
use crate::batch::{Phase, Slice, StepOutput};
use crate::cast::u32_of;
use crate::decoder::batch::Batch;
use crate::sparse::{Attended, Tally};

/// Counts of the blocks that the current step attends.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Blocks that each slice attended; `None` for slices that the policy ignores.
    attended: Vec<Option<Attended>>,
    /// Times of the step's submissions before its last one.
    pub(super) timings: Vec<Timing>,
}

impl Account {
    /// Starts a step, and counts the rows that attend everything.
    pub(super) fn begin(&mut self, rules: &Rules, batch: &Batch, slices: &[Slice<'_>]) {
        let acts = |slice: &Slice<'_>| rules.options.acts_on(slice.phase).then(Attended::default);
        self.attended = slices.iter().map(acts).collect();
        if rules.certifies(slices) {
            self.certify_whole(rules.selecting_rows(batch), slices);
        }
        for layer in 0..rules.num_layers() {
            if rules.attn_groups.of_layer(layer).reach == Reach::Full {
                self.count_whole(rules, batch, slices, layer);
            }
        }
    }

    /// Certifies the mass of sequences that attend everything, which is 1.
    fn certify_whole(&mut self, selecting: &[SelectingRows], slices: &[Slice<'_>]) {
        for (index, (slice, attended)) in slices.iter().zip(&mut self.attended).enumerate() {
            let whole =
                slice.phase == Phase::Decode && !selecting.iter().any(|selecting| selecting.slice == index);
            attended.iter_mut().filter(|_| whole).for_each(|attended| attended.lower_mass([1.0]));
        }
    }

    /// Counts the rows that attend everything in a layer and belong to slices that the policy acts on.
    fn count_whole(&mut self, rules: &Rules, batch: &Batch, slices: &[Slice<'_>], layer: usize) {
        let block = rules.options.policy.block_size();
        let sparse = rules.selects_in(batch, layer);
        let all = &batch.attn_groups[rules.attn_groups.of_layers[layer]].selecting;
        for (index, (slice, attended)) in slices.iter().zip(&mut self.attended).enumerate() {
            let Some(attended) = attended else { continue };
            let selecting = all.iter().filter(|selecting| sparse && selecting.slice == index);
            let rows = slice.tokens.len() - selecting.map(|selecting| selecting.rows).sum::<usize>();
            let end = slice.first as usize + rows;
            let lists: u64 = match slice.phase {
                Phase::Decode => {
                    (slice.first as usize..end).map(|at| u64::from(num_blocks(at + 1, block))).sum()
                }
                Phase::Prefill if rows > 0 => u64::from(num_blocks(end, block)),
                Phase::Prefill => 0,
            };
            let all = lists * rules.num_kv_heads as u64;
            attended.count(layer, Tally { blocks: all, visible: all });
        }
    }

    /// Returns the counts of the slice that the selecting rows belong to.
    pub(super) fn of(&mut self, selecting: &SelectingRows) -> &mut Attended {
        self.attended[selecting.slice].as_mut().expect("rows are chosen of slices that the policy acts on")
    }

    /// Counts `blocks` blocks that selecting rows attend in a layer, summed over heads and lists.
    pub(super) fn count(&mut self, rules: &Rules, selecting: &SelectingRows, layer: usize, blocks: u64) {
        let visible = selecting.visible(rules.block()) * rules.num_kv_heads as u64;
        self.of(selecting).count(layer, Tally { blocks, visible });
    }

    /// Counts the blocks of a layer's selections: each of the selecting rows has one selection.
    pub(super) fn count_selections(
        &mut self,
        rules: &Rules,
        rows: &[SelectingRows],
        layer: usize,
        selections: Vec<Selection>,
    ) {
        // Policies that ignore queries use earlier accesses.
        let remembers = !rules.options.policy.support().query;
        for (selecting, selection) in rows.iter().zip(selections) {
            let heads = (0..selecting.lists as usize)
                .flat_map(|list| (0..rules.num_kv_heads).map(move |head| (head, list)));
            let mut blocks: Vec<u32> = heads
                .flat_map(|(head, list)| rules.options.blocks(selecting, &selection, head, list))
                .collect();
            self.count(rules, selecting, layer, blocks.len() as u64);
            let attended = self.of(selecting);
            if remembers {
                blocks.extend(attended.accessed.iter().map(|b| b.get()));
                blocks.sort_unstable();
                blocks.dedup();
                attended.accessed = blocks.into_iter().map(BlockIdx::new).collect();
            }
            if rules.options.trace {
                self.keep(selecting, layer, selection);
            }
        }
    }

    /// Stores a selection to be returned with the output.
    pub(super) fn keep(&mut self, selecting: &SelectingRows, layer: usize, selection: Selection) {
        self.of(selecting).selections.push((u32_of(layer), selection));
    }

    /// Ends a step, and moves the account into the output.
    pub(super) fn hand_out(&mut self, output: &mut StepOutput) {
        output.attended = std::mem::take(&mut self.attended);
        output.timings.append(&mut self.timings);
    }
}
