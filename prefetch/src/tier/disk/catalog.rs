//! The index file: hash to slot and checksums, in redb.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvblock::BlockHash;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::{failed, slab};
use crate::tier::{BlockLayout, TierError, TierName};

/// Hash to (order of writing, slot, checksums by shard as little-endian u64).
const BLOCKS: TableDefinition<'_, [u8; 32], (u64, u32, &[u8])> = TableDefinition::new("blocks");
/// What the directory holds.
const ABOUT: TableDefinition<'_, &str, &str> = TableDefinition::new("about");
/// The row of [`ABOUT`].
const ABOUT_BLOCKS: &str = "blocks";
/// Version of slabs and index.
const FORMAT: u32 = 1;

/// One block of the index file.
pub(super) struct Row {
    pub(super) key: BlockHash,
    pub(super) slot: u32,
    /// `[shards]`
    pub(super) sums: Arc<[u64]>,
}

/// A row that cannot be checked against its block.
#[derive(thiserror::Error, Debug)]
#[error("block {key:?} has {found} checksums for {expected} shards")]
struct WrongSums {
    key: BlockHash,
    found: usize,
    expected: usize,
}

pub(super) struct Catalog {
    path: PathBuf,
    /// `None` after a failure: redb refuses an index that failed once until it is opened again.
    database: Option<Database>,
    // Dropped last.
    _lock: Lock,
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
        let lock = Lock::take(directory)?;
        let about = format!(
            "format {FORMAT}, {} shards of {} bytes, {namespace}",
            layout.shards(),
            layout.shard_bytes()
        );
        let path = directory.join("index.redb");
        if !path.exists() {
            create(directory, &path, &about)?;
        }
        let database = Database::open(&path).map_err(|e| failed("opening the index", e))?;
        let found = describe(&database).map_err(|e| failed("reading what the index is of", e))?;
        if found != about {
            return Err(TierError::Mismatch {
                tier: TierName::DISK,
                found: found.into(),
                expected: about.into(),
            });
        }
        let mut rows = read_rows(&database).map_err(|e| failed("reading the index", e))?;
        let expected = layout.shards() as usize;
        if let Some((_, Row { key, sums, .. })) = rows.iter().find(|(_, row)| row.sums.len() != expected) {
            let wrong = WrongSums { key: *key, found: sums.len(), expected };
            return Err(failed("reading the index", wrong));
        }
        rows.sort_unstable_by_key(|(stamp, _)| *stamp);
        let next_stamp = rows.last().map_or(0, |(stamp, _)| stamp + 1);
        let database = Some(database);
        Ok((Self { path, database, _lock: lock, next_stamp }, rows.into_iter().map(|(_, row)| row).collect()))
    }

    /// Removes and adds blocks in one durable step, removals first.
    pub(super) fn commit(&mut self, removed: &[BlockHash], added: &[Row]) -> Result<(), TierError> {
        let committed = self.try_commit(removed, added);
        if committed.is_err() {
            self.database = None;
        }
        committed.map_err(|e| failed("committing the index", e))
    }

    fn try_commit(&mut self, removed: &[BlockHash], added: &[Row]) -> Result<(), redb::Error> {
        let database = match self.database.take() {
            Some(database) => database,
            None => Database::open(&self.path)?,
        };
        let transaction = self.database.insert(database).begin_write()?;
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

/// A file that is locked while the tier is open; a process that dies lets go of it.
struct Lock(File);

impl Lock {
    fn take(directory: &Path) -> Result<Self, TierError> {
        let tier = TierName::DISK;
        let file = File::create(directory.join("lock")).map_err(|e| failed("creating the lock", e))?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(TierError::Locked { tier, path: directory.to_owned() }),
            Err(TryLockError::Error(error)) => Err(failed("locking the directory", error)),
        }
    }
}

impl Drop for Lock {
    /// Closing is not enough while a child process that is just being started has the file too.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Makes an empty index for blocks of `about`. It gets its name when it is whole: one that a kill cut short would
/// never open again.
fn create(directory: &Path, path: &Path, about: &str) -> Result<(), TierError> {
    let partial = directory.join("index.redb.new");
    let _ = std::fs::remove_file(&partial);
    let database = Database::create(&partial).map_err(|e| failed("creating the index", e))?;
    let prepare = || -> Result<(), redb::Error> {
        let transaction = database.begin_write()?;
        transaction.open_table(BLOCKS)?;
        transaction.open_table(ABOUT)?.insert(ABOUT_BLOCKS, about)?;
        Ok(transaction.commit()?)
    };
    prepare().map_err(|e| failed("preparing the index", e))?;
    drop(database);
    let named = std::fs::rename(partial, path).and_then(|()| slab::sync_directory(directory));
    named.map_err(|e| failed("naming the index", e))
}

/// What the directory holds.
fn describe(database: &Database) -> Result<String, redb::Error> {
    let about = database.begin_read()?.open_table(ABOUT)?;
    let about = about.get(ABOUT_BLOCKS)?;
    Ok(about.map_or_else(|| "blocks of unknown kind".to_owned(), |about| about.value().to_owned()))
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
