//! Vertical-slash selection: by block position, or by the columns and diagonals that the last queries attend
//! to.

use kvblock::BlockSize;

use super::{Input, Policy, Stage, Support, minference::Estimate};
use crate::{Entry, SelectError, Selection, spec::key, topk::union};

/// Registry entry.
pub const ENTRY: Entry = Entry {
    name: "vertical-slash",
    aliases: &["VerticalSlash"],
    keys: &[
        key(
            "mode",
            "blocks",
            "blocks: by position; minference: columns and diagonals estimated from the last queries",
        ),
        key("sink", "1", "mode blocks: number of first blocks, always selected"),
        key("window", "2", "mode blocks: blocks before the chunk (prefill) or last blocks (decode)"),
        key("threshold", "4", "mode blocks: histories of up to this many blocks are kept whole"),
        key("vertical_size", "1000", "mode minference: columns kept, tokens, at least 30"),
        key("slash_size", "6096", "mode minference: diagonals kept, tokens, at least 50"),
        key("last_q", "64", "mode minference: queries the estimate looks at"),
        key("force_vertical", "30", "mode minference: first columns, always kept"),
        key("force_slash", "100", "mode minference: diagonals next to the main one, always kept"),
        key(
            "adaptive_budget",
            "none",
            "mode minference: share of the history, of which columns get 20 %, diagonals 80 %",
        ),
        key("block_size", "16", "tokens per block"),
    ],
    build: |p| {
        let mode = p.choice("mode", "blocks or minference", &[("blocks", false), ("minference", true)])?;
        let block_size = p.block_size()?;
        if mode {
            let estimate = Some(Estimate::from_params(p)?);
            return Ok(Box::new(VerticalSlash { sink: 0, window: 0, threshold: 0, estimate, block_size }));
        }
        let (sink, window) = (p.count("sink")?, p.count("window")?);
        if sink == 0 && window == 0 {
            return Err(p.contradiction("sink and window must keep a block", &["sink", "window"]));
        }
        let threshold = p.count("threshold")?;
        Ok(Box::new(VerticalSlash { sink, window, threshold, estimate: None, block_size }))
    },
};

/// Selects sinks and a window of blocks before the current chunk, or, with an estimate, the blocks that the heaviest
/// columns and diagonals touch (MInference, arXiv 2407.02490).
#[derive(Clone, Copy, Debug)]
pub struct VerticalSlash {
    /// Number of first blocks selected.
    pub sink: u32,
    /// Number of blocks selected at the end.
    pub window: u32,
    /// Maximum number of blocks of histories that are kept whole.
    pub threshold: u32,
    /// If set, selects by columns and diagonals estimated from the last queries instead of by position.
    pub estimate: Option<Estimate>,
    /// Tokens per block.
    pub block_size: BlockSize,
}

impl VerticalSlash {
    /// The blocks selected out of `n` by position, ascending.
    #[must_use]
    pub fn blocks(&self, n: u32, stage: Stage) -> Vec<u32> {
        if n <= self.threshold {
            return (0..n).collect();
        }
        let end = match stage {
            Stage::Prefill { chunk_idx } => chunk_idx.min(n),
            Stage::Decode => n,
        };
        union(0..self.sink.min(n), end.saturating_sub(self.window)..end)
    }
}

impl Policy for VerticalSlash {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn support(&self) -> Support {
        let dense_below_tokens = self.threshold as usize * self.block_size.get() as usize;
        Support { query: self.estimate.is_some(), dense_below_tokens, ..Support::POSITIONS_ONLY }
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        if let Some(estimate) = &self.estimate {
            let (q, k, _) = input.scored(ENTRY.name)?;
            estimate.select_into(&q, &k, self.block_size, out);
            return Ok(());
        }
        let n = input.num_blocks(self.block_size);
        out.begin(n, 1, 1);
        out.push_row(self.blocks(n, input.stage));
        Ok(())
    }
}
