//! The blocks of a pool, drawn small: at most [`MAX_CELLS`] cells of several blocks each.

use kvblock::{BlockId, BlockPool, SeqId};
use serde::{Serialize, Serializer};

use super::MAX_CELLS;

/// A map of the blocks of a pool, in the order of their ids. A cell stands for one or more consecutive blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BlockMap {
    /// Number of blocks of a cell; the last cell may have fewer.
    pub blocks_per_cell: u32,
    /// Number of cells.
    pub cells: u32,
    /// Number of cells of blocks on the device; later cells are of blocks in host memory.
    pub device_cells: u32,
    /// All cells; neighbours of the same kind and sequence are joined.
    pub runs: Vec<CellRun>,
}

/// Consecutive cells of the same kind and sequence. In JSON, `[cells, kind, seq]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CellRun {
    /// Number of cells.
    pub cells: u32,
    /// State of most blocks of each cell.
    pub kind: CellKind,
    /// A sequence that holds the blocks; `None` if none does.
    pub seq: Option<SeqId>,
}

/// State of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CellKind {
    /// No sequence holds the block, and it has no content.
    Free,
    /// No sequence holds the block, and a later request can hit its content.
    Cached,
    /// One sequence holds the block.
    Held,
    /// Several sequences hold the block.
    Shared,
}

const KINDS: [CellKind; 4] = [CellKind::Free, CellKind::Cached, CellKind::Held, CellKind::Shared];

impl Serialize for CellRun {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.cells, self.kind, self.seq.map(SeqId::get)).serialize(serializer)
    }
}

/// The first holder of each block, by id.
#[derive(Debug)]
pub(crate) struct Owners(Vec<Option<SeqId>>);

impl Owners {
    pub(crate) fn new(pool: &BlockPool) -> Self {
        Self(vec![None; pool.num_usable() as usize + 1])
    }

    /// Records `seq` as a holder of the blocks of a table.
    pub(crate) fn add(&mut self, seq: SeqId, table: &[BlockId]) {
        for block in table.iter().filter(|block| !block.is_null()) {
            self.0[block.index()].get_or_insert(seq);
        }
    }

    /// Returns the map of the pool. O(blocks). The first `on_device` blocks, the null block included, are on the
    /// device.
    pub(crate) fn map(&self, pool: &BlockPool, on_device: u32) -> BlockMap {
        // The null block is no cell.
        let blocks: Vec<BlockId> = (1..=pool.num_usable()).map(BlockId::new).collect();
        let device_blocks = on_device.saturating_sub(1).min(pool.num_usable());
        let per_cell = pool.num_usable().div_ceil(MAX_CELLS - 1).max(1);
        // No cell has blocks of both places.
        let (device, host) = blocks.split_at(device_blocks as usize);
        let cells = device.chunks(per_cell as usize).chain(host.chunks(per_cell as usize));
        let mut map = BlockMap { blocks_per_cell: per_cell, cells: 0, device_cells: 0, runs: Vec::new() };
        map.device_cells = device_blocks.div_ceil(per_cell);
        for cell in cells {
            let (kind, seq) = self.cell(pool, cell);
            map.cells += 1;
            match map.runs.last_mut() {
                Some(run) if (run.kind, run.seq) == (kind, seq) => run.cells += 1,
                _ => map.runs.push(CellRun { cells: 1, kind, seq }),
            }
        }
        map
    }

    /// Returns the state that most blocks of a cell have, and the first holder of these blocks.
    fn cell(&self, pool: &BlockPool, blocks: &[BlockId]) -> (CellKind, Option<SeqId>) {
        let kind = |block: BlockId| match pool.ref_count(block) {
            0 if pool.hash(block).is_some() => CellKind::Cached,
            0 => CellKind::Free,
            1 => CellKind::Held,
            _ => CellKind::Shared,
        };
        let mut counts = [0_u32; KINDS.len()];
        for block in blocks {
            counts[kind(*block) as usize] += 1;
        }
        let most = KINDS.into_iter().max_by_key(|kind| counts[*kind as usize]).expect("there are kinds");
        let of_most = blocks.iter().filter(|block| kind(**block) == most);
        (most, of_most.filter_map(|block| self.0[block.index()]).next())
    }
}

#[cfg(test)]
mod tests {
    use kvblock::{BlockSize, PoolOptions};
    use proptest::prelude::*;

    use super::*;

    fn pool(usable: u32) -> BlockPool {
        BlockPool::new(usable + 1, BlockSize::new(16).unwrap(), PoolOptions::CACHING)
    }

    #[test]
    fn cells_say_who_holds_them() {
        let mut pool = pool(10);
        let (one, two) = (pool.allocate(3).unwrap(), pool.allocate(2).unwrap());
        pool.touch(&one[..1]).unwrap();
        let mut owners = Owners::new(&pool);
        owners.add(SeqId::new(7), &one);
        owners.add(SeqId::new(8), &[&[BlockId::NULL, one[0]], &two[..]].concat());
        let map = owners.map(&pool, 8);
        assert_eq!((map.blocks_per_cell, map.cells, map.device_cells), (1, 10, 7));
        insta::assert_snapshot!(
            serde_json::to_string(&map.runs).unwrap(),
            @r#"[[1,"shared",7],[2,"held",7],[2,"held",8],[5,"free",null]]"#
        );
    }

    proptest! {
        #[test]
        fn large_pools_are_drawn_small(usable in 1_u32..20_000, on_device in 0_u32..25_000) {
            let pool = pool(usable);
            let map = Owners::new(&pool).map(&pool, on_device);
            prop_assert!(map.cells <= MAX_CELLS && map.device_cells <= map.cells);
            prop_assert!(map.cells * map.blocks_per_cell >= usable);
            prop_assert_eq!(map.runs.iter().map(|run| run.cells).sum::<u32>(), map.cells);
        }
    }
}
