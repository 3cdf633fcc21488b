//! A policy that attends to everything and notes what others would select.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use kvblock::BlockSize;
use sparse_select::policy::{Policy, Support};
use sparse_select::{Input, SelectError, Selection};

use super::history::{History, Turnover};

/// Number of tokens of the blocks of the dense run; the observed policies have block sizes of their own.
const BLOCK: u32 = 16;

/// Policies that select in every decode step of a dense run, without effect on it.
#[derive(Debug)]
pub(super) struct Observer {
    asked: Mutex<Vec<Asked>>,
}

/// A policy, and its selections.
#[derive(Debug)]
struct Asked {
    spec: String,
    policy: Arc<dyn Policy>,
    /// Earlier accesses by block, as an engine counts them.
    access: Vec<u32>,
    /// Number of tokens of the sequence in the current step; the next field has the blocks that the step selected in
    /// any layer.
    kv_len: usize,
    accessed: BTreeSet<u32>,
    /// Whether an earlier layer has selected by itself, so that later ones may reuse its selection.
    has_source: bool,
    history: History,
}

impl Observer {
    /// Asks these policies, each named by its SPEC.
    ///
    /// # Errors
    /// A policy that does not select in decode.
    pub(super) fn new(policies: Vec<(String, Arc<dyn Policy>)>) -> Result<Self> {
        for (spec, policy) in &policies {
            let selects = policy.support().decode && !policy.keeps_all_in_decode();
            ensure!(selects, "policy {spec} does not select in decode");
        }
        let asked = policies.into_iter().map(|(spec, policy)| Asked {
            spec,
            policy,
            access: Vec::new(),
            kv_len: 0,
            accessed: BTreeSet::new(),
            has_source: false,
            history: History::default(),
        });
        Ok(Self { asked: Mutex::new(asked.collect()) })
    }

    /// The turnover of each policy so far.
    pub(super) fn turnovers(&self) -> Vec<(String, Turnover)> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.iter().map(|asked| (asked.spec.clone(), asked.history.turnover())).collect()
    }
}

impl Asked {
    fn ask(&mut self, input: &Input<'_>, selection: &mut Selection) -> Result<(), SelectError> {
        if input.kv_len != self.kv_len {
            self.begin_step(input.kv_len);
        }
        let Some(layer) = input.layer else { return Ok(()) };
        if self.policy.keeps_all(Some(layer), input.kv_len) || self.has_source && self.policy.reuses(layer) {
            return Ok(());
        }
        self.has_source = true;
        self.policy.select_into(&Input { access: &self.access, ..*input }, selection)?;
        for head in 0..selection.groups() {
            let blocks: Vec<u32> = selection.row(head, 0).iter().map(|block| block.get()).collect();
            self.history.push(layer, head, &blocks, selection.visible(0));
            self.accessed.extend(blocks);
        }
        Ok(())
    }

    fn begin_step(&mut self, kv_len: usize) {
        self.kv_len = kv_len;
        self.has_source = false;
        for block in std::mem::take(&mut self.accessed) {
            let block = block as usize;
            self.access.resize(self.access.len().max(block + 1), 0);
            self.access[block] += 1;
        }
    }
}

impl Policy for Observer {
    fn name(&self) -> &'static str {
        "observer"
    }

    fn support(&self) -> Support {
        // By query, so that queries and keys are read back; prompts stay dense.
        Support::PER_QUERY
    }

    fn block_size(&self) -> BlockSize {
        BlockSize::new(BLOCK).expect("16 tokens are a block")
    }

    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let mut selection = Selection::new();
        asked.iter_mut().try_for_each(|asked| asked.ask(input, &mut selection))?;
        out.keep_all(input.num_blocks(self.block_size()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sparse_select::{Heads, build};

    use super::*;

    fn observer(specs: &[&str]) -> Observer {
        let built = specs.iter().map(|spec| ((*spec).into(), Arc::from(build(spec).unwrap())));
        Observer::new(built.collect()).unwrap()
    }

    #[test]
    fn a_window_turns_over_by_one_block_in_sixteen_steps_and_all_blocks_are_attended() {
        let observer = observer(&["streaming:sink=1,recent=3"]);
        let mut out = Selection::new();
        for kv_len in 161..=224 {
            observer.select_into(&Input { layer: Some(2), ..Input::positions(kv_len) }, &mut out).unwrap();
            assert_eq!(out.row(0, 0).len(), kv_len.div_ceil(16));
        }
        let (_, turnover) = observer.turnovers().remove(0);
        // Of 63 steps with one before them, 3 begin a block: a quarter of the selection.
        assert!((turnover.mean - 0.25 * 3.0 / 63.0).abs() < 1e-12, "{turnover:?}");
        assert_eq!((turnover.blocks, turnover.layers.len()), (4.0, 3));
    }

    #[test]
    fn policies_that_score_get_queries_and_keys_and_those_that_look_back_get_accesses() {
        let observer = observer(&["quest:page_budget=4,dense_layers=1", "gsa:sparse_ratio=0.3"]);
        let (heads, dim) = (2, 8);
        let k: Vec<f32> = (0..heads * 320 * dim).map(|i| ((i * 7919) % 101) as f32 - 50.0).collect();
        let q: Vec<f32> = (0..heads * dim).map(|i| ((i * 31) % 7) as f32 - 3.0).collect();
        let mut out = Selection::new();
        for kv_len in 300..320 {
            let k = Heads::new("k", &k, [heads, 320, dim]).unwrap().window(0, kv_len);
            let q = Heads::new("q", &q, [heads, 1, dim]).unwrap();
            for layer in 0..2 {
                let input = Input { layer: Some(layer), ..Input::decode(q, k) };
                observer.select_into(&input, &mut out).unwrap();
            }
        }
        let turnovers = observer.turnovers();
        let lists = |at: usize| turnovers[at].1.layers.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!((lists(0), lists(1)), (vec![0, 2], vec![1, 1]));
        let asked = observer.asked.lock().unwrap();
        assert_eq!(asked[1].access.first(), Some(&19), "19 steps ended before the last one");
    }

    #[test]
    fn policies_that_leave_decode_dense_are_refused() {
        let built = vec![("xattn".into(), Arc::from(build("xattn").unwrap()))];
        let refused = Observer::new(built).unwrap_err().to_string();
        insta::assert_snapshot!(refused, @"policy xattn does not select in decode");
    }
}
