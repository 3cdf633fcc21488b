//! Compiles kernels and allocates buffers before steps need them.

use kvblock::BlockId;

use super::Decoder;
use super::keys::KeySource;
use crate::batch::{Phase, Sample, Slice};
use crate::kernel::sample::Spec;
use crate::{ModelError, SelectionPlace};

/// Returns numbers of rows up to `max` between which no product changes its kernel: small numbers one by one, others as multiples
/// of tiles of 16 rows.
fn rows_up_to(max: u32) -> impl Iterator<Item = u32> {
    let few = 1..16;
    let some = (16..=512).step_by(16);
    let many = (640..=max).step_by(128);
    few.chain(some).chain(many).take_while(move |rows| *rows < max).chain([max])
}

/// A step that is planned and recorded, but never run.
struct DryRun {
    sequences: u32,
    /// Number of tokens of each sequence that the step computes.
    tokens: u32,
    /// Number of tokens of each sequence that were computed before.
    computed: u32,
    phase: Phase,
    spec: Spec,
}

impl DryRun {
    /// A prompt of `tokens` tokens, after `computed` tokens that are in the cache.
    fn prompt(tokens: u32, computed: u32) -> Self {
        Self { sequences: 1, tokens, computed, phase: Phase::Prefill, spec: Spec::GREEDY }
    }

    /// The next token of each sequence.
    fn decode(sequences: u32, computed: u32) -> Self {
        Self { sequences, tokens: 1, computed, phase: Phase::Decode, spec: Spec::GREEDY }
    }
}

impl Decoder {
    /// Requests the kernels of steps of any number of sequences and prompt tokens, and allocates buffers for the largest ones.
    ///
    /// The device's threads compile them while work goes on: without it, a step waits for its kernels whenever it has a number
    /// of rows that none had before. No step runs, and the cache stays as it is. O(layers) for each of some hundred numbers of
    /// rows. If some blocks are not on the device, or a policy selects on the host, steps request their kernels when they run.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn prepare(&mut self) -> Result<(), ModelError> {
        let reads_back = self.selects_on() == Some(SelectionPlace::Host);
        if reads_back || !matches!(self.keys, KeySource::Device) {
            return Ok(());
        }
        let (rows, sequences) = (self.options.max_rows, self.options.max_seqs.min(self.options.max_rows));
        let pool = (self.kv.num_blocks() - 1).saturating_mul(self.options.block_size);
        let longest = pool.min(self.config.context_length);
        for tokens in rows_up_to(rows.min(longest)) {
            self.rehearse(&DryRun::prompt(tokens, 0))?;
        }
        for sequences in rows_up_to(sequences) {
            self.rehearse(&DryRun::decode(sequences, 0))?;
        }
        // Long contexts are attended in other pieces than short ones.
        let spec = Spec { temperature: 1.0, top_p: 0.9, ..Spec::GREEDY };
        self.rehearse(&DryRun { spec, ..DryRun::decode(1, longest - 1) })?;
        self.rehearse(&DryRun::decode(sequences, (pool / sequences).min(longest).max(1) - 1))?;
        let tokens = rows.min(longest);
        self.rehearse(&DryRun::prompt(tokens, longest - tokens))
    }

    fn rehearse(&mut self, step: &DryRun) -> Result<(), ModelError> {
        let DryRun { sequences, tokens, computed, phase, spec } = *step;
        let ids = vec![0; tokens as usize];
        let blocks = self.kv.plan().block_sizes().map(|block| (computed + tokens).div_ceil(block) as usize);
        // Nothing is written to the null block, since nothing runs.
        let tables: Vec<Vec<BlockId>> = blocks.map(|blocks| vec![BlockId::NULL; blocks]).collect();
        let tables: Vec<&[BlockId]> = tables.iter().map(Vec::as_slice).collect();
        let access = vec![0; (computed + tokens).div_ceil(self.options.select_block()) as usize];
        let slice = Slice { access: &access, ..Slice::new(&ids, computed, &tables, phase) };
        let slices = vec![slice; sequences as usize];
        let samples: Vec<Sample<'_>> = (0..slices.len()).map(|slice| Sample::new(slice, spec)).collect();
        self.plan(&slices, &samples)?;
        self.upload()?;
        self.begin_selection(&slices)?;
        self.begin()?;
        self.record(false)?;
        self.attention.end(&self.gpu);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::rows_up_to;

    #[test]
    fn numbers_of_rows_end_with_the_most() {
        assert_eq!(rows_up_to(1).collect::<Vec<_>>(), [1]);
        assert_eq!(rows_up_to(16).last(), Some(16));
        assert_eq!(rows_up_to(2100).last(), Some(2100));
        assert!(rows_up_to(2048).is_sorted_by(|a, b| a < b));
        assert!(rows_up_to(3000).count() < 100);
    }
}
