//! The lists of a step's samples.

use std::ops::Range;

use attn_kernels::gpu::Gpu;

use crate::ModelError;
use crate::batch::{Sample, Slice, StepOutput};
use crate::cast::u32_of;
use crate::decoder::buffers::StepList;
use crate::decoder::limits::HEAD_ROWS;
use crate::kernel::adjust_logits::{AdjustRow, NO_MASK};
use crate::kernel::sample::Spec;
use crate::kernel::top_logits::{MAX_TOP, TopRequest};
use crate::sampling::{Allowed, LogProbs, LogitAdjustments, SamplingError, TokenLogProb};

/// Samples of a step, the edits of their logits, and the rows whose log-probabilities it returns.
#[derive(Debug)]
pub(super) struct Draws {
    /// Sampling parameters of each sample.
    pub(super) specs: StepList<Spec>,
    pub(super) adjusted: StepList<AdjustRow>,
    /// Masks of the edited rows that have one.
    pub(super) masks: StepList<u32>,
    /// Samples whose masks are filled late, and the first word of each.
    late: Vec<(usize, usize)>,
    /// Edits of logits: three lists for each edited row.
    pub(super) edits: StepList<[u32; 2]>,
    /// Requests of scored rows, then those of samples.
    pub(super) top_requests: StepList<TopRequest>,
    /// Scored rows with a request, ascending.
    scored: Vec<usize>,
    /// Indices of the samples whose log-probabilities are requested, ascending.
    sampled: Vec<usize>,
}

impl Draws {
    pub(super) fn new(gpu: &Gpu, samples: usize) -> Result<Self, ModelError> {
        Ok(Self {
            specs: StepList::new(gpu, "specs", samples)?,
            adjusted: StepList::new(gpu, "adjusted_rows", 0)?,
            masks: StepList::new(gpu, "masks", 0)?,
            late: Vec::new(),
            edits: StepList::new(gpu, "edits", 0)?,
            top_requests: StepList::new(gpu, "top_requests", 0)?,
            scored: Vec::new(),
            sampled: Vec::new(),
        })
    }

    /// Plans the samples of a step, and the log-probabilities that the scored rows of all slices request.
    pub(super) fn plan(
        &mut self,
        slices: &[Slice<'_>],
        samples: &[Sample<'_>],
        vocab: u32,
    ) -> Result<(), ModelError> {
        self.clear();
        let mut first = 0;
        for slice in slices {
            self.push_targets(slice, first, vocab)?;
            first += slice.scored_rows();
        }
        Ok(self.push_samples(samples, vocab)?)
    }

    fn clear(&mut self) {
        self.specs.clear();
        self.adjusted.clear();
        self.masks.clear();
        self.late.clear();
        self.edits.clear();
        self.top_requests.clear();
        self.scored.clear();
        self.sampled.clear();
    }

    /// Uploads the lists.
    pub(super) fn upload(&mut self, gpu: &Gpu) -> Result<(), ModelError> {
        self.specs.upload(gpu)?;
        self.adjusted.upload(gpu)?;
        self.masks.upload(gpu)?;
        self.edits.upload(gpu)?;
        self.top_requests.upload(gpu)
    }

    /// Adds the targets of a slice whose scored rows begin at `first`. Slices must be added before samples.
    fn push_targets(&mut self, slice: &Slice<'_>, first: usize, vocab: u32) -> Result<(), ModelError> {
        for (row, id) in slice.targets.iter().enumerate() {
            if *id >= vocab {
                let position = slice.first + 1 + u32_of(row);
                return Err(ModelError::Token { id: *id, position, vocab });
            }
            if let Some(tokens) = slice.log_probs {
                // Logits exist in portions.
                self.top_requests.push(top_request((first + row) % HEAD_ROWS, tokens, vocab)?);
                self.scored.push(first + row);
            }
        }
        Ok(())
    }

    /// Adds the samples of a step.
    fn push_samples(&mut self, samples: &[Sample<'_>], vocab: u32) -> Result<(), SamplingError> {
        for (row, sample) in samples.iter().enumerate() {
            let masked = sample.adjust.allowed.is_some() || !sample.adjust.suppressed.is_empty();
            self.specs.push(Spec { masked: u32::from(masked), ..sample.spec });
            if let Some(tokens) = sample.log_probs {
                self.top_requests.push(top_request(row, tokens, vocab)?);
                self.sampled.push(row);
            }
            if !sample.adjust.is_empty() {
                self.push_adjust(row, &sample.adjust, vocab)?;
            }
        }
        Ok(())
    }

    /// Whether masks are filled late.
    pub(super) fn has_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// Asks the caller to fill the late masks, and uploads them.
    pub(super) fn fill(
        &mut self,
        gpu: &Gpu,
        (samples, vocab): (&[Sample<'_>], u32),
        fill: &mut dyn FnMut(usize, &mut [u32]),
    ) -> Result<(), ModelError> {
        for (sample, first) in &self.late {
            let words = &mut self.masks[*first..][..vocab.div_ceil(32) as usize];
            fill(*sample, words);
            check(*sample, words, samples[*sample].adjust.suppressed, vocab)?;
        }
        self.masks.upload(gpu)
    }

    /// Number of tokens that are sampled.
    pub(super) fn samples(&self) -> usize {
        self.specs.len()
    }

    /// Moves the results of the device into the output: `[top_requests, stride]`.
    pub(super) fn take(&self, output: &mut StepOutput, entries: &[TokenLogProb]) {
        let stride = self.stride() as usize;
        let mut found = self.top_requests.iter().enumerate().map(|(at, top_request)| {
            let [token, top @ ..] = &entries[at * stride..][..=top_request.tokens as usize] else {
                unreachable!("a range with both ends has an entry")
            };
            LogProbs { token: *token, top: top.to_vec() }
        });
        output.target_log_probs = found.by_ref().take(self.scored.len()).collect();
        if !self.sampled.is_empty() {
            output.log_probs = vec![None; self.specs.len()];
            self.sampled.iter().zip(found).for_each(|(row, found)| output.log_probs[*row] = Some(found));
        }
    }

    /// Number of entries per request on the device.
    pub(super) fn stride(&self) -> u32 {
        self.top_requests.iter().map(|top_request| 1 + top_request.tokens).max().unwrap_or(0)
    }

    /// Whether log-probabilities are needed from logits before their edits.
    pub(super) fn keeps_raw(&self) -> bool {
        !self.adjusted.is_empty() && !self.sampled.is_empty()
    }

    /// Range in `top_requests` of the scored rows in `rows`.
    pub(super) fn scored_requests(&self, rows: Range<usize>) -> Range<usize> {
        let before = |end: usize| self.scored.partition_point(|row| *row < end);
        before(rows.start)..before(rows.end)
    }

    /// Range in `top_requests` of the samples.
    pub(super) fn sampled_requests(&self) -> Range<usize> {
        self.scored.len()..self.top_requests.len()
    }

    fn push_adjust(
        &mut self,
        row: usize,
        adjust: &LogitAdjustments<'_>,
        vocab: u32,
    ) -> Result<(), SamplingError> {
        let first = self.masks.len();
        let mask = if adjust.allowed.is_some() { u32_of(first) } else { NO_MASK };
        match adjust.allowed {
            None => {}
            Some(Allowed::Words(words)) => {
                check(row, words, adjust.suppressed, vocab)?;
                self.masks.extend(words);
            }
            Some(Allowed::Late) => {
                self.late.push((row, first));
                self.masks.resize(first + vocab.div_ceil(32) as usize, 0);
            }
        }
        let edits = &mut self.edits;
        let suppressed = u32_of(edits.len());
        edits.extend(adjust.suppressed.iter().map(|token| [*token, 0]));
        let biases = u32_of(edits.len());
        let addends = adjust.bias.into_iter().flat_map(|bias| bias.as_slice());
        edits.extend(addends.map(|addend| [addend.token, addend.bias.to_bits()]));
        let counts = u32_of(edits.len());
        let penalties = adjust.penalties;
        let counted = adjust.counts.filter(|_| !penalties.are_off());
        edits.extend(counted.into_iter().flat_map(|counts| counts.as_slice()).map(|c| [c.token, c.count]));
        self.adjusted.push(AdjustRow {
            row: u32_of(row),
            mask,
            suppressed,
            biases,
            counts,
            end: u32_of(edits.len()),
            repetition: penalties.repetition,
            presence: penalties.presence,
            frequency: penalties.frequency,
        });
        Ok(())
    }
}

fn top_request(row: usize, tokens: u32, vocab: u32) -> Result<TopRequest, SamplingError> {
    if tokens > MAX_TOP {
        return Err(SamplingError::LogProbs { asked: tokens, max: MAX_TOP });
    }
    Ok(TopRequest { row: u32_of(row), tokens: tokens.min(vocab) })
}

/// Checks that a mask has the length of the vocabulary, and leaves a token that is not suppressed.
fn check(sample: usize, words: &[u32], suppressed: &[u32], vocab: u32) -> Result<(), SamplingError> {
    let expected = vocab.div_ceil(32) as usize;
    if words.len() != expected {
        return Err(SamplingError::MaskWords { sample, words: words.len(), expected, vocab });
    }
    let bit = |token: u32| words[token as usize / 32] >> (token % 32) & 1 == 1;
    let spare = (vocab..vocab.next_multiple_of(32)).filter(|token| bit(*token)).count();
    let ones: u32 = words.iter().map(|word| word.count_ones()).sum();
    let allowed = ones - u32_of(spare);
    // Only of masks with about as many tokens as are suppressed must these be told apart.
    let mut forbidden: Vec<u32> = Vec::new();
    if allowed as usize <= suppressed.len() {
        forbidden.extend(suppressed.iter().filter(|token| **token < vocab && bit(**token)));
        forbidden.sort_unstable();
        forbidden.dedup();
    }
    match allowed as usize == forbidden.len() {
        true => Err(SamplingError::NothingAllowed { sample, allowed }),
        false => Ok(()),
    }
}
