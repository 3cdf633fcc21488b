//! Number of blocks that each row selects in each layer, and the inputs of `top_k` that follow from it.

use attn_kernels::rows::TopRow;
use sparse_select::policy::num_blocks;

use super::account::Account;
use super::lists::ROWS_ALIGN;
use super::ranker::{Ranker, Top};
use super::{Rules, SelectingRows, SelectionStep};
use crate::ModelError;
use crate::cast::u32_of;

impl Ranker {
    /// Plans the number of blocks that each row selects in each layer, and returns the maximum, rounded up. If the device
    /// has spare pages, it also plans to prefetch further blocks.
    pub(super) fn budget(
        &mut self,
        rules: &Rules,
        step: &SelectionStep<'_>,
        selecting: &[SelectingRows],
    ) -> Result<u32, ModelError> {
        let SelectionStep { gpu, config, kv, batch, .. } = *step;
        let (sets, score_stride) = (self.sets, self.score_stride);
        let mut rows: Vec<TopRow> = Vec::new();
        let mut last: Option<Top> = None;
        let mut max = 0;
        for layer in (0..self.tops.len()).filter(|layer| rules.selects_in(batch, *layer)) {
            let source = rules.source[layer].unwrap_or(layer);
            let budgets: Vec<u32> = selecting
                .iter()
                .enumerate()
                .map(|(i, selecting)| self.taken(rules, source, i, selecting))
                .collect();
            let capacities = selecting.iter().map(|selecting| self.max_taken(rules, source, selecting));
            max = budgets.iter().copied().chain(capacities).chain([max]).max().unwrap_or(0);
            if last.as_ref().is_none_or(|last| last.budgets != budgets) {
                rows.resize(rows.len().next_multiple_of(ROWS_ALIGN), TopRow::default());
                last = Some(Top { first: rows.len(), budgets: budgets.clone() });
                for (i, (selecting, k)) in (0..).zip(selecting.iter().zip(&budgets)) {
                    // A row that keeps its list has no scores.
                    let keeps = self.then(i as usize).is_some();
                    let scores = num_blocks(selecting.kv_len(), rules.options.policy.block_size());
                    let [scores, k] = [scores, *k].map(|n| if keeps { 0 } else { n });
                    let first = |set| (i * sets + set) * score_stride;
                    rows.extend((0..sets).map(|set| TopRow { first: first(set), scores, k, table: 0 }));
                }
            }
            self.tops[layer].clone_from(&last);
        }
        let max = step.longest(rules, selecting.len(), max);
        self.top_rows.fit(gpu, rows.len() + ROWS_ALIGN)?;
        gpu.write(&self.top_rows, 0, &rows);
        let len = selecting.len() * (sets * score_stride) as usize;
        self.scores.fit(gpu, len)?;
        if let Some(prefetch_lists) = &mut self.prefetch_lists {
            let spare_blocks = step.spare_pages / (rules.block() / kv.shape().block_size);
            let spare = (spare_blocks / u32_of(selecting.len()).max(1)).saturating_sub(max);
            let lists = selecting.len() * config.num_kv_heads as usize;
            prefetch_lists.lay_out(gpu, rows, max, spare, lists)?;
        }
        Ok(max)
    }

    /// Returns the number of blocks that the selecting row `index` takes in a layer.
    fn taken(&self, rules: &Rules, layer: usize, index: usize, selecting: &SelectingRows) -> u32 {
        let (policy, layer) = (&*rules.options.policy, Some(rules.options.in_model(layer)));
        let Some(then) = self.then(index) else { return policy.budget(layer, selecting.kv_len()) };
        let [then_blocks, blocks] =
            [then, selecting.kv_len()].map(|tokens| num_blocks(tokens, policy.block_size()));
        policy.budget(layer, then) + (blocks - then_blocks)
    }

    /// Returns the number of blocks that a row's lists must have space for, whichever steps retrieve. It stays the same
    /// for a while.
    fn max_taken(&self, rules: &Rules, layer: usize, selecting: &SelectingRows) -> u32 {
        let more = self.kept.as_ref().map_or(0, |kept| kept.more(rules.block()));
        rules.options.policy.budget(Some(rules.options.in_model(layer)), selecting.kv_len()) + more
    }

    /// Returns the number of tokens that a row's sequence had in the step whose selection the row keeps; `None` if the
    /// row selects itself.
    fn then(&self, index: usize) -> Option<usize> {
        self.kept.as_ref()?.then(index).map(|tokens| tokens as usize)
    }

    /// Counts the blocks that kernels will select in a layer, which are exactly the budgets.
    pub(super) fn count_budgets(
        &self,
        rules: &Rules,
        selecting: &[SelectingRows],
        layer: usize,
        account: &mut Account,
    ) {
        let budgets = self.tops[layer].iter().flat_map(|top| &top.budgets);
        for (selecting, budget) in selecting.iter().zip(budgets) {
            account.count(rules, selecting, layer, u64::from(*budget) * rules.num_kv_heads as u64);
        }
    }
}
