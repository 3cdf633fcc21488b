//! The index file: hash to slot and checksums, in redb.

use std::path::Path;
use std::sync::Arc;

use kvblock::BlockHash;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::failed;
use crate::tier::{BlockLayout, TierError, TierKind};

/// Hash to (order of writing, slot, checksums by shard as little-endian u64).
const BLOCKS: TableDefinition<'_, [u8; 32], (u64, u32, &[u8])> = TableDefinition::new("blocks");
/// What the directory holds.
const ABOUT: TableDefinition<'_, &str, &str> = TableDefinition::new("about");
/// Version of slabs and index.
const FORMAT: u32 = 1;

/// One block of the index file.
pub(super) struct Row {
    pub(super) key: BlockHash,
    pub(super) slot: u32,
    /// `[shards]`
    pub(super) sums: Arc<[u64]>,
}

pub(super) struct Catalog {
    database: Database,
    /// Order of writing of the next block.
    next_stamp: u64,
}

impl Catalog {
    /// Opens or creates the index file and returns its rows in the order they were written.
    pub(super) fn open(
        directory: &Path,
        layout: BlockLayout,
        namespace: &str,
    ) -> Result<(Self, Vec<Row>), TierError> {
        let database =
            Database::create(directory.join("index.redb")).map_err(|e| failed("opening the index", e))?;
        let about = format!(
            "format {FORMAT}, {} shards of {} bytes, {namespace}",
            layout.shards(),
            layout.shard_bytes()
        );
        let found = describe(&database, &about).map_err(|e| failed("preparing the index", e))?;
        if found != about {
            return Err(TierError::Mismatch {
                tier: TierKind::Disk,
                found: found.into(),
                expected: about.into(),
            });
        }
        let mut rows = read_rows(&database).map_err(|e| failed("reading the index", e))?;
        rows.sort_unstable_by_key(|(stamp, _)| *stamp);
        let next_stamp = rows.last().map_or(0, |(stamp, _)| stamp + 1);
        Ok((Self { database, next_stamp }, rows.into_iter().map(|(_, row)| row).collect()))
    }

    /// Removes and adds blocks in one durable step, removals first.
    pub(super) fn commit(&mut self, removed: &[BlockHash], added: &[Row]) -> Result<(), TierError> {
        self.try_commit(removed, added).map_err(|e| failed("committing the index", e))
    }

    fn try_commit(&mut self, removed: &[BlockHash], added: &[Row]) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut blocks = transaction.open_table(BLOCKS)?;
            for key in removed {
                blocks.remove(key.as_bytes())?;
            }
            for row in added {
                let sums: Vec<u8> = row.sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
                blocks.insert(row.key.as_bytes(), (self.next_stamp, row.slot, &sums[..]))?;
                self.next_stamp += 1;
            }
        }
        Ok(transaction.commit()?)
    }
}

/// The description stored in a database; writes `about` into a new one.
fn describe(database: &Database, about: &str) -> Result<String, redb::Error> {
    let transaction = database.begin_write()?;
    let found = {
        transaction.open_table(BLOCKS)?;
        let mut table = transaction.open_table(ABOUT)?;
        let found = table.get("blocks")?.map(|value| value.value().to_owned());
        match found {
            Some(found) => found,
            None => {
                table.insert("blocks", about)?;
                about.to_owned()
            }
        }
    };
    transaction.commit()?;
    Ok(found)
}

fn read_rows(database: &Database) -> Result<Vec<(u64, Row)>, redb::Error> {
    let transaction = database.begin_read()?;
    let blocks = transaction.open_table(BLOCKS)?;
    let mut rows = Vec::new();
    for entry in blocks.iter()? {
        let (key, value) = entry?;
        let (stamp, slot, sums) = value.value();
        let sums = sums.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        rows.push((stamp, Row { key: BlockHash::from_bytes(key.value()), slot, sums }));
    }
    Ok(rows)
}
