//! Lists of a step of native sparse attention, planned once on the host for all layers.

use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::KvShape;
use attn_kernels::rows::{BlockTokens, DecodeRow, TopRow};
use attn_kernels::split::{SplitPlan, SplitPlanner};

use super::super::index::{PORTION, portion};
use crate::batch::Slice;
use crate::cast::u32_of;
use crate::decoder::batch::Batch;
use crate::decoder::buffers::StepList;
use crate::decoder::kernels::LoadContext;
use crate::kv::split_planner;
use crate::{DecoderConfig, ModelError, NsaConfig, Reach};

/// Lists and sizes of a step.
#[derive(Debug)]
pub(super) struct NsaStep {
    shape: KvShape,
    /// Cache blocks that the step fills.
    pub(super) filled: StepList<BlockTokens>,
    /// All rows, with the first keys of their windows.
    pub(super) window: StepList<DecodeRow>,
    /// Position of the scores of each row and KV head, `[rows, num_kv_heads]`.
    pub(super) top_rows: StepList<TopRow>,
    /// Number of rows whose probabilities and scores exist at one time.
    pub(super) portion: usize,
    /// Number of f32 from one head's probabilities to the next.
    pub(super) prob_stride: u32,
    /// Number of f32 from one KV head's scores to the next.
    pub(super) score_stride: u32,
    planner: SplitPlanner,
    /// Splits of the rows in the two branches that attend tokens, in partitions that do not depend on the batch.
    pub(super) selected_split: SplitPlan,
    pub(super) window_split: SplitPlan,
    /// Length of the probabilities and of the scores of a row, in f32.
    row_lens: [usize; 2],
}

impl NsaStep {
    pub(super) fn new(load: &LoadContext<'_>) -> Result<Self, ModelError> {
        let LoadContext { gpu, config, options, kv, .. } = *load;
        let shape = *kv.shape();
        let rows = options.max_rows as usize;
        Ok(Self {
            shape,
            filled: StepList::new(gpu, "filled", rows / shape.block_size as usize + 1)?,
            window: StepList::new(gpu, "window_rows", rows)?,
            top_rows: StepList::new(gpu, "top_rows", rows * shape.num_kv_heads as usize)?,
            portion: PORTION,
            prob_stride: 0,
            score_stride: 0,
            planner: split_planner(gpu, config, &shape, options.uses_coop(gpu)),
            selected_split: SplitPlan::default(),
            window_split: SplitPlan::default(),
            row_lens: [0; 2],
        })
    }

    /// Plans a step, after its batch was planned.
    pub(super) fn plan(
        &mut self,
        config: &DecoderConfig,
        nsa: &NsaConfig,
        slices: &[Slice<'_>],
        batch: &Batch,
    ) {
        let (block, rows) = (nsa.block_size, &batch.attn_groups[0].all.decode);
        self.prob_stride = (batch.longest / block).max(1);
        self.score_stride = batch.longest.div_ceil(block);
        let of = |heads: u32, stride: u32| heads as usize * stride as usize;
        self.row_lens = [of(config.num_heads, self.prob_stride), of(config.num_kv_heads, self.score_stride)];
        self.portion = portion(rows.len(), self.row_lens.iter().sum(), None, u64::MAX);

        self.filled.clear();
        self.filled.extend(slices.iter().flat_map(|slice| filled(slice, self.shape.block_size)));
        self.window.clear();
        let reach = Reach::Window(nsa.window_size);
        self.window
            .extend(rows.iter().map(|row| DecodeRow { first_key: reach.first_key(row.len - 1), ..*row }));
        self.list_scores(nsa, rows);

        let fixed = Some(self.planner.fixed());
        self.selected_split = self.planner.listed(rows, nsa.selected_tokens(), fixed);
        self.window_split = self.planner.all(&self.window, fixed);
    }

    fn list_scores(&mut self, nsa: &NsaConfig, rows: &[DecodeRow]) {
        self.top_rows.clear();
        let sets = self.shape.num_kv_heads;
        for (index, row) in rows.iter().enumerate() {
            let first = u32_of(index % self.portion) * sets;
            let of_set = |set| TopRow {
                first: (first + set) * self.score_stride,
                scores: row.len.div_ceil(nsa.block_size),
                k: nsa.block_counts,
                table: 0,
            };
            self.top_rows.extend((0..sets).map(of_set));
        }
    }

    /// Uploads the lists of a step.
    pub(super) fn upload(&mut self, gpu: &Gpu) -> Result<(), ModelError> {
        self.filled.upload(gpu)?;
        self.window.upload(gpu)?;
        self.top_rows.upload(gpu)
    }

    /// Returns the length of the probabilities and of the scores of a portion, in f32.
    pub(super) fn portion_lens(&self) -> [usize; 2] {
        let rows = self.portion.min(self.window.len());
        self.row_lens.map(|len| rows * len)
    }
}

/// Returns the blocks whose last token is in a slice.
fn filled(slice: &Slice<'_>, block_size: u32) -> impl Iterator<Item = BlockTokens> {
    let end = slice.first + u32_of(slice.tokens.len());
    // The layers share one group of blocks.
    let blocks = &slice.tables[0][(slice.first / block_size) as usize..(end / block_size) as usize];
    blocks.iter().map(move |block| BlockTokens { block: block.get(), tokens: block_size })
}
