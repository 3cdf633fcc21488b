//! Parameters of selections that are the same for every selector and step.

use sparse_select::digest::DigestFormat;

use super::previous::Queries;
use super::{AttentionGroups, Phase, SelectingRows, Slice, SparseOptions};
use crate::decoder::batch::{Batch, GroupRows};

/// Parameters of selections, the same in every step.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) options: SparseOptions,
    pub(super) num_heads: usize,
    pub(super) num_kv_heads: usize,
    pub(super) attn_groups: AttentionGroups,
    pub(super) digests: DigestFormat,
    /// For each layer, the earlier layer whose selection it reuses; `None` if it reuses none.
    pub(super) source: Vec<Option<usize>>,
    /// Layers that attend everything in every step.
    pub(super) dense: Vec<bool>,
    /// Phase of the rows for which blocks are selected; `None` for all rows that the policy acts on.
    pub(super) phase: Option<Phase>,
    /// Error of an attention logit: see [`HeadKernels::slack`](crate::decoder::kernels::HeadKernels::slack).
    pub(super) slack: f32,
    /// Queries of the previous step, by layer, if decode rows select by them.
    pub(super) previous: Option<Queries>,
}

impl Rules {
    pub(super) fn num_layers(&self) -> usize {
        self.source.len()
    }

    /// Number of tokens per block of the policy.
    pub(super) fn block(&self) -> u32 {
        self.options.policy.block_size().get()
    }

    /// Whether a step certifies the attention mass that its selections keep.
    pub(super) fn certifies(&self, slices: &[Slice<'_>]) -> bool {
        let asked = self.options.certify || slices.iter().any(|slice| slice.certify);
        asked && self.options.policy.certifies()
    }

    /// Whether blocks are selected in a layer of `batch`.
    pub(super) fn selects_in(&self, batch: &Batch, layer: usize) -> bool {
        !self.own(&batch.attn_groups[self.attn_groups.of_layers[layer]]).is_empty() && !self.dense[layer]
    }

    /// Returns the layers that select by themselves.
    pub(super) fn selecting_layers(&self) -> Vec<bool> {
        self.dense.iter().zip(&self.source).map(|(dense, source)| !dense && source.is_none()).collect()
    }

    /// Returns the rows of an attention group for which blocks are selected: decode rows first, then prefills.
    pub(super) fn own<'a>(&self, attn_group: &'a GroupRows) -> &'a [SelectingRows] {
        let (decode, prefill) =
            attn_group.selecting.split_at(attn_group.selecting.partition_point(SelectingRows::is_decode));
        match self.phase {
            None => &attn_group.selecting,
            Some(Phase::Decode) => decode,
            Some(Phase::Prefill) => prefill,
        }
    }

    /// Returns the rows of a step for which blocks are selected: all layers of full attention select for the same rows.
    pub(super) fn selecting_rows<'a>(&self, batch: &'a Batch) -> &'a [SelectingRows] {
        let attn_groups = batch.attn_groups.iter().map(|attn_group| self.own(attn_group));
        attn_groups.into_iter().find(|rows| !rows.is_empty()).unwrap_or(&[])
    }
}
