//! The command line with a sparse-attention policy of one's own, which all commands then know by name. A policy is generated
//! with, scored on a text, and measured beside published ones by a plan that names it:
//!
//! ```sh
//! cargo run -p xtask --example own_command_line -- generate --prompt-file book.txt --sparse strided:every=3
//! cargo run -p xtask --example own_command_line -- score --ids-file ids.json --decode-from 64 --sparse strided:every=3
//! cargo run -p xtask --example own_command_line -- bench policies --plan plan.ron
//! ```

use kvblock::BlockSize;
use sparse_select::{Entry, Input, Key, Policy, Registry, SelectError, Selection, SpecError, Support};

/// Selects every n-th block and the last one.
#[derive(Debug)]
struct Strided {
    every: u32,
    block_size: BlockSize,
}

impl Policy for Strided {
    fn name(&self) -> &'static str {
        STRIDED.name
    }

    fn support(&self) -> Support {
        Support::POSITIONS_ONLY
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        let blocks = input.num_blocks(self.block_size);
        out.begin(blocks, 1, 1);
        out.push_row((0..blocks).filter(|block| block.is_multiple_of(self.every) || block + 1 == blocks));
        Ok(())
    }
}

const STRIDED: Entry = Entry::new(
    "strided",
    &[
        Key::new("every", "2", "blocks from one selected block to the next"),
        Key::new("block_size", "16", "tokens per block"),
    ],
    |params| Ok(Box::new(Strided { every: params.positive("every")?, block_size: params.block_size()? })),
);

pub(crate) fn registry() -> Result<Registry, SpecError> {
    let mut registry = Registry::builtin();
    registry.register(STRIDED)?;
    Ok(registry)
}

#[cfg(not(test))]
fn main() -> std::process::ExitCode {
    xtask::main(&registry().expect("no other policy has this name"))
}
