//! The disk tier beside sequential reads of the same disk, both of what is not in the page cache.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kvblock::{BlockHash, SeqId};
use prefetch::engine::{Engine, EngineConfig, Outcome, Submission, TaskKey};
use prefetch::plan::Priority;
use prefetch::policy::PolicyKind;
use prefetch::stack::TierStack;
use prefetch::tier::{BlockLayout, DiskConfig, DiskTier};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::fs::{Advice, fadvise};
use serde::Serialize;

use super::plan::Plan;

/// What both ways reached.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) blocks: u32,
    pub(super) block_bytes: u32,
    /// Loads of the prefetch engine, checksums included.
    pub(super) tier_gb_s: f64,
    /// One file read from its start with direct I/O, a block at a time.
    pub(super) direct_gb_s: f64,
}

/// Memory and offsets of direct I/O are multiples of this.
const ALIGN: usize = 4096;

/// Blocks of one load task.
const TASK: usize = 64;

/// Writes blocks below `folder`, drops them from the page cache, and reads them in both ways.
///
/// # Errors
/// A disk that has no room, or no direct I/O.
pub(super) fn measure(folder: &Path, plan: &Plan) -> Result<Row> {
    let token = 2 * 2 * plan.kv_heads * plan.head_dim * plan.layers;
    let block_bytes = token * plan.block_size;
    ensure!((block_bytes as usize).is_multiple_of(ALIGN), "blocks of {block_bytes} bytes for direct I/O");
    fs::create_dir_all(folder).with_context(|| format!("{}: cannot be created", folder.display()))?;
    let folder = tempfile::tempdir_in(folder)?;
    let direct = direct(&folder.path().join("sequential"), plan.disk_blocks, block_bytes)?;
    let tier = tier(&folder.path().join("tier"), plan, block_bytes)?;
    let bytes = f64::from(plan.disk_blocks) * f64::from(block_bytes);
    let rate = |time: Duration| bytes / time.as_secs_f64() / 1e9;
    let (tier_gb_s, direct_gb_s) = (rate(tier), rate(direct));
    Ok(Row { blocks: plan.disk_blocks, block_bytes, tier_gb_s, direct_gb_s })
}

/// Time of sequential reads of a new file with direct I/O.
fn direct(path: &Path, blocks: u32, block_bytes: u32) -> Result<Duration> {
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
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .with_context(|| format!("{}: direct I/O", path.display()))?;
    let mut room = vec![0_u8; block_bytes as usize + ALIGN];
    let start = room.as_ptr().align_offset(ALIGN);
    let into = &mut room[start..start + block_bytes as usize];
    let begin = Instant::now();
    for _ in 0..blocks {
        file.read_exact(into)?;
    }
    Ok(begin.elapsed())
}

/// Time of loads from a disk tier that was written, closed and dropped from the page cache.
fn tier(directory: &Path, plan: &Plan, block_bytes: u32) -> Result<Duration> {
    let layout = BlockLayout::new(plan.layers, block_bytes / plan.layers).context("a layout of blocks")?;
    let open = || {
        DiskTier::open(DiskConfig {
            directory: directory.to_owned(),
            layout,
            namespace: "bench offload".into(),
            capacity_bytes: 2 * u64::from(plan.disk_blocks) * u64::from(block_bytes),
            policy: PolicyKind::Lru,
            reuse: None,
            blocks_per_sync: 64,
        })
    };
    let name = |n: u32| {
        let mut name = [7; 32];
        name[..4].copy_from_slice(&n.to_le_bytes());
        BlockHash::from_bytes(name)
    };
    let blocks: Vec<BlockHash> = (0..plan.disk_blocks).map(name).collect();
    let stack = TierStack::new(vec![Arc::new(open()?)])?;
    let mut random = StdRng::seed_from_u64(5);
    let mut block = vec![0; block_bytes as usize];
    for name in &blocks {
        random.fill(&mut block[..]);
        stack.store(*name, &block)?;
    }
    stack.flush()?;
    drop(stack);
    for file in fs::read_dir(directory)? {
        let file = File::open(file?.path())?;
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    let stack = Arc::new(TierStack::new(vec![Arc::new(open()?)])?);
    let config = EngineConfig { prefetch_cache_size: 4 * TASK, ..EngineConfig::GSA };
    let engine = Engine::new(stack, config)?;
    let begin = Instant::now();
    let mut running = std::collections::VecDeque::new();
    for (generation, some) in (1..).zip(blocks.chunks(TASK)) {
        let key = TaskKey { seq: SeqId::new(generation), generation };
        let task = Submission { key, step: 0, priority: Priority::Urgent, blocks: some.to_vec() };
        running.push_back((some, engine.submit(task)?));
        if running.len() > 2 {
            take(&engine, running.pop_front())?;
        }
    }
    while !running.is_empty() {
        take(&engine, running.pop_front())?;
    }
    Ok(begin.elapsed())
}

/// Waits for a task and takes its blocks out of the engine.
fn take(engine: &Engine, task: Option<(&[BlockHash], prefetch::engine::Handle)>) -> Result<()> {
    let Some((blocks, handle)) = task else { return Ok(()) };
    let outcome = handle.wait(Duration::from_secs(60));
    ensure!(matches!(outcome, Outcome::Ready { .. }), "a load ended as {outcome:?}");
    ensure!(blocks.iter().all(|block| engine.take(*block).is_some()), "a block was loaded and is not there");
    Ok(())
}
