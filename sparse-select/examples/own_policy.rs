//! A policy of one's own, registered and measured against a published one, without a fork.
//!
//! `cargo run -p sparse-select --example own_policy`

use std::error::Error;

use sparse_select::{
    BlockSize, Entry, Heads, Input, Key, Policy, Registry, SelectError, Selection, Support, select,
};

/// Keeps the blocks whose first key is longest, and the last block. A long key wins large scores from any query that
/// points its way.
#[derive(Debug)]
struct Longest {
    blocks: u32,
    block_size: BlockSize,
}

const LONGEST: Entry = Entry::new(
    "longest",
    &[Key::new("blocks", "4", "number of blocks selected"), Key::new("block_size", "16", "tokens per block")],
    |params| Ok(Box::new(Longest { blocks: params.positive("blocks")?, block_size: params.block_size()? })),
);

impl Policy for Longest {
    fn name(&self) -> &'static str {
        LONGEST.name
    }

    fn support(&self) -> Support {
        Support { query: true, ..Support::POSITIONS_ONLY }
    }

    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn select_into(&self, input: &Input<'_>, out: &mut Selection) -> Result<(), SelectError> {
        let (_, keys, _) = input.scored(LONGEST.name)?;
        let blocks = input.num_blocks(self.block_size);
        let length = |block: u32| -> f32 {
            let first = (block * self.block_size.get()) as usize;
            (0..keys.heads()).flat_map(|head| keys.row(head, first)).map(|x| x * x).sum()
        };
        let mut ranked: Vec<u32> = (0..blocks.saturating_sub(1)).collect();
        // Ties go to the lower index, as in every policy.
        ranked.sort_by(|a, b| length(*b).total_cmp(&length(*a)).then(a.cmp(b)));
        ranked.truncate(self.blocks as usize - 1);
        ranked.extend(blocks.checked_sub(1));
        ranked.sort_unstable();
        out.begin(blocks, 1, 1);
        out.push_row(ranked);
        Ok(())
    }
}

#[cfg(not(test))]
#[expect(clippy::print_stdout, reason = "the measures")]
fn main() -> Result<(), Box<dyn Error>> {
    for line in measure()? {
        println!("{line}");
    }
    Ok(())
}

/// Selections, densities and recalls of both policies for one query over 64 keys, two of them longer than the others.
pub(crate) fn measure() -> Result<Vec<String>, Box<dyn Error>> {
    let mut registry = Registry::builtin();
    registry.register(LONGEST)?;
    let query = [1.0; 4];
    let mut keys = [0.0; 64 * 4];
    keys[20 * 4..21 * 4].fill(3.0); // the first key of block 5, and of block 12
    keys[48 * 4..49 * 4].fill(-3.0);
    let q = Heads::new("q", &query, [1, 1, 4])?;
    let k = Heads::new("k", &keys, [1, 64, 4])?;
    let specs = ["longest:block_size=4,blocks=3", "quest:block_size=4,page_budget=3"];
    let line = |spec: &str| -> Result<String, Box<dyn Error>> {
        let outcome = select(&registry, &spec.parse()?, q, k)?;
        let (selection, density, recall) = (&outcome.selection, outcome.density, outcome.recall);
        Ok(format!("{selection} density {density:.2}, recall {recall:.2}: {spec}"))
    };
    specs.into_iter().map(line).collect()
}
