//! Whole blocks of the cache: copied, read to the host, written from it.

use attn_kernels::gpu::{Pass, Read, Submission};
use attn_kernels::kernel::copy_blocks::{self, CopyBlocksParams};
use kvblock::BlockId;

use super::Decoder;
use crate::ModelError;

/// A read of blocks that is on its way.
#[derive(Debug)]
#[must_use = "the contents arrive with Decoder::finish_read"]
pub struct BlockRead {
    /// Blocks with consecutive ids, and K and V of every layer of each run.
    runs: Vec<(usize, Vec<Read<u32>>)>,
    submission: Submission,
}

impl BlockRead {
    /// Blocks that one read stages.
    pub const MOST: usize = 32;
}

impl Decoder {
    /// Copies blocks in every layer, before the next step: `(source, destination)` pairs of which no destination is a
    /// source.
    ///
    /// # Errors
    /// What the device reports.
    pub fn copy_blocks(&mut self, pairs: &[(BlockId, BlockId)]) -> Result<(), ModelError> {
        let pairs: Vec<[u32; 2]> = pairs.iter().map(|(from, to)| [from.get(), to.get()]).collect();
        let shape = *self.kv.shape();
        let params =
            CopyBlocksParams { block_quads: copy_blocks::block_quads(&shape), pad0: 0, pad1: 0, pad2: 0 };
        for some in pairs.chunks(65_535) {
            let list = self.gpu.upload("copies", some)?;
            let count = u32::try_from(some.len()).expect("at most 65,535");
            let mut pass = Pass::new("copy_blocks");
            for layer in 0..self.layers.len() {
                let (k, v) = self.kv.layer(layer);
                for cache in [k, v] {
                    let bindings = [(&list).into(), cache.into()];
                    let grid = copy_blocks::grid(&shape, count);
                    pass.dispatch(&self.pipelines.copy_blocks, &params, &bindings, grid);
                }
            }
            self.gpu.submit(pass)?.wait()?;
            self.gpu.forget_bind_groups();
        }
        Ok(())
    }

    /// Contents of blocks, as [`write_block`](Self::write_block) takes them: K then V of every layer, in their layouts.
    ///
    /// # Errors
    /// What the device reports.
    pub fn read_blocks(&self, blocks: &[BlockId]) -> Result<Vec<Vec<u32>>, ModelError> {
        let mut contents = Vec::with_capacity(blocks.len());
        for some in blocks.chunks(BlockRead::MOST) {
            contents.append(&mut self.finish_read(self.begin_read(some)?)?);
        }
        Ok(contents)
    }

    /// Begins to read blocks as they are after the steps so far; later steps may overwrite them.
    ///
    /// # Errors
    /// What the device reports.
    ///
    /// # Panics
    /// When there are more than [`BlockRead::MOST`] blocks.
    pub fn begin_read(&self, blocks: &[BlockId]) -> Result<BlockRead, ModelError> {
        assert!(blocks.len() <= BlockRead::MOST, "{} blocks of at most {}", blocks.len(), BlockRead::MOST);
        let words = self.kv.shape().block_bytes() / 4;
        let mut pass = Pass::new("read_blocks");
        let mut runs = Vec::new();
        // Neighbours are read as one: pools hand blocks out in order.
        for run in blocks.chunk_by(|a, b| a.get() + 1 == b.get()) {
            let first = run[0].get() as usize * words;
            let range = first..first + run.len() * words;
            let buffers = (0..self.layers.len()).map(|layer| self.kv.layer(layer));
            let reads = buffers.flat_map(|(k, v)| [k, v]).map(|b| pass.read(b, range.clone())).collect();
            runs.push((run.len(), reads));
        }
        Ok(BlockRead { runs, submission: self.gpu.submit(pass)?.defer() })
    }

    /// Contents of the blocks of a read, in its order.
    ///
    /// # Errors
    /// What the device reports.
    pub fn finish_read(&self, read: BlockRead) -> Result<Vec<Vec<u32>>, ModelError> {
        let words = self.kv.shape().block_bytes() / 4;
        let done = self.gpu.collect(read.submission)?;
        let mut contents = Vec::new();
        for (blocks, reads) in read.runs {
            let first = contents.len();
            contents.resize_with(first + blocks, || Vec::with_capacity(reads.len() * words));
            for read in reads {
                let run: Vec<u32> = done.get(read);
                for (block, part) in contents[first..].iter_mut().zip(run.chunks_exact(words)) {
                    block.extend_from_slice(part);
                }
            }
        }
        Ok(contents)
    }

    /// Writes what [`read_blocks`](Self::read_blocks) read of a block into another, before the next step.
    ///
    /// # Panics
    /// When `contents` is not a block of this cache.
    pub fn write_block(&self, block: BlockId, contents: &[u32]) {
        let words = self.kv.shape().block_bytes() / 4;
        assert_eq!(contents.len(), 2 * self.layers.len() * words, "words of a block");
        let mut parts = contents.chunks_exact(words);
        for layer in 0..self.layers.len() {
            let (k, v) = self.kv.layer(layer);
            for (buffer, part) in [k, v].into_iter().zip(parts.by_ref()) {
                self.gpu.write(buffer, block.get() as usize * words, part);
            }
        }
    }
}
