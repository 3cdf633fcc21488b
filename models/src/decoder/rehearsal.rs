//! Steps that are run only to measure their time, before the first request.

mod chunk;

use std::ops::Range;

use kvblock::BlockId;
use sparse_select::policy::num_blocks;

pub use chunk::ChunkRehearsal;

use super::Decoder;
use super::keys::KeySource;
use crate::batch::{Phase, Sample, Slice, StepOutput};
use crate::cast::u32_of;
use crate::{Crossing, ModelError, SelectionPlace, SparseOptions, StepGrid, TIMED_ROWS};

/// Shortest context that is timed, in tokens: shorter steps take about the same time.
const SHORTEST: u32 = 256;

/// Number of runs of decode steps before sequences restart: two that are not timed, and two that are.
const RUNS: u32 = 4;

/// Number of tokens of the prompt whose keys and values are used for all contexts.
const PROMPT: u32 = 128;

/// A decoder whose decode steps are run to measure their time. Blocks of the pool are overwritten, so that no sequence may hold
/// any.
#[derive(Debug)]
pub struct DecodeRehearsal<'a> {
    stage: Stage<'a>,
    grid: StepGrid,
    /// Number of steps from one selection of a sequence to the next.
    stride: u32,
    /// Number of steps that ran.
    ran: u32,
}

/// A decoder, and blocks of its pool with contents.
#[derive(Debug)]
struct Stage<'a> {
    decoder: &'a mut Decoder,
    /// Number of blocks of each cache group that have contents.
    filled: u32,
}

impl Decoder {
    /// Returns the context lengths below which decode rows attend everything, if there is a policy.
    #[must_use]
    pub fn crossing(&self) -> Option<&Crossing> {
        self.options.sparse.as_ref().map(|sparse| &sparse.crossing)
    }

    /// Sets the context lengths below which decode rows attend everything. A policy that never selects then stores nothing about
    /// keys, and cannot be enabled again.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn set_crossing(&mut self, crossing: Crossing) -> Result<(), ModelError> {
        let idle = crossing.is_never();
        self.cross(crossing);
        let acts =
            |sparse: &SparseOptions| sparse.acts_on(Phase::Prefill) && !sparse.chunk_crossing.is_never();
        if idle && !self.options.sparse.as_ref().is_some_and(acts) {
            self.attention.sparse_mut().map_or(Ok(()), |sparse| sparse.rest(&self.gpu))?;
        }
        Ok(())
    }

    fn cross(&mut self, crossing: Crossing) {
        if let Some(sparse) = &mut self.options.sparse {
            sparse.crossing = crossing;
        }
    }

    /// Returns decode steps to be timed, for contexts of up to `longest` tokens. `None` if no step selects, or selections are
    /// read back in every layer, or contexts are not on the device.
    pub fn rehearsal(&mut self, longest: u32) -> Option<DecodeRehearsal<'_>> {
        let sparse = self.options.sparse.as_ref()?;
        let selects = sparse.acts_on(Phase::Decode) && self.selects_on() == Some(SelectionPlace::Device);
        if !selects || !matches!(self.keys, KeySource::Device) {
            return None;
        }
        let longest = longest.min(self.config.context_length);
        let powers = (0..32).map(|power| 1_u32 << power).filter(|context| *context > SHORTEST);
        let lengths = std::iter::once(SHORTEST.min(longest)).chain(powers);
        // Contexts from which nothing is dropped need not be timed.
        let shortest = lengths.into_iter().find(|context| sparse.drops_at(*context)).unwrap_or(u32::MAX);
        let sequences = self.options.max_seqs.min(self.options.max_rows);
        let stride = sparse.of(Phase::Decode).retrieval_stride();
        let grid = StepGrid::new(shortest, longest, sequences, self.pool_tokens());
        Some(DecodeRehearsal { stage: Stage { decoder: self, filled: 0 }, grid, stride, ran: 0 })
    }

    /// Number of tokens for which the pool has blocks in every cache group, if the last block of each sequence may be
    /// partly empty.
    fn pool_tokens(&self) -> u64 {
        let sizes = self.kv.plan().block_sizes();
        let (groups, least) =
            sizes.fold((0, u32::MAX), |(groups, least), size| (groups + 1, least.min(size)));
        let blocks = ((self.kv.num_blocks() - 1) / groups).saturating_sub(TIMED_ROWS[TIMED_ROWS.len() - 1]);
        u64::from(blocks) * u64::from(least)
    }
}

impl SparseOptions {
    /// Whether the policy drops blocks of a decode row of `context` tokens in some layer.
    fn drops_at(&self, context: u32) -> bool {
        let (policy, len) = (&self.policy, context as usize);
        let ranks = policy.ranking().is_some() && policy.mass().is_none();
        let whole = ranks && policy.budget(None, len) >= num_blocks(len, policy.block_size());
        !policy.keeps_all(None, len) && !whole
    }
}

impl DecodeRehearsal<'_> {
    /// Returns the steps that can be timed.
    #[must_use]
    pub fn grid(&self) -> StepGrid {
        self.grid
    }

    /// Returns the number of steps that [`run`](Self::run) takes.
    #[must_use]
    pub fn steps(&self) -> u32 {
        self.stride
    }

    /// Runs as many steps as there are from one selection to the next, one after another, and waits for them. Each has
    /// `rows` sequences of up to `context` tokens, and selects blocks if `selecting`, else attends everything. The first
    /// steps of a size also write keys and values, and the first step of a kind is encoded.
    ///
    /// # Errors
    /// Errors of the device.
    ///
    /// # Panics
    /// When the pool has no room for it, by [`grid`](Self::grid).
    pub fn run(&mut self, rows: u32, context: u32, selecting: bool) -> Result<(), ModelError> {
        let Stage { decoder, .. } = &mut self.stage;
        let max = decoder.kv.plan().block_sizes().map(|size| rows * context.div_ceil(size)).max();
        decoder.cross(if selecting { Crossing::default() } else { Crossing::never() });
        self.stage.fill(max.unwrap_or(0))?;
        // Sequences go on from run to run, as lists that they keep want it, and begin again soon: other lengths take other times.
        let window = (RUNS * self.stride).min(context);
        for _ in 0..self.stride {
            let position = context - window + self.ran % window;
            self.ran = self.ran.wrapping_add(1);
            self.stage.step(rows, context, position..position + 1, Phase::Decode)?;
        }
        Ok(())
    }
}

impl Stage<'_> {
    /// Runs a step of `rows` sequences with the tokens at `positions`, and with blocks for `context` tokens each.
    fn step(
        &mut self,
        rows: u32,
        context: u32,
        positions: Range<u32>,
        phase: Phase,
    ) -> Result<StepOutput, ModelError> {
        let tables: Vec<Vec<Vec<BlockId>>> = (0..rows).map(|row| self.tables(row, context)).collect();
        let tables: Vec<Vec<&[BlockId]>> =
            tables.iter().map(|tables| tables.iter().map(Vec::as_slice).collect()).collect();
        let ids: Vec<u32> = positions.clone().map(|at| self.id(at)).collect();
        let access = vec![0; positions.end.div_ceil(self.decoder.options.select_block()) as usize];
        let slice = |tables| Slice { access: &access, ..Slice::new(&ids, positions.start, tables, phase) };
        let slices: Vec<Slice<'_>> = tables.iter().map(|tables| slice(tables.as_slice())).collect();
        let samples: Vec<Sample<'_>> = (0..slices.len()).map(Sample::greedy).collect();
        self.decoder.step(&slices, &samples)
    }

    /// Returns a token id that differs from those of neighbouring positions.
    fn id(&self, position: u32) -> u32 {
        position.wrapping_mul(2_654_435_761) % self.decoder.config.vocab_size
    }

    /// Returns the block tables of a sequence of `tokens` tokens; sequences follow each other in the pool.
    fn tables(&self, row: u32, tokens: u32) -> Vec<Vec<BlockId>> {
        let sizes: Vec<u32> = self.decoder.kv.plan().block_sizes().collect();
        let of_group = |(group, size): (usize, &u32)| {
            let blocks = tokens.div_ceil(*size);
            (row * blocks..(row + 1) * blocks).map(|index| block(index, group, sizes.len())).collect()
        };
        sizes.iter().enumerate().map(of_group).collect()
    }

    /// Fills `blocks` blocks of every cache group with copies of a short prompt, since the time of some kernels depends on what
    /// they read.
    fn fill(&mut self, blocks: u32) -> Result<(), ModelError> {
        let sizes: Vec<u32> = self.decoder.kv.plan().block_sizes().collect();
        let tokens = PROMPT.min(self.decoder.options.max_rows).min(self.decoder.config.context_length);
        if self.filled == 0 {
            self.step(1, tokens, 0..tokens, Phase::Prefill)?;
        }
        let mut pairs = Vec::new();
        for (group, size) in sizes.iter().enumerate() {
            let written = (tokens / size).max(1);
            let empty = self.filled.max(tokens.div_ceil(*size))..blocks;
            let of = |index| block(index, group, sizes.len());
            pairs.extend(empty.map(|index| (of(index % written), of(index))));
        }
        self.filled = self.filled.max(blocks);
        if pairs.is_empty() { Ok(()) } else { self.decoder.copy_blocks(&pairs) }
    }
}

/// Returns block number `index` of a cache group.
fn block(index: u32, group: usize, groups: usize) -> BlockId {
    BlockId::new(1 + index * u32_of(groups) + u32_of(group))
}
