//! Attention to long prefixes chunk by chunk: the rows that read each chunk, and the block tables of the chunks. The
//! module has no kernel of its own: `prefix_slots` fills the tables, `paged_prefill` attends, `lse_merge` merges
//! (SGLang's chunked prefix cache).

use super::LaunchError;
use super::error::Launch;
use super::paged_prefill::Tile;

const LAUNCH: Launch = Launch("chunked_prefix");

/// Consecutive query rows of one sequence that follow a cached prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefixRows {
    /// First row of queries and output.
    pub row: u32,
    /// Number of rows.
    pub rows: u32,
    /// Number of tokens before the first row.
    pub prefix: u32,
    /// First entry of the sequence's block table.
    pub table: u32,
}

/// The attention of a batch, cut into chunks of `share` positions.
///
/// A chunk is attended by the rows whose prefix covers it whole, without a mask; what is left of a prefix, less than a
/// chunk, is attended with the rows' own tokens, under the causal mask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkedPrefix {
    /// Number of tokens of a sequence in a chunk.
    pub share: u32,
    /// Spans of `prefix_slots` over *blocks* (its block size is 1): first block, blocks, first entry of the chunks' tables,
    /// first entry of the sequence's block table.
    pub spans: Vec<[u32; 4]>,
    /// Number of entries of the chunks' tables.
    pub entries: u32,
    /// Tiles of each chunk, by the position of the chunk; they use the block tables of the chunks.
    pub chunks: Vec<Vec<Tile>>,
    /// Tiles of the causal rest; they use the block tables of the sequences.
    pub rest: Vec<Tile>,
}

impl ChunkedPrefix {
    /// Cuts the prefixes of `sequences` into chunks of `capacity / sequences` tokens each, rounded down to whole blocks
    /// and to the eight keys of a tile; tiles have at most `tile_rows` rows.
    ///
    /// # Errors
    /// If a sequence's share of `capacity` is less than a block.
    pub fn new(
        sequences: &[PrefixRows],
        capacity: u32,
        block_size: u32,
        tile_rows: u32,
    ) -> Result<Self, LaunchError> {
        LAUNCH.not_zero("rows of a tile", tile_rows)?;
        LAUNCH.power_of_two("block size", block_size)?;
        let unit = block_size.max(8);
        let count = u32::try_from(sequences.len()).unwrap_or(u32::MAX).max(1);
        let share = capacity / count / unit * unit;
        LAUNCH.at_most(
            "sequences times the smallest chunk",
            u64::from(count) * u64::from(unit),
            capacity.into(),
        )?;
        let mut plan = Self { share, spans: Vec::new(), entries: 0, chunks: Vec::new(), rest: Vec::new() };
        let blocks = share / block_size;
        for sequence in sequences {
            let whole = sequence.prefix / share;
            for chunk in 0..whole {
                plan.spans.push([chunk * blocks, blocks, plan.entries, sequence.table]);
                let tiles = tiles(sequence, chunk * share, plan.entries, tile_rows);
                if plan.chunks.len() <= chunk as usize {
                    plan.chunks.push(Vec::new());
                }
                plan.chunks[chunk as usize].extend(tiles);
                plan.entries += blocks;
            }
            let table = sequence.table + whole * blocks;
            plan.rest.extend(tiles(sequence, whole * share, table, tile_rows));
        }
        Ok(plan)
    }
}

/// Returns the rows of a sequence as tiles over `table`, with positions counted from `start`, the first position of
/// the table.
fn tiles(of: &PrefixRows, start: u32, table: u32, tile_rows: u32) -> impl Iterator<Item = Tile> {
    let of = *of;
    (0..of.rows).step_by(tile_rows as usize).map(move |row| {
        let rows = row..of.rows.min(row + tile_rows);
        Tile::new(of.row + rows.start..of.row + rows.end, of.prefix - start + row, table)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_covers_every_position_once() {
        let sequences = [
            PrefixRows { row: 0, rows: 5, prefix: 70, table: 0 },
            PrefixRows { row: 5, rows: 3, prefix: 10, table: 10 },
            PrefixRows { row: 8, rows: 1, prefix: 32, table: 14 },
        ];
        let plan = ChunkedPrefix::new(&sequences, 96, 16, 4).unwrap();
        assert_eq!((plan.share, plan.entries), (32, 6));
        assert_eq!(plan.spans, [[0, 2, 0, 0], [2, 2, 2, 0], [0, 2, 4, 14]]);
        let drawn =
            |tiles: &[Tile]| tiles.iter().map(|t| (t.row, t.rows, t.position, t.table)).collect::<Vec<_>>();
        assert_eq!(plan.chunks.len(), 2);
        assert_eq!(drawn(&plan.chunks[0]), [(0, 4, 70, 0), (4, 1, 74, 0), (8, 1, 32, 4)]);
        assert_eq!(drawn(&plan.chunks[1]), [(0, 4, 38, 2), (4, 1, 42, 2)]);
        assert_eq!(drawn(&plan.rest), [(0, 4, 6, 4), (4, 1, 10, 4), (5, 3, 10, 10), (8, 1, 0, 16)]);
    }

    #[test]
    fn a_share_below_a_block_is_refused() {
        let sequence = PrefixRows { row: 0, rows: 1, prefix: 9, table: 0 };
        let error = ChunkedPrefix::new(&[sequence; 3], 47, 16, 64).unwrap_err();
        let text = "chunked_prefix: sequences times the smallest chunk is 48, the limit is 47";
        assert_eq!(error.to_string(), text);
        assert_eq!(ChunkedPrefix::new(&[], 16, 16, 64).unwrap().rest, []);
    }
}
