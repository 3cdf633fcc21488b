//! Compares the disk tier with sequential reads of the same disk, without the page cache: nine rounds by turns, and
//! one line of JSON with medians, minima and maxima.
//!
//! `cargo run --release -p pagoda-prefetch --features disk --example disk_speed -- FOLDER [BLOCKS]`
#![expect(clippy::print_stdout, reason = "the speeds")]

use std::error::Error;

/// Bytes of a block: 16 tokens of 8 layers, 8 KV heads of 128 in f16.
const BLOCK_BYTES: u32 = 524_288;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("give a folder on the disk")?;
    let blocks: u32 = args.next().map_or(Ok(512), |blocks| blocks.parse())?;
    println!("{}", disk::measure(folder.as_ref(), blocks, BLOCK_BYTES)?);
    Ok(())
}

#[cfg(not(target_os = "linux"))]
mod disk {
    /// Refuses: direct I/O and dropping pages from the cache are implemented for Linux only.
    pub(crate) fn measure(_: &std::path::Path, _: u32, _: u32) -> Result<String, Box<dyn std::error::Error>> {
        Err("disks are measured on Linux alone".into())
    }
}

#[cfg(target_os = "linux")]
pub(crate) mod disk {
    use std::collections::VecDeque;
    use std::error::Error;
    use std::fs::{self, File, OpenOptions};
    use std::io::{Read, Seek, Write};
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use kvblock::{BlockHash, SeqId};
    use prefetch::engine::{Engine, EngineConfig, Handle, Submission, TaskKey, TaskOutcome};
    use prefetch::plan::Priority;
    use prefetch::stack::TierStack;
    use prefetch::tier::{BlockLayout, DiskConfig, DiskTier};
    use rustix::fs::{Advice, OFlags, fadvise};

    type Result<T> = std::result::Result<T, Box<dyn Error>>;

    /// Number of bytes to which memory and offsets of direct I/O are aligned.
    const ALIGN: usize = 4096;
    /// Number of layers of a block.
    const LAYERS: u32 = 8;
    /// Number of blocks of one load task.
    const TASK: usize = 64;
    /// Number of times that both ways read everything.
    const ROUNDS: u32 = 9;

    /// Writes blocks below `folder` and reads them through the prefetch engine, checksums included, and as one file with direct
    /// I/O, a block at a time. Nothing of them is in the page cache.
    pub(crate) fn measure(folder: &Path, blocks: u32, block_bytes: u32) -> Result<String> {
        fs::create_dir_all(folder)?;
        let folder = tempfile::tempdir_in(folder)?;
        let mut direct = Direct::write(&folder.path().join("sequential"), blocks, block_bytes)?;
        let tier = Tier::write(&folder.path().join("tier"), blocks, block_bytes)?;
        let rate = |time: Duration| f64::from(blocks) * f64::from(block_bytes) / time.as_secs_f64() / 1e9;
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
        let shares = of_tier.iter().zip(&of_direct).map(|(tier, direct)| tier / direct).collect();
        Ok(format!(
            "{{\"blocks\":{blocks},\"block_bytes\":{block_bytes},\"tier_gb_s\":{},\"direct_gb_s\":{},\"of_direct\":{}}}",
            median(of_tier),
            median(of_direct),
            median(shares)
        ))
    }

    fn median(mut values: Vec<f64>) -> String {
        values.sort_by(f64::total_cmp);
        let [low, middle, high] = [0, values.len() / 2, values.len() - 1].map(|at| values[at]);
        format!("{{\"median\":{middle:.3},\"low\":{low:.3},\"high\":{high:.3}}}")
    }

    /// Fills a block with bytes that no disk compresses.
    fn fill(block: &mut [u8], seed: u64) {
        let mut state = seed | 1;
        for word in block.chunks_exact_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.copy_from_slice(&(state ^ state >> 29).to_le_bytes());
        }
    }

    /// A file for sequential reads with direct I/O.
    struct Direct {
        file: File,
        blocks: u32,
        /// Buffer for one block, with space for its alignment.
        room: Vec<u8>,
    }

    impl Direct {
        fn write(path: &Path, blocks: u32, block_bytes: u32) -> Result<Self> {
            let mut file = File::create(path)?;
            let mut block = vec![0; block_bytes as usize];
            for seed in 0..blocks {
                fill(&mut block, seed.into());
                file.write_all(&block)?;
            }
            file.sync_all()?;
            drop(file);
            let flags = OFlags::DIRECT.bits().cast_signed();
            let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
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

    /// A disk tier with blocks, and the engine that loads from it.
    struct Tier {
        directory: PathBuf,
        blocks: Vec<BlockHash>,
        engine: Engine,
    }

    impl Tier {
        fn write(directory: &Path, blocks: u32, block_bytes: u32) -> Result<Self> {
            let layout = BlockLayout::new(LAYERS, block_bytes / LAYERS).ok_or("a layout of blocks")?;
            let capacity_bytes = 2 * u64::from(blocks) * u64::from(block_bytes);
            let mut config = DiskConfig::new(directory, layout, "disk speed", capacity_bytes);
            config.direct = true;
            let stack = TierStack::new(vec![Arc::new(DiskTier::open(config)?)])?;
            let name = |n: u32| {
                let mut name = [7; 32];
                name[..4].copy_from_slice(&n.to_le_bytes());
                BlockHash::from_bytes(name)
            };
            let blocks: Vec<BlockHash> = (0..blocks).map(name).collect();
            let mut block = vec![0; block_bytes as usize];
            for (seed, name) in (1_u64 << 32..).zip(&blocks) {
                fill(&mut block, seed);
                stack.store(*name, &block)?;
            }
            stack.flush()?;
            let config = EngineConfig::GSA.prefetch_cache_size(4 * TASK);
            let engine = Engine::new(Arc::new(stack), config)?;
            Ok(Self { directory: directory.to_owned(), blocks, engine })
        }

        /// Measures the time to load all blocks after they were dropped from the page cache.
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
                    self.take(running.pop_front())?;
                }
            }
            while !running.is_empty() {
                self.take(running.pop_front())?;
            }
            Ok(begin.elapsed())
        }

        /// Waits for a task and takes its blocks out of the engine.
        fn take(&self, task: Option<(&[BlockHash], Handle)>) -> Result<()> {
            let Some((blocks, handle)) = task else { return Ok(()) };
            let outcome = handle.wait(Duration::from_secs(60));
            if !matches!(outcome, TaskOutcome::Ready { .. }) {
                return Err(format!("a load ended as {outcome:?}").into());
            }
            for block in blocks {
                self.engine.give_back(self.engine.take(*block).ok_or("a block was loaded and is not there")?);
            }
            Ok(())
        }
    }
}
