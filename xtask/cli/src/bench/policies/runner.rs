//! Runs one sequence through a decoder: prefill in chunks, given tokens as decode steps, then greedy
//! decoding. Records what was attended to under a policy, and the device time of selection and attention.

use std::time::Instant;

use anyhow::Result;
use attn_kernels::KernelRole;
use attn_kernels::gpu::Timing;
use models::batch::{Phase, StepOutput};
use models::{Attended, Pipeline};
use pagoda::{Sampler, Sampling, Sequence, StepWork};

/// Steps of one phase.
#[derive(Debug, Clone, Default)]
pub struct Steps {
    /// Number of tokens that were computed.
    pub tokens: u32,
    /// Seconds, including the host's part.
    pub wall_s: f64,
    /// Seconds of device time for attention. Without timestamps on the adapter, this and the next two fields are 0.
    pub attention_s: f64,
    /// Seconds of device time for selecting blocks.
    pub selection_s: f64,
    /// Seconds of device time.
    pub device_s: f64,
    /// Blocks that were attended; `None` if the policy leaves the phase dense.
    pub attended: Option<Attended>,
}

/// Results of a sequence.
#[derive(Debug, Clone, Default)]
pub struct Ran {
    /// Steps of the prompt.
    pub prefill: Steps,
    /// Steps of one token.
    pub decode: Steps,
    /// Negative log likelihood of each scored token.
    pub nll: Vec<f32>,
    /// Ids of generated tokens.
    pub generated: Vec<u32>,
    /// Maximum number of bytes of the KV blocks in use.
    pub kv_bytes: u64,
    /// `[layers][blocks]`: number of (decode step, KV head) pairs that selected a block, and of those that
    /// could see it.
    pub chosen: Vec<Vec<(u32, u32)>>,
    /// `[layers][blocks]`, as `chosen`, for chunks or query blocks of the prefill.
    pub chosen_in_prefill: Vec<Vec<(u32, u32)>>,
}

/// Steps of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct SequencePlan {
    /// Number of tokens per prefill step.
    pub chunk: u32,
    /// Index of the first given token that is computed in a decode step.
    pub decode_from: u32,
    /// Number of tokens to generate after the given ones.
    pub generate: u32,
    /// Given tokens that are scored.
    pub score: Score,
}

/// Tokens whose likelihood is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// No tokens.
    Nothing,
    /// Tokens after a decode step.
    Decode,
    /// All tokens of the text.
    All,
}

/// Runs token ids through the decoder in the phases of `plan`, and measures the steps.
///
/// # Errors
/// Errors of the device, and if the sequence does not fit in its KV.
pub fn run(decoder: &mut Pipeline, ids: &[u32], plan: SequencePlan) -> Result<Ran> {
    let eos = decoder.config().eos_ids.clone();
    let mut run = Run {
        sequence: Sequence::new(decoder, plan.chunk)?,
        sampler: Sampler::new(Sampling::default(), ids),
        ran: Ran::default(),
        score: plan.score,
    };
    run.sequence.extend(ids);
    let given = ids.len();
    let prefill = (plan.decode_from as usize).min(given);
    let mut next = None;
    let chunk = run.sequence.chunk();
    for at in (0..prefill).step_by(chunk) {
        let end = (at + chunk).min(prefill);
        next = run.step(end - at, Phase::Prefill, plan.generate > 0 && end == given)?;
    }
    for at in prefill..given {
        next = run.step(1, Phase::Decode, plan.generate > 0 && at + 1 == given)?;
    }
    while let Some(id) = next {
        run.sequence.push(id);
        run.ran.generated.push(id);
        let ends = run.ran.generated.len() == plan.generate as usize || eos.contains(&id);
        next = if ends { None } else { run.step(1, Phase::Decode, true)? };
    }
    run.ran.kv_bytes = run.sequence.kv_use().values().map(|used| used.bytes).sum();
    Ok(run.ran)
}

struct Run<'a> {
    sequence: Sequence<'a>,
    sampler: Sampler,
    ran: Ran,
    score: Score,
}

impl Run<'_> {
    /// Runs the next `rows` tokens; with `draw`, returns the most likely next one.
    fn step(&mut self, rows: usize, phase: Phase, draw: bool) -> Result<Option<u32>> {
        let score = self.score == Score::All || self.score == Score::Decode && phase == Phase::Decode;
        let ask = StepWork { score, draw: draw.then_some(&self.sampler), ..StepWork::nothing(phase) };
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
        steps.device_s += seconds(&output.timings, None);
        steps.attention_s += seconds(&output.timings, Some(KernelRole::Attention));
        steps.selection_s += seconds(&output.timings, Some(KernelRole::Selection));
        ran.nll.extend(&output.nll);
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

/// Adds the selections of a step to the counts of each block.
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

/// Device time of the kernels of one role, or of all.
fn seconds(timings: &[Timing], role: Option<KernelRole>) -> f64 {
    let counted = timings.iter().filter(|timing| role.is_none() || timing.role == role);
    counted.map(|timing| timing.ns).sum::<f64>() / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that every form of a kernel counts the same work.
    #[test]
    fn every_form_of_attention_and_selection_is_counted() {
        let roles = |role| {
            let kernels = attn_kernels::catalog().into_iter().filter(move |kernel| kernel.role == role);
            kernels.map(|kernel| kernel.name).collect::<Vec<_>>().join(" ")
        };
        insta::assert_snapshot!(roles(KernelRole::Attention), @"apply_sinks attend_means gate_sum lse_merge masked_attention mla_decode mla_decode_coop nsa_attend paged_decode paged_decode_coop paged_decode_subgroup paged_prefill paged_prefill_coop paged_reduce prefill_reduce");
        insta::assert_snapshot!(roles(KernelRole::Selection), @"block_digest block_energy block_energy_coop block_lse block_mean block_means block_score block_score_subgroup find_blocks hamming_score hash_codes index_logits index_logits_coop keep_blocks keep_lists list_counts mass_bound mass_cut mass_merge nsa_block_score nsa_probs softmax_block_sum stride_queries strided_qk strided_qk_broadcast strided_qk_coop top_k top_k_long top_k_peaks top_k_transform vote_blocks");
        insta::assert_snapshot!(roles(KernelRole::Cache), @"cache_write copy_blocks dequantise fetch_pages gather_cache latent_write prefix_slots quantise residency swap_blocks v4_compress");
        let all: Vec<_> = attn_kernels::catalog().into_iter().chain(models::kernel::catalog()).collect();
        let timings: Vec<Timing> = all
            .iter()
            .map(|kernel| Timing { kernel: kernel.name, role: Some(kernel.role), ns: 1e9 })
            .collect();
        let count = |role| all.iter().filter(|kernel| kernel.role == role).count() as f64;
        assert_eq!(seconds(&timings, None), all.len() as f64);
        assert_eq!(seconds(&timings, Some(KernelRole::Attention)), count(KernelRole::Attention));
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
