//! Runs one sequence through a decoder: prefill in chunks, given tokens as decode steps, then greedy
//! decoding. Records what was attended to under a policy, and the device time of selection and attention.

use std::time::Instant;

use anyhow::Result;
use attn_kernels::gpu::Timing;
use models::batch::{Phase, StepOutput};
use models::{Attended, Decoder};
use pagoda::{Ask, Sampler, Sampling, Sequence};

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

/// Runs `ids`.
pub(super) fn run(decoder: &mut Decoder, ids: &[u32], way: Way) -> Result<Ran> {
    let eos = decoder.config().eos_ids.clone();
    let mut run = Run {
        sequence: Sequence::new(decoder, way.chunk)?,
        sampler: Sampler::new(Sampling::default(), ids),
        ran: Ran::default(),
        score: way.score,
    };
    run.sequence.extend(ids);
    let given = ids.len();
    let prefill = (way.decode_from as usize).min(given);
    let mut next = None;
    for at in (0..prefill).step_by(way.chunk as usize) {
        let end = (at + way.chunk as usize).min(prefill);
        next = run.step(end - at, Phase::Prefill, way.generate > 0 && end == given)?;
    }
    for at in prefill..given {
        next = run.step(1, Phase::Decode, way.generate > 0 && at + 1 == given)?;
    }
    while let Some(id) = next {
        run.sequence.push(id);
        run.ran.generated.push(id);
        let ends = run.ran.generated.len() == way.generate as usize || eos.contains(&id);
        next = if ends { None } else { run.step(1, Phase::Decode, true)? };
    }
    Ok(run.ran)
}

struct Run<'a> {
    sequence: Sequence<'a>,
    sampler: Sampler,
    ran: Ran,
    score: bool,
}

impl Run<'_> {
    /// Runs the next `rows` tokens; with `draw`, returns the most likely next one.
    fn step(&mut self, rows: usize, phase: Phase, draw: bool) -> Result<Option<u32>> {
        let ask = Ask { score: self.score, draw: draw.then_some(&self.sampler), ..Ask::nothing(phase) };
        let start = Instant::now();
        let output = self.sequence.step(rows, ask)?;
        let wall_s = start.elapsed().as_secs_f64();
        let next = output.sampled.first().copied();
        self.count(phase, u32::try_from(rows)?, wall_s, output);
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
