//! Whole blocks of the cache: copied, read to the host, written from it.

use attn_kernels::gpu::{Pass, Read};
use attn_kernels::kernel::copy_blocks::{self, CopyBlocksParams};
use kvblock::BlockId;

use super::Decoder;
use crate::ModelError;

/// Blocks that one readback stages.
const STAGED: usize = 32;

impl Decoder {
    /// Copies blocks in every buffer, before the next step: `(source, destination)` pairs of which no destination is a
    /// source.
    ///
    /// # Errors
    /// What the device reports.
    pub fn copy_blocks(&mut self, pairs: &[(BlockId, BlockId)]) -> Result<(), ModelError> {
        if let Some(sparse) = &mut self.sparse {
            sparse.forget(pairs.iter().map(|(_, to)| to.get()));
        }
        let pairs: Vec<[u32; 2]> = pairs.iter().map(|(from, to)| [from.get(), to.get()]).collect();
        for some in pairs.chunks(65_535) {
            let list = self.gpu.upload("copies", some)?;
            let count = u32::try_from(some.len()).expect("at most 65,535");
            let mut pass = Pass::new("copy_blocks");
            for (buffer, words) in self.kv.buffers() {
                let block_quads = u32::try_from(words / 4).expect("a block is far smaller than 64 GiB");
                let params = CopyBlocksParams { block_quads, pad0: 0, pad1: 0, pad2: 0 };
                let grid = copy_blocks::grid_of(block_quads, count);
                pass.dispatch(&self.pipelines.copy_blocks, &params, &[(&list).into(), buffer.into()], grid);
            }
            self.gpu.submit(pass)?.wait()?;
            self.gpu.forget_bind_groups();
        }
        Ok(())
    }

    /// Contents of blocks, as [`write_block`](Self::write_block) takes them: a page of every buffer of the cache.
    ///
    /// # Errors
    /// What the device reports.
    pub fn read_blocks(&self, blocks: &[BlockId]) -> Result<Vec<Vec<u32>>, ModelError> {
        let mut contents = Vec::with_capacity(blocks.len());
        for some in blocks.chunks(STAGED) {
            let mut pass = Pass::new("read_blocks");
            let reads: Vec<Vec<Read<u32>>> = some
                .iter()
                .map(|block| {
                    let page = |words| block.get() as usize * words..(block.get() as usize + 1) * words;
                    self.kv.buffers().map(|(buffer, words)| pass.read(buffer, page(words))).collect()
                })
                .collect();
            let done = self.gpu.submit(pass)?.wait()?;
            contents.extend(
                reads
                    .into_iter()
                    .map(|block| block.into_iter().flat_map(|read| done.get(read)).collect::<Vec<u32>>()),
            );
        }
        Ok(contents)
    }

    /// Writes what [`read_blocks`](Self::read_blocks) read of a block into another, before the next step.
    ///
    /// # Panics
    /// When `contents` is not a block of this cache.
    pub fn write_block(&mut self, block: BlockId, contents: &[u32]) {
        let words: usize = self.kv.buffers().map(|(_, words)| words).sum();
        assert_eq!(contents.len(), words, "words of a block");
        if let Some(sparse) = &mut self.sparse {
            sparse.forget(std::iter::once(block.get()));
        }
        let mut rest = contents;
        for (buffer, words) in self.kv.buffers() {
            let (page, others) = rest.split_at(words);
            self.gpu.write(buffer, block.get() as usize * words, page);
            rest = others;
        }
    }
}
