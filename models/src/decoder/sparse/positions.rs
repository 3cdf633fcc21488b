//! Policies that select by position: lists of all layers are made at the start of a step.

use attn_kernels::gpu::{Gpu, Pass, PassResults};
use sparse_select::Selection;

use super::account::Account;
use super::lists::{ALIGN, HostLists};
use super::{Lists, Rules, Select, SelectingRows, SelectionReads, SelectionStep};
use crate::ModelError;
use crate::decoder::batch::Batch;
use crate::decoder::buffers::GrowBuf;
use crate::decoder::ops::Ctx;

/// Lists of all layers.
#[derive(Debug)]
pub(super) struct Positions {
    buf: GrowBuf<u32>,
    /// Position of the lists of each layer; `None` if the layer is dense.
    placed: Vec<Option<Placed>>,
}

/// Position of the lists of a layer in the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Placed {
    first: usize,
    /// Number of entries from one list to the next.
    stride: u32,
    /// Number of blocks of the longest list.
    blocks: u32,
}

impl Positions {
    pub(super) fn new(gpu: &Gpu, num_layers: usize) -> Result<Self, ModelError> {
        Ok(Self { buf: GrowBuf::new(gpu, "lists", ALIGN)?, placed: vec![None; num_layers] })
    }
}

impl Select for Positions {
    fn forget(&mut self, _: &mut dyn Iterator<Item = u32>) {}

    fn begin(
        &mut self,
        rules: &Rules,
        step: &SelectionStep<'_>,
        account: &mut Account,
    ) -> Result<(), ModelError> {
        let mut words: Vec<u32> = Vec::new();
        self.placed.fill(None);
        for layer in (0..self.placed.len()).filter(|layer| rules.selects_in(step.batch, *layer)) {
            let rows = rules.own(&step.batch.attn_groups[rules.attn_groups.of_layers[layer]]);
            let select =
                |selecting: &SelectingRows| rules.options.select(selecting, layer, None, rules.digests, None);
            let selections: Vec<Selection> = rows.iter().map(select).collect::<Result<_, _>>()?;
            let decodes = rows.iter().all(SelectingRows::is_decode);
            let longest = |blocks| if decodes { step.longest(rules, rows.len(), blocks) } else { blocks };
            let HostLists { words: lists, stride, blocks } = rules.lay_out(rows, &selections, longest);
            account.count_selections(rules, rows, layer, selections);
            // Layers mostly agree.
            let last = self.placed[..layer].iter().rev().flatten().next();
            let same = last.filter(|last| last.stride == stride && words[last.first..].starts_with(&lists));
            self.placed[layer] = same.copied().or_else(|| {
                let first = words.len();
                words.extend(lists);
                Some(Placed { first, stride, blocks })
            });
        }
        self.buf.write(step.gpu, &words)
    }

    fn shape(&self) -> Option<Vec<usize>> {
        let placed = |placed: &Option<Placed>| {
            placed.map_or([0; 3], |placed| [placed.first, placed.stride as usize, placed.blocks as usize])
        };
        Some(self.placed.iter().flat_map(placed).chain([self.buf.len()]).collect())
    }

    fn record(&mut self, _: &Rules, _: &mut Ctx<'_>, _: usize, _: &mut Account) -> Result<(), ModelError> {
        Ok(())
    }

    fn lists(&self, layer: usize) -> Option<Lists> {
        let Placed { first, stride, blocks } = self.placed[layer]?;
        Some(Lists { bind: self.buf.bind_from(first), stride, blocks })
    }

    fn read(&self, _: &mut Pass, _: &Batch) -> SelectionReads {
        SelectionReads::default()
    }

    fn take(&self, _: &Rules, _: &Batch, _: SelectionReads, _: &PassResults, _: &mut Account) {}
}
