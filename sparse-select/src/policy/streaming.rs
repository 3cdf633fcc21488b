//! Attention sinks and a recent window (StreamingLLM, arXiv 2309.17453), in units of blocks.

use kvblock::BlockSize;

use super::{Input, Policy, Support, whole_below};
use crate::{Entry, SelectError, Selection, spec::key, topk::union};

/// Registry entry.
pub const ENTRY: Entry = Entry {
    name: "streaming",
    aliases: &["StreamingLLM"],
    keys: &[
        key("sink", "1", "number of first blocks, always selected"),
        key("recent", "4", "number of last blocks, always selected"),
        key("block_size", "16", "tokens per block"),
    ],
    build: |p| {
        let (sink, recent) = (p.count("sink")?, p.count("recent")?);
        if sink == 0 && recent == 0 {
            return Err(p.contradiction("sink and recent must keep a block", &["sink", "recent"]));
        }
        Ok(Box::new(Streaming { sink, recent, block_size: p.block_size()? }))
    },
};

/// Selects the first `sink` and the last `recent` blocks.
#[derive(Clone, Copy, Debug)]
pub struct Streaming {
    /// Number of first blocks selected.
    pub sink: u32,
    /// Number of last blocks selected.
    pub recent: u32,
    /// Tokens per block.
    pub block_size: BlockSize,
}

impl Policy for Streaming {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn support(&self) -> Support {
        let blocks = self.sink.saturating_add(self.recent) as usize;
        Support { dense_below_tokens: blocks * self.block_size.get() as usize, ..Support::POSITIONS_ONLY }
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn whole_below(&self) -> usize {
        whole_below(self.block_size, |n| self.sink.saturating_add(self.recent).min(n))
    }

    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        let n = input.num_blocks(self.block_size);
        out.begin(n, 1, 1);
        out.push_row(sink_and_recent(n, self.sink, self.recent));
        Ok(())
    }
}

/// The first `sink` and the last `recent` of `n` blocks, ascending.
#[must_use]
pub fn sink_and_recent(n: u32, sink: u32, recent: u32) -> Vec<u32> {
    union(0..sink.min(n), n.saturating_sub(recent)..n)
}
