//! Runs one sequence through a decoder: prefill in chunks, given tokens as decode steps, then greedy
//! decoding. Records what was attended to under a policy, and the device time of selection and attention.

use std::time::Instant;

use anyhow::{Context, Result};
use attn_kernels::gpu::Timing;
use kvblock::{BlockId, KvCache, KvCacheConfig, LengthLimits, SeqContent, SeqId, SlotRequest};
use models::batch::{Phase, Sample, Slice, StepOutput};
use models::{Attended, Decoder};
use pagoda::kv_used::group_id;

/// Kernels that compute attention.
const ATTENTION: [&str; 6] =
    ["apply_sinks", "lse_merge", "paged_decode", "paged_prefill", "paged_prefill_coop", "paged_reduce"];
/// Kernels that select blocks.
const SELECTION: [&str; 20] = [
    "block_digest",
    "block_lse",
    "block_score",
    "find_blocks",
    "hamming_score",
    "hash_codes",
    "index_logits",
    "list_counts",
    "mass_bound",
    "mass_cut",
    "mass_merge",
    "nsa_block_score",
    "nsa_probs",
    "softmax_block_sum",
    "strided_qk",
    "top_k",
    "top_k_long",
    "top_k_peaks",
    "top_k_transform",
    "vote_blocks",
];

/// Steps of one phase.
#[derive(Debug, Clone, Default)]
pub(super) struct Steps {
    pub(super) tokens: u32,
    pub(super) wall_s: f64,
    /// Device time, if the adapter has timestamps.
    pub(super) attention_s: f64,
    pub(super) selection_s: f64,
    pub(super) device_s: f64,
    /// `None` if the policy leaves the phase dense.
    pub(super) attended: Option<Attended>,
}

/// Results of a sequence.
#[derive(Debug, Clone, Default)]
pub(super) struct Ran {
    pub(super) prefill: Steps,
    pub(super) decode: Steps,
    /// Sum of negative log likelihoods, and the number of tokens in it.
    pub(super) nll: (f64, u32),
    pub(super) generated: Vec<u32>,
    /// `[layers][blocks]`: number of (decode step, KV head) pairs that selected a block, and of those that
    /// could see it.
    pub(super) chosen: Vec<Vec<(u32, u32)>>,
    /// The same for chunks or query blocks of the prefill.
    pub(super) chosen_in_prefill: Vec<Vec<(u32, u32)>>,
}

/// How to run a sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    /// Tokens per prefill step.
    pub(super) chunk: u32,
    /// Given tokens from here on are decode steps.
    pub(super) decode_from: u32,
    /// Tokens to generate after the given ones.
    pub(super) generate: u32,
    /// Score every given token.
    pub(super) score: bool,
}

const SEQ: SeqId = SeqId::new(0);

/// Runs `ids`.
pub(super) fn run(decoder: &mut Decoder, ids: &[u32], way: Way) -> Result<Ran> {
    let limits =
        LengthLimits { max_model_len: decoder.config().context_length, max_batched_tokens: way.chunk };
    let groups = decoder.kv().plan().layout.groups.clone();
    let config = KvCacheConfig::new(decoder.kv().num_blocks(), groups, limits);
    let mut sequence = Sequence {
        cache: KvCache::new(&KvCacheConfig { caching: false, ..config })?,
        decoder,
        access: Vec::new(),
        ran: Ran::default(),
        score: way.score,
    };
    let mut ids = ids.to_vec();
    let given = ids.len();
    let prefill = (way.decode_from as usize).min(given);
    for at in (0..prefill).step_by(way.chunk as usize) {
        let end = (at + way.chunk as usize).min(prefill);
        let draw = way.generate > 0 && end == given;
        if let Some(next) = sequence.step(&ids, at..end, Phase::Prefill, draw)? {
            ids.push(next);
        }
    }
    for at in prefill..given {
        let draw = way.generate > 0 && at + 1 == given;
        if let Some(next) = sequence.step(&ids, at..at + 1, Phase::Decode, draw)? {
            ids.push(next);
        }
    }
    let eos = sequence.decoder.config().eos_ids.clone();
    while ids.len() > given && ids.len() < given + way.generate as usize && !eos.contains(&ids[ids.len() - 1])
    {
        let at = ids.len() - 1;
        let next = sequence.step(&ids, at..at + 1, Phase::Decode, true)?;
        ids.extend(next);
    }
    sequence.ran.generated = ids.split_off(given);
    Ok(sequence.ran)
}

struct Sequence<'a> {
    decoder: &'a mut Decoder,
    cache: KvCache,
    /// How often each block was attended to under the policy.
    access: Vec<u32>,
    ran: Ran,
    score: bool,
}

impl Sequence<'_> {
    /// Runs tokens `range` of `ids`; with `draw`, returns the most likely next one.
    fn step(
        &mut self,
        ids: &[u32],
        range: std::ops::Range<usize>,
        phase: Phase,
        draw: bool,
    ) -> Result<Option<u32>> {
        let content = SeqContent { tokens: ids, hashes: &[], adapter: None };
        let (first, count) = (u32::try_from(range.start)?, u32::try_from(range.len())?);
        self.cache
            .allocate_slots(SlotRequest::new(SEQ, content, first, count))
            .with_context(|| format!("KV of the first {} tokens", range.end))?;
        let table =
            |group| self.cache.table(SEQ, group_id(group)).map_or(&[][..], kvblock::BlockTable::blocks);
        let tables: Vec<&[BlockId]> = (0..self.cache.num_groups()).map(table).collect();
        let scored = if self.score { range.start + 1..(range.end + 1).min(ids.len()) } else { 0..0 };
        let slice = Slice {
            tokens: &ids[range.clone()],
            first,
            tables: &tables,
            phase,
            access: &self.access,
            targets: &ids[scored],
            log_probs: None,
            logits: 0,
        };
        let samples = [Sample::greedy(0)];
        let start = Instant::now();
        let output = self.decoder.step(&[slice], if draw { &samples } else { &[] })?;
        let wall_s = start.elapsed().as_secs_f64();
        let next = output.sampled.first().copied();
        self.count(phase, count, wall_s, output);
        Ok(next)
    }

    fn count(&mut self, phase: Phase, tokens: u32, wall_s: f64, output: StepOutput) {
        let ran = &mut self.ran;
        let steps = if phase == Phase::Prefill { &mut ran.prefill } else { &mut ran.decode };
        steps.tokens += tokens;
        steps.wall_s += wall_s;
        steps.device_s += seconds(&output.timings, |_| true);
        steps.attention_s += seconds(&output.timings, |kernel| ATTENTION.contains(&kernel));
        steps.selection_s += seconds(&output.timings, |kernel| SELECTION.contains(&kernel));
        ran.nll.0 += output.nll.iter().map(|nll| f64::from(*nll)).sum::<f64>();
        ran.nll.1 += u32::try_from(output.nll.len()).unwrap_or(u32::MAX);
        for attended in output.attended.into_iter().flatten() {
            steps.attended.get_or_insert_default().add(&attended);
            for block in &attended.accessed {
                let block = block.get() as usize;
                self.access.resize(self.access.len().max(block + 1), 0);
                self.access[block] += 1;
            }
            let chosen = match phase {
                Phase::Prefill => &mut ran.chosen_in_prefill,
                Phase::Decode => &mut ran.chosen,
            };
            draw_selections(chosen, &attended);
        }
    }
}

/// Adds the selections of a step to the counts.
fn draw_selections(chosen: &mut Vec<Vec<(u32, u32)>>, attended: &Attended) {
    for (layer, selection) in &attended.selections {
        let layer = *layer as usize;
        chosen.resize(chosen.len().max(layer + 1), Vec::new());
        let row = &mut chosen[layer];
        for query in 0..selection.query_blocks() {
            let visible = selection.visible(query) as usize;
            row.resize(row.len().max(visible), (0, 0));
            for group in 0..selection.groups() {
                row[..visible].iter_mut().for_each(|(_, seen)| *seen += 1);
                selection.row(group, query).iter().for_each(|block| row[block.get() as usize].0 += 1);
            }
        }
    }
}

fn seconds(timings: &[Timing], of: impl Fn(&str) -> bool) -> f64 {
    timings.iter().filter(|timing| of(timing.kernel)).map(|timing| timing.ns).sum::<f64>() * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_of_one_kind_and_exist() {
        let names: Vec<&str> = attn_kernels::catalog().iter().map(|kernel| kernel.name).collect();
        for kernel in ATTENTION.iter().chain(&SELECTION) {
            assert!(names.contains(kernel), "no kernel is called {kernel}");
        }
        assert!(ATTENTION.iter().all(|kernel| !SELECTION.contains(kernel)));
    }

    #[test]
    fn selections_count_by_layer_and_block() {
        let mut selection = sparse_select::Selection::new();
        selection.begin(4, 2, 1);
        selection.push_row([0, 3]);
        selection.push_row([0, 1]);
        let attended = Attended { selections: vec![(1, selection)], ..Attended::default() };
        let mut chosen = Vec::new();
        draw_selections(&mut chosen, &attended);
        assert_eq!(chosen, [vec![], vec![(2, 2), (1, 2), (0, 2), (1, 2)]]);
    }
}
