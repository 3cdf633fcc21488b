//! The disk tier beside sequential reads of the same disk, both of what is not in the page cache.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kvblock::{BlockHash, SeqId};
use prefetch::engine::{Engine, EngineConfig, Outcome, Submission, TaskKey};
use prefetch::plan::Priority;
use prefetch::stack::TierStack;
use prefetch::tier::{BlockLayout, DiskConfig, DiskTier};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::fs::{Advice, fadvise};
use serde::Serialize;

use super::plan::Plan;
use crate::bench::paired::Median;

/// Speeds of both ways, in rounds by turns.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) blocks: u32,
    pub(super) block_bytes: u32,
    /// Loads of the prefetch engine, checksums included.
    pub(super) tier_gb_s: Median,
    /// One file read from its start with direct I/O, a block at a time.
    pub(super) direct_gb_s: Median,
    /// The first over the second, round by round.
    pub(super) of_direct: Median,
}

/// Memory and offsets of direct I/O are multiples of this.
const ALIGN: usize = 4096;

/// Blocks of one load task.
const TASK: usize = 64;

/// Times that both ways read everything.
const ROUNDS: u32 = 9;

/// Writes blocks below `folder`, and reads them in both ways, each time with nothing of them in the page cache.
///
/// # Errors
/// A disk that has no room, or no direct I/O.
pub(super) fn measure(folder: &Path, plan: &Plan) -> Result<Row> {
    let token = 2 * 2 * plan.kv_heads * plan.head_dim * plan.layers;
    let block_bytes = token * plan.block_size;
    ensure!((block_bytes as usize).is_multiple_of(ALIGN), "blocks of {block_bytes} bytes for direct I/O");
    fs::create_dir_all(folder).with_context(|| format!("{}: cannot be created", folder.display()))?;
    let folder = tempfile::tempdir_in(folder)?;
    let mut direct = Direct::write(&folder.path().join("sequential"), plan.disk_blocks, block_bytes)?;
    let tier = Tier::write(&folder.path().join("tier"), plan, block_bytes)?;
    let bytes = f64::from(plan.disk_blocks) * f64::from(block_bytes);
    let rate = |time: Duration| bytes / time.as_secs_f64() / 1e9;
    let (mut of_tier, mut of_direct) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // Neither is always the one that follows the other.
        if round % 2 == 0 {
            of_direct.push(rate(direct.read()?));
        }
        of_tier.push(rate(tier.read(round)?));
        if round % 2 == 1 {
            of_direct.push(rate(direct.read()?));
        }
    }
    Ok(Row {
        blocks: plan.disk_blocks,
        block_bytes,
        of_direct: Median::of(of_tier.iter().zip(&of_direct).map(|(tier, direct)| tier / direct)),
        tier_gb_s: Median::of(of_tier),
        direct_gb_s: Median::of(of_direct),
    })
}

/// A file for sequential reads with direct I/O.
struct Direct {
    file: File,
    blocks: u32,
    /// A block, and what aligns it.
    room: Vec<u8>,
}

impl Direct {
    fn write(path: &Path, blocks: u32, block_bytes: u32) -> Result<Self> {
        let mut file = File::create(path)?;
        let mut block = vec![0; block_bytes as usize];
        let mut random = StdRng::seed_from_u64(4);
        for _ in 0..blocks {
            random.fill(&mut block[..]);
            file.write_all(&block)?;
        }
        file.sync_all()?;
        drop(file);
        let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = file.with_context(|| format!("{}: direct I/O", path.display()))?;
        Ok(Self { file, blocks, room: vec![0; block_bytes as usize + ALIGN] })
    }

    fn read(&mut self) -> Result<Duration> {
        let start = self.room.as_ptr().align_offset(ALIGN);
        let block = self.room.len() - ALIGN;
        self.file.rewind()?;
        let begin = Instant::now();
        for _ in 0..self.blocks {
            self.file.read_exact(&mut self.room[start..start + block])?;
        }
        Ok(begin.elapsed())
    }
}

/// A disk tier that was written, and the engine that loads from it.
struct Tier {
    directory: PathBuf,
    blocks: Vec<BlockHash>,
    engine: Engine,
}

impl Tier {
    fn write(directory: &Path, plan: &Plan, block_bytes: u32) -> Result<Self> {
        let layout =
            BlockLayout::new(plan.layers, block_bytes / plan.layers).context("a layout of blocks")?;
        let capacity_bytes = 2 * u64::from(plan.disk_blocks) * u64::from(block_bytes);
        let mut config = DiskConfig::new(directory, layout, "bench offload", capacity_bytes);
        config.direct = true;
        let tier = DiskTier::open(config)?;
        let name = |n: u32| {
            let mut name = [7; 32];
            name[..4].copy_from_slice(&n.to_le_bytes());
            BlockHash::from_bytes(name)
        };
        let blocks: Vec<BlockHash> = (0..plan.disk_blocks).map(name).collect();
        let stack = TierStack::new(vec![Arc::new(tier)])?;
        let mut random = StdRng::seed_from_u64(5);
        let mut block = vec![0; block_bytes as usize];
        for name in &blocks {
            random.fill(&mut block[..]);
            stack.store(*name, &block)?;
        }
        stack.flush()?;
        let config = EngineConfig::GSA.prefetch_cache_size(4 * TASK);
        let engine = Engine::new(Arc::new(stack), config)?;
        Ok(Self { directory: directory.to_owned(), blocks, engine })
    }

    /// Time of loads of all blocks, once they are dropped from the page cache.
    fn read(&self, round: u32) -> Result<Duration> {
        for file in fs::read_dir(&self.directory)? {
            let file = File::open(file?.path())?;
            file.sync_all()?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
        let begin = Instant::now();
        let mut running = VecDeque::new();
        for (task, some) in (1..).zip(self.blocks.chunks(TASK)) {
            let key = TaskKey { seq: SeqId::new(task), generation: u64::from(round) + 1 };
            let task = Submission::new(key, Priority::Urgent, some.to_vec());
            running.push_back((some, self.engine.submit(task)?));
            if running.len() > 2 {
                take(&self.engine, running.pop_front())?;
            }
        }
        while !running.is_empty() {
            take(&self.engine, running.pop_front())?;
        }
        Ok(begin.elapsed())
    }
}

/// Waits for a task and takes its blocks out of the engine.
fn take(engine: &Engine, task: Option<(&[BlockHash], prefetch::engine::Handle)>) -> Result<()> {
    let Some((blocks, handle)) = task else { return Ok(()) };
    let outcome = handle.wait(Duration::from_secs(60));
    ensure!(matches!(outcome, Outcome::Ready { .. }), "a load ended as {outcome:?}");
    for block in blocks {
        engine.give_back(engine.take(*block).context("a block was loaded and is not there")?);
    }
    Ok(())
}
