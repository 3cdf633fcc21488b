//! Readbacks of a step whose blocks kernels selected, once, at its end.

use attn_kernels::gpu::{Buf, Gpu, Outcome, Pass, Read};
use sparse_select::Selection;
use sparse_select::policy::num_blocks;

use super::{Place, SelectingRows, Selector, Sparse, choosing};
use crate::ModelError;
use crate::decoder::inputs::Plan;

/// Readbacks of a step.
#[derive(Debug)]
pub(in crate::decoder) struct Reads {
    masses: Option<Read<f32>>,
    counts: Option<Read<u32>>,
    traced: Option<Read<u32>>,
}

impl Sparse {
    /// Records the readbacks of a step.
    pub(in crate::decoder) fn read(&self, pass: &mut Pass, plan: &Plan) -> Reads {
        let chunks = choosing(plan).map_or(0, |view| view.selecting.len());
        let counts = match &self.selector {
            Selector::Estimated(estimator) => Some(&estimator.counts),
            Selector::Ranked(ranker) => ranker.mass.as_ref().map(|mass| &mass.counts),
            Selector::ByPosition | Selector::OnHost(_) => None,
        };
        let counts = counts.filter(|_| chunks > 0);
        Reads {
            masses: self.read_masses(pass, plan),
            counts: counts.map(|counts| pass.read(counts, 0..self.placed.len() * chunks)),
            traced: self.traced.as_ref().map(|traced| pass.read(traced, 0..traced.len())),
        }
    }

    /// Takes them.
    pub(in crate::decoder) fn take(&mut self, plan: &Plan, reads: Reads, done: &Outcome) {
        if let Some(read) = reads.masses {
            self.take_masses(plan, &done.get(read));
        }
        if let Some(read) = reads.counts {
            self.take_counts(plan, &done.get(read));
        }
        if let Some(read) = reads.traced {
            self.take_trace(plan, &done.get(read));
        }
    }

    /// Makes room for a step's lists of every layer, of `words` u32 each, where they are traced.
    pub(super) fn trace(&mut self, gpu: &Gpu, words: usize) -> Result<(), ModelError> {
        let traced =
            |layers: usize| -> Result<Buf<u32>, ModelError> { Ok(gpu.buffer("traced", words * layers)?) };
        self.traced = self.options.trace.then(|| traced(self.placed.len())).transpose()?;
        Ok(())
    }

    /// Keeps a layer's lists for the end of the step, where they are traced.
    pub(super) fn copy_trace(&self, pass: &mut Pass, layer: usize) {
        if let Some(traced) = &self.traced {
            let words = traced.len() / self.placed.len();
            pass.copy(&self.lists, 0..words, traced, layer * words);
        }
    }

    /// Turns the lists of a step into selections.
    fn take_trace(&mut self, plan: &Plan, words: &[u32]) {
        let Some(view) = choosing(plan) else { return };
        let per_layer = words.len() / self.placed.len();
        for (layer, lists) in words.chunks_exact(per_layer).enumerate() {
            let Some(Place { stride, .. }) = self.placed[layer] else { continue };
            let lists: Vec<&[u32]> =
                lists.chunks_exact(stride as usize).map(|list| &list[1..=list[0] as usize]).collect();
            for chosen in &view.selecting {
                let selection = self.selection(chosen, &lists);
                let attended = self.attended[chosen.slice].as_mut().expect("the policy acts on chosen rows");
                attended.selections.push((u32::try_from(layer).expect("layers fit in 32 bits"), selection));
            }
        }
    }

    /// Returns the selection that a policy's own code would have returned for the lists of chosen rows.
    fn selection(&self, chosen: &SelectingRows, lists: &[&[u32]]) -> Selection {
        let block = self.options.policy.block_size();
        let list = |head: usize, list: u32| lists[(chosen.list + list) as usize * self.num_kv_heads + head];
        let mut selection = Selection::new();
        if self.options.splits_history(chosen) {
            // One set for all heads; the chunk's own blocks behind it are no choice.
            let history = chosen.position / block.get();
            selection.begin(history, 1, 1);
            selection.push_row(list(0, 0).iter().copied().filter(|block| *block < history));
            return selection;
        }
        let blocks = num_blocks(chosen.kv_len(), block);
        match chosen.lists {
            1 => selection.begin(blocks, self.num_kv_heads, 1),
            lists => {
                let visible = (1..=lists).map(|list| blocks - lists + list);
                selection.begin_causal(blocks, self.num_kv_heads, visible);
            }
        }
        for head in 0..self.num_kv_heads {
            (0..chosen.lists).for_each(|index| selection.push_row(list(head, index).iter().copied()));
        }
        selection
    }
}
