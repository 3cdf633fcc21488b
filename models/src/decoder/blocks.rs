//! Reads, writes and copies of whole blocks of the cache.

use std::sync::Arc;

use attn_kernels::gpu::{Gpu, Pass, Pipeline, Read, Submission};
use attn_kernels::kernel::copy_blocks::{CopyBlocksBuffers, CopyBlocksParams};
use attn_kernels::rows::{BlockCopy, KvWord};
use kvblock::BlockId;
use prefetch::spill::SpillRun;

use crate::{KvPool, ModelError};

/// A pending read of blocks.
#[derive(Debug)]
#[must_use = "the contents arrive with finish"]
pub struct BlockRead(Vec<StageRead>);

/// A read of the layers of one device.
#[derive(Debug)]
struct StageRead {
    gpu: Arc<Gpu>,
    runs: Vec<RunRead>,
    /// Number of bytes of a block in each buffer.
    part_bytes: Vec<usize>,
    submission: Submission,
}

/// A run of blocks with consecutive ids that are stored together.
#[derive(Debug)]
enum RunRead {
    /// Number of blocks, and their parts of every buffer.
    Buffers(usize, Vec<Read<KvWord>>),
    /// Contents of blocks on disk.
    Disk(Vec<Arc<[u8]>>),
}

impl BlockRead {
    /// Maximum number of blocks that one read stages.
    pub const MAX_BLOCKS: usize = 32;

    /// Waits for the contents of the blocks, and returns them in the order of the read. The contents of a block are its
    /// parts of all buffers of the cache. Any thread may wait while others submit.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn finish(self) -> Result<Vec<Arc<[u8]>>, ModelError> {
        let mut stages = self.0.into_iter().map(StageRead::finish);
        let first = stages.next().expect("a read has a stage")?;
        stages.try_fold(first, |all, stage| {
            Ok(all.iter().zip(stage?).map(|(all, part)| [&all[..], &part].concat().into()).collect())
        })
    }

    /// Adds a read of the same blocks in later layers.
    pub(crate) fn and(mut self, later: Self) -> Self {
        self.0.extend(later.0);
        self
    }
}

impl StageRead {
    fn finish(self) -> Result<Vec<Arc<[u8]>>, ModelError> {
        let Self { gpu, runs, part_bytes, submission } = self;
        let block_bytes: usize = part_bytes.iter().sum();
        let contents = gpu.collect_beside(submission, |landed| {
            let block = |reads: &[Read<KvWord>], block: usize| {
                let mut contents: Arc<[u8]> = std::iter::repeat_n(0, block_bytes).collect();
                let mut rest = Arc::get_mut(&mut contents).expect("nobody shares it yet");
                for (read, bytes) in reads.iter().zip(&part_bytes) {
                    let (part, others) = rest.split_at_mut(*bytes);
                    part.copy_from_slice(&landed.bytes(read)[block * bytes..][..*bytes]);
                    rest = others;
                }
                contents
            };
            let of_run = |run: RunRead| match run {
                RunRead::Buffers(blocks, reads) => (0..blocks).map(|n| block(&reads, n)).collect(),
                RunRead::Disk(contents) => contents,
            };
            runs.into_iter().flat_map(of_run).collect()
        })?;
        Ok(contents)
    }
}

/// Access to the blocks of a pool.
pub(super) struct Blocks<'a> {
    pub(super) gpu: &'a Arc<Gpu>,
    pub(super) kv: &'a KvPool,
    pub(super) copy: &'a Arc<Pipeline>,
}

impl Blocks<'_> {
    /// Copies blocks in every buffer. In the pairs `(source, destination)`, no destination may be a source.
    pub(super) fn copy(&self, pairs: &[(BlockId, BlockId)]) -> Result<(), ModelError> {
        let on_disk = |id: &BlockId| self.kv.on_disk(id.get()).is_some();
        let by_host =
            |(from, to): &(BlockId, BlockId)| self.kv.host_writes(to.get()) || on_disk(from) || on_disk(to);
        let (by_host, pairs): (Vec<(BlockId, BlockId)>, Vec<_>) =
            pairs.iter().partition(|pair| by_host(pair));
        let contents = self.read(&by_host.iter().map(|(from, _)| *from).collect::<Vec<_>>())?;
        for ((_, to), contents) in by_host.iter().zip(&contents) {
            self.write(*to, contents)?;
        }
        // Copies inside a buffer need a kernel, those between host and device must not name one.
        let inside = |(from, to): &(BlockId, BlockId)| self.kv.together(from.get(), to.get());
        let (inside, across): (Vec<(BlockId, BlockId)>, Vec<_>) = pairs.iter().partition(|pair| inside(pair));
        for some in inside.chunk_by(|a, b| self.kv.together(a.0.get(), b.0.get())) {
            for some in some.chunks(65_535) {
                self.copy_inside(some)?;
            }
        }
        if across.is_empty() {
            return Ok(());
        }
        let mut pass = Pass::new("copy_blocks");
        for (from, to) in &across {
            let ((sources, from), (targets, to)) =
                (self.kv.buffers_of(from.get()), self.kv.buffers_of(to.get()));
            for ((source, words), (target, _)) in sources.zip(targets) {
                pass.copy(source, from * words..(from + 1) * words, target, to * words);
            }
        }
        self.gpu.submit(pass)?.wait()?;
        Ok(())
    }

    /// Copies blocks that are all in the same buffers.
    fn copy_inside(&self, pairs: &[(BlockId, BlockId)]) -> Result<(), ModelError> {
        let index = |id: &BlockId| u32::try_from(self.kv.buffers_of(id.get()).1).expect("ids are u32");
        let copy = |(from, to): &(BlockId, BlockId)| BlockCopy { from: index(from), to: index(to) };
        let list: Vec<BlockCopy> = pairs.iter().map(copy).collect();
        let copies = u32::try_from(list.len()).expect("at most 65,535");
        let list = self.gpu.upload("copies", &list)?;
        let mut pass = Pass::new("copy_blocks");
        for (buffer, words) in self.kv.buffers_of(pairs[0].0.get()).0 {
            let block_quads = u32::try_from(words / 4).expect("a block is far smaller than 64 GiB");
            let params = CopyBlocksParams { block_quads, copies };
            let buffers = CopyBlocksBuffers { pairs: list.bind(), cache: buffer.bind() };
            pass.dispatch(self.copy, &params, buffers);
        }
        self.gpu.submit(pass)?.wait()?;
        self.gpu.forget_bind_groups();
        Ok(())
    }

    /// Reads the contents of blocks: the block's part of every buffer of the cache.
    pub(super) fn read(&self, blocks: &[BlockId]) -> Result<Vec<Vec<u32>>, ModelError> {
        let mut contents = Vec::with_capacity(blocks.len());
        for some in blocks.chunks(BlockRead::MAX_BLOCKS) {
            let read = self.begin_read(some)?.finish()?;
            contents.extend(read.iter().map(|block| bytemuck::pod_collect_to_vec(block)));
        }
        Ok(contents)
    }

    /// Starts reading blocks as they are after the steps so far.
    pub(super) fn begin_read(&self, blocks: &[BlockId]) -> Result<BlockRead, ModelError> {
        assert!(
            blocks.len() <= BlockRead::MAX_BLOCKS,
            "{} blocks of at most {}",
            blocks.len(),
            BlockRead::MAX_BLOCKS
        );
        self.kv.check_blocks(blocks.iter().map(|block| block.get()))?;
        let mut pass = Pass::new("read_blocks");
        let mut runs = Vec::new();
        // Neighbours are read as one: pools hand blocks out in order.
        let follows = |a: u32, b: u32| a + 1 == b && self.kv.together(a, b);
        for run in blocks.chunk_by(|a, b| follows(a.get(), b.get())) {
            if let Some(first) = self.kv.on_disk(run[0].get()) {
                runs.push(RunRead::Disk(self.read_disk(first, run.len())?));
                continue;
            }
            let (buffers, first) = self.kv.buffers_of(run[0].get());
            let parts = |words| first * words..(first + run.len()) * words;
            let reads = buffers.map(|(buffer, words)| pass.read(buffer, parts(words)));
            runs.push(RunRead::Buffers(run.len(), reads.collect()));
        }
        let part_bytes = self.kv.buffers().map(|(_, words)| words * 4).collect();
        let (gpu, submission) = (Arc::clone(self.gpu), self.gpu.submit(pass)?.defer());
        Ok(BlockRead(vec![StageRead { gpu, runs, part_bytes, submission }]))
    }

    /// Reads the contents of `len` blocks on disk, starting with `first`.
    fn read_disk(&self, first: u32, len: usize) -> Result<Vec<Arc<[u8]>>, ModelError> {
        let spill = self.kv.spill().expect("blocks on disk have a file");
        let shape = spill.shape();
        let blocks = first..first + u32::try_from(len).expect("a read has few blocks");
        let of_region = |region| SpillRun { region, blocks: blocks.clone() };
        let regions: Vec<SpillRun> = (0..shape.regions).map(of_region).collect();
        let mut contents = vec![Vec::new(); len];
        for piece in spill.read(&regions) {
            if let Some(lost) = piece.lost.into_iter().next() {
                return Err(lost.into());
            }
            let at = (piece.run.blocks.start - first) as usize;
            for (block, part) in contents[at..].iter_mut().zip(piece.bytes.chunks_exact(shape.block_bytes)) {
                block.extend_from_slice(part);
            }
        }
        Ok(contents.into_iter().map(Arc::from).collect())
    }

    /// Writes the contents of a block.
    pub(super) fn write(&self, block: BlockId, contents: &[u32]) -> Result<(), ModelError> {
        let words: usize = self.kv.buffers().map(|(_, words)| words).sum();
        assert_eq!(contents.len(), words, "words of a block");
        if let (Some(number), Some(spill)) = (self.kv.on_disk(block.get()), self.kv.spill()) {
            let parts = bytemuck::cast_slice(contents).chunks_exact(spill.shape().block_bytes);
            for (region, part) in (0..).zip(parts) {
                spill.write(SpillRun { region, blocks: number..number + 1 }, part.to_vec());
            }
            return Ok(());
        }
        let mut rest = contents;
        let (buffers, index) = self.kv.buffers_of(block.get());
        let writes = buffers.map(|(buffer, words)| {
            let (part, others) = rest.split_at(words);
            rest = others;
            (buffer, index * words, bytemuck::cast_slice(part))
        });
        if self.kv.host_writes(block.get()) {
            return Ok(self.gpu.write_mapped(&writes.collect::<Vec<_>>())?);
        }
        writes.for_each(|(buffer, at, part)| self.gpu.write(buffer, at, part));
        Ok(())
    }
}
