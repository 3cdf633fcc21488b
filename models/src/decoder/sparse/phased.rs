//! Two selectors, one for prompt chunks and one for decode rows.

use attn_kernels::gpu::{Pass, PassResults};

use super::account::Account;
use super::{ListedRows, Lists, Rules, Select, SelectionReads, SelectionStep};
use crate::ModelError;
use crate::batch::Phase;
use crate::decoder::batch::Batch;
use crate::decoder::kernels::LoadContext;
use crate::decoder::ops::Ctx;
use crate::sparse::{SelectionPlace, SparseOptions};

/// The selectors of two policies. Each sees the rows of its own phase only.
#[derive(Debug)]
pub(super) struct Phased {
    prefill: PhaseSelector,
    decode: PhaseSelector,
}

/// A selector with its own rules.
#[derive(Debug)]
struct PhaseSelector {
    rules: Rules,
    selector: Box<dyn Select>,
}

/// Creates the selector of a policy.
type NewSelector = fn(&LoadContext<'_>, &Rules) -> Result<Box<dyn Select>, ModelError>;

impl PhaseSelector {
    fn new(
        load: &LoadContext<'_>,
        joint: &Rules,
        selector: NewSelector,
        phase: Phase,
    ) -> Result<Self, ModelError> {
        let options = SparseOptions { policy: joint.options.of(phase), ..joint.options.clone() };
        let rules = Rules {
            source: options.sources(&joint.dense),
            options,
            attn_groups: joint.attn_groups.clone(),
            previous: joint.previous.clone().filter(|_| phase == Phase::Decode),
            dense: joint.dense.clone(),
            phase: Some(phase),
            ..*joint
        };
        Ok(Self { selector: selector(load, &rules)?, rules })
    }
}

impl Phased {
    pub(super) fn new(
        load: &LoadContext<'_>,
        rules: &Rules,
        selector: NewSelector,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            prefill: PhaseSelector::new(load, rules, selector, Phase::Prefill)?,
            decode: PhaseSelector::new(load, rules, selector, Phase::Decode)?,
        })
    }

    fn parts(&mut self) -> [&mut PhaseSelector; 2] {
        [&mut self.prefill, &mut self.decode]
    }
}

impl Select for Phased {
    fn forget(&mut self, blocks: &mut dyn Iterator<Item = u32>) {
        let blocks: Vec<u32> = blocks.collect();
        self.parts().into_iter().for_each(|part| part.selector.forget(&mut blocks.iter().copied()));
    }

    fn begin(
        &mut self,
        rules: &Rules,
        step: &SelectionStep<'_>,
        account: &mut Account,
    ) -> Result<(), ModelError> {
        self.parts().into_iter().try_for_each(|part| {
            part.rules.options.trace = rules.options.trace;
            part.selector.begin(&part.rules, step, account)
        })
    }

    fn shape(&self) -> Option<Vec<usize>> {
        let mut shape = self.prefill.selector.shape()?;
        shape.push(shape.len());
        shape.extend(self.decode.selector.shape()?);
        Some(shape)
    }

    fn swap_next(&mut self) {
        self.decode.selector.swap_next();
    }

    fn summarise(&self, _: &Rules, ctx: &mut Ctx<'_>, layer: usize) {
        for part in [&self.prefill, &self.decode] {
            part.selector.summarise(&part.rules, ctx, layer);
        }
    }

    fn record(
        &mut self,
        _: &Rules,
        ctx: &mut Ctx<'_>,
        layer: usize,
        account: &mut Account,
    ) -> Result<(), ModelError> {
        self.parts().into_iter().try_for_each(|part| part.selector.record(&part.rules, ctx, layer, account))
    }

    fn lists(&self, layer: usize) -> Option<Lists> {
        self.decode.selector.lists(layer)
    }

    fn chunk_lists(&self, layer: usize) -> Option<Lists> {
        self.prefill.selector.lists(layer)
    }

    fn correct(&self, _: &Rules, ctx: &mut Ctx<'_>, layer: usize) {
        self.prefill.selector.correct(&self.prefill.rules, ctx, layer);
    }

    fn certify(&self, _: &Rules, ctx: &mut Ctx<'_>, layer: usize, rows: &ListedRows<'_>) {
        self.decode.selector.certify(&self.decode.rules, ctx, layer, rows);
    }

    fn prefetch_lists(&self, layer: usize) -> Option<Lists> {
        self.decode.selector.prefetch_lists(layer)
    }

    fn read(&self, pass: &mut Pass, batch: &Batch) -> SelectionReads {
        let of_prefill = Some(Box::new(self.prefill.selector.read(pass, batch)));
        SelectionReads { of_prefill, ..self.decode.selector.read(pass, batch) }
    }

    fn take(
        &self,
        _: &Rules,
        batch: &Batch,
        mut reads: SelectionReads,
        done: &PassResults,
        account: &mut Account,
    ) {
        if let Some(of_prefill) = reads.of_prefill.take() {
            self.prefill.selector.take(&self.prefill.rules, batch, *of_prefill, done, account);
        }
        self.decode.selector.take(&self.decode.rules, batch, reads, done, account);
    }

    fn at_once(&self) -> bool {
        self.decode.selector.at_once()
    }

    fn place(&self) -> SelectionPlace {
        match (self.prefill.selector.place(), self.decode.selector.place()) {
            (SelectionPlace::Device, SelectionPlace::Device) => SelectionPlace::Device,
            _ => SelectionPlace::Host,
        }
    }
}
