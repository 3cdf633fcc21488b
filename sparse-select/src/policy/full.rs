//! Every block: the dense baseline.

use kvblock::BlockSize;

use super::{Input, Policy, Support};
use crate::{Entry, SelectError, Selection, spec::key};

/// Registry entry.
pub const ENTRY: Entry = Entry {
    name: "full",
    aliases: &["dense"],
    keys: &[key("block_size", "16", "tokens per block")],
    build: |p| Ok(Box::new(Full { block_size: p.block_size()? })),
};

/// Selects every block.
#[derive(Clone, Copy, Debug)]
pub struct Full {
    /// Tokens per block.
    pub block_size: BlockSize,
}

impl Policy for Full {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn support(&self) -> Support {
        Support { dense_below_tokens: usize::MAX, ..Support::POSITIONS_ONLY }
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        out.keep_all(input.num_blocks(self.block_size));
        Ok(())
    }
}
