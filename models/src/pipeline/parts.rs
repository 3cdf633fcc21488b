//! Parts of a step, and what becomes of their results.

use crate::batch::{Sample, Slice, StepOutput};
use crate::decoder::SentStep;
use crate::{Attended, Decoder, ModelError};

/// Rows of a step that pass the stages together.
#[derive(Debug, Default)]
pub(super) struct Part<'a> {
    /// Slices for the last stage.
    slices: Vec<Slice<'a>>,
    /// Slices for other stages, which score nothing.
    plain: Vec<Slice<'a>>,
    /// Index of the first slice in the step.
    first: usize,
    /// Whether the first slice's sum of hidden states was begun in an earlier part.
    pools_on: bool,
    /// Samples, by slice of the part.
    samples: Vec<Sample<'a>>,
    /// Index of each sample in the step.
    sample_ids: Vec<usize>,
    /// Numbers of slices and of samples of the step.
    of_step: [usize; 2],
}

/// Cuts a step into parts of up to `rows` rows. Slices of several rows may lie in several parts.
pub(super) fn cut<'a>(slices: &[Slice<'a>], samples: &[Sample<'a>], rows: usize) -> Vec<Part<'a>> {
    let mut parts: Vec<Part<'a>> = Vec::new();
    let of_step = [slices.len(), samples.len()];
    let mut room = 0;
    for (index, slice) in slices.iter().enumerate() {
        let mut done = 0;
        while done < slice.tokens.len() {
            if room == 0 {
                let pools_on = done > slice.tokens.len() - slice.pooled.min(slice.tokens.len());
                parts.push(Part { first: index, pools_on, of_step, ..Part::default() });
                room = rows;
            }
            let part = parts.last_mut().expect("there is one with room");
            let end = slice.tokens.len().min(done + room);
            let piece = slice.rows(done..end);
            part.plain.push(Slice { targets: &[], log_probs: None, logits: 0, pooled: 0, ..piece.clone() });
            part.slices.push(piece);
            (room, done) = (room - (end - done), end);
        }
        let part = parts.last_mut().expect("a slice has rows");
        let own = samples.iter().enumerate().filter(|(_, sample)| sample.slice == index);
        for (id, sample) in own {
            part.samples.push(Sample { slice: index - part.first, ..*sample });
            part.sample_ids.push(id);
        }
    }
    parts
}

/// Divides layers of these bytes into `stages` consecutive ranges of about as many bytes, and returns the lengths.
pub(super) fn even(bytes: &[u64], stages: usize) -> Vec<u32> {
    let total: u64 = bytes.iter().sum();
    let (mut taken, mut sum) = (0, 0);
    let mut lengths = Vec::with_capacity(stages);
    for stage in 1..=stages {
        let (start, left) = (taken, stages - stage);
        // Each of the stages that are left has a layer.
        while taken < bytes.len() - left {
            // Half of the next layer would go beyond the stage's part of all bytes.
            let doubled = u128::from(2 * sum + bytes[taken]) * stages as u128;
            if taken > start && left > 0 && doubled > 2 * u128::from(total) * stage as u128 {
                break;
            }
            sum += bytes[taken];
            taken += 1;
        }
        lengths.push(crate::cast::u32_of(taken - start));
    }
    lengths
}

impl<'a> Part<'a> {
    /// Returns the slices for the last stage, or for another one.
    pub(super) fn slices(&self, is_last: bool) -> &[Slice<'a>] {
        if is_last { &self.slices } else { &self.plain }
    }

    fn samples(&self, is_last: bool) -> &[Sample<'a>] {
        if is_last { &self.samples } else { &[] }
    }

    /// Whether the rows of the part return nothing, because they are from the middle of prompts.
    pub(super) fn is_unread(&self) -> bool {
        let returns = |slice: &Slice<'_>| !slice.targets.is_empty() || slice.logits + slice.pooled > 0;
        self.samples.is_empty() && !self.slices.iter().any(returns)
    }

    /// Plans the part in a stage.
    pub(super) fn plan(&self, stage: &mut Decoder, is_last: bool) -> Result<(), ModelError> {
        stage.plan_step(self.slices(is_last), self.samples(is_last))
    }

    /// Sends the part, which is planned, to the device of a stage.
    pub(super) fn send(
        &self,
        stage: &mut Decoder,
        is_last: bool,
        fill: &mut dyn FnMut(usize, &mut [u32]),
    ) -> Result<SentStep, ModelError> {
        stage.send_step(self.samples(is_last), &mut |sample, words| fill(self.sample_ids[sample], words))
    }

    /// Adds the results of the part to those of its step. Parts come in order.
    pub(super) fn add_to(&self, step: &mut StepOutput, part: StepOutput) {
        let [slices, samples] = self.of_step;
        place(&mut step.sampled, samples, self.sample_ids.iter().copied().zip(part.sampled));
        place(&mut step.log_probs, samples, self.sample_ids.iter().copied().zip(part.log_probs));
        step.nll.extend(part.nll);
        step.target_log_probs.extend(part.target_log_probs);
        step.logits.extend(part.logits);
        for (index, attended) in (self.first..).zip(part.attended) {
            step.attended.resize(slices, None);
            Attended::join(&mut step.attended[index], attended, 0);
        }
        self.add_pooled(&mut step.pooled, &part.pooled);
        step.choices.extend(part.choices);
        step.lost.extend(part.lost);
        step.timings.extend(part.timings);
    }

    /// Appends sums of hidden states to `sums`. If an earlier part has begun the sum of the first slice, which is then
    /// the last of `sums`, the rest is added to it.
    fn add_pooled(&self, sums: &mut Vec<f32>, part: &[f32]) {
        let pooling = self.slices.iter().filter(|slice| slice.pooled > 0).count();
        let Some(width) = part.len().checked_div(pooling) else { return };
        let (more, new) = part.split_at(if self.pools_on { width } else { 0 });
        if self.pools_on {
            let start = sums.len() - width;
            sums[start..].iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        sums.extend(new);
    }
}

/// Writes values to their indices in a list, which is empty before the first value and has length `len` after it.
fn place<T: Default>(list: &mut Vec<T>, len: usize, values: impl Iterator<Item = (usize, T)>) {
    for (index, value) in values {
        list.resize_with(len, T::default);
        list[index] = value;
    }
}

#[cfg(test)]
mod tests {
    use kvblock::Phase;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stages_have_about_as_many_bytes() {
        assert_eq!(even(&[1; 32], 2), [16, 16]);
        assert_eq!(even(&[1; 7], 3), [2, 3, 2]);
        // Three dense layers before those of experts.
        assert_eq!(even(&[1, 1, 1, 10, 10, 10, 10], 2), [5, 2]);
        assert_eq!(even(&[100, 1, 1], 3), [1, 1, 1]);
        assert_eq!(even(&[1, 1, 100], 3), [1, 1, 1]);
        assert_eq!(even(&[0, 0], 2), [1, 1]);
    }

    proptest! {
        #[test]
        fn every_stage_has_layers(bytes in prop::collection::vec(0_u64..1000, 1..40), stages in 1_usize..8) {
            prop_assume!(stages <= bytes.len());
            let lengths = even(&bytes, stages);
            prop_assert_eq!(lengths.len(), stages);
            prop_assert!(lengths.iter().all(|length| *length > 0));
            prop_assert_eq!(lengths.iter().sum::<u32>() as usize, bytes.len());
        }

        /// All rows and requests of a step are in its parts, in order.
        #[test]
        fn parts_have_what_the_step_has(
            lengths in prop::collection::vec((1_usize..40, 0_usize..50, 0_usize..50, 0_usize..50), 1..8),
            drawn in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
            rows in 1_usize..50,
        ) {
            let tokens: Vec<u32> = (0..50).collect();
            let slice = |(index, (len, scored, logits, pooled)): (usize, &(usize, usize, usize, usize))| Slice {
                targets: &tokens[..*scored.min(len)],
                logits: *logits.min(len),
                pooled: *pooled.min(len),
                ..Slice::new(&tokens[..*len], 100 * u32::try_from(index).unwrap(), &[], Phase::Prefill)
            };
            let slices: Vec<Slice<'_>> = lengths.iter().enumerate().map(slice).collect();
            let samples: Vec<Sample<'_>> = drawn.iter().map(|at| Sample::greedy(at.index(slices.len()))).collect();
            let parts = cut(&slices, &samples, rows);
            let of = |part: &Part<'_>| part.slices.iter().map(|slice| slice.tokens.len()).sum::<usize>();
            let (last, full) = parts.split_last().unwrap();
            prop_assert!(full.iter().all(|part| of(part) == rows) && of(last) <= rows);
            let mut seen = vec![(0, 0, 0, 0); slices.len()];
            let mut sampled = Vec::new();
            for part in &parts {
                for (at, piece) in (part.first..).zip(&part.slices) {
                    let (rows, targets, logits, pooled) = &mut seen[at];
                    prop_assert_eq!(piece.first, slices[at].first + u32::try_from(*rows).unwrap());
                    prop_assert_eq!(piece.targets, &slices[at].targets[*targets..][..piece.targets.len()]);
                    *rows += piece.tokens.len();
                    *targets += piece.targets.len();
                    *logits += piece.logits;
                    *pooled += piece.pooled;
                }
                for (sample, id) in part.samples.iter().zip(&part.sample_ids) {
                    let at = part.first + sample.slice;
                    prop_assert_eq!((at, seen[at].0), (samples[*id].slice, slices[at].tokens.len()));
                    sampled.push(*id);
                }
            }
            for (slice, seen) in slices.iter().zip(seen) {
                prop_assert_eq!(seen, (slice.tokens.len(), slice.targets.len(), slice.logits, slice.pooled));
            }
            sampled.sort_unstable();
            prop_assert!(sampled.into_iter().eq(0..samples.len()));
        }
    }
}
