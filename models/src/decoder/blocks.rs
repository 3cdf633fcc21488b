//! Whole blocks of the cache: copied, read to the host, written from it.

use attn_kernels::gpu::{Pass, Read};
use attn_kernels::kernel::copy_blocks::{self, CopyBlocksParams};
use kvblock::BlockId;

use super::Decoder;
use crate::ModelError;

/// Blocks that one readback stages.
const STAGED: usize = 32;

impl Decoder {
    /// Copies blocks in every layer, before the next step: `(source, destination)` pairs of which no destination is a
    /// source.
    ///
    /// # Errors
    /// What the device reports.
    pub fn copy_blocks(&mut self, pairs: &[(BlockId, BlockId)]) -> Result<(), ModelError> {
        if let Some(sparse) = &mut self.sparse {
            sparse.forget(pairs.iter().map(|(_, to)| to.get()));
        }
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
        let words = self.kv.shape().block_bytes() / 4;
        let mut contents = Vec::with_capacity(blocks.len());
        for some in blocks.chunks(STAGED) {
            let mut pass = Pass::new("read_blocks");
            let reads: Vec<Vec<Read<u32>>> = some
                .iter()
                .map(|block| {
                    let first = block.get() as usize * words;
                    let buffers = (0..self.layers.len()).map(|layer| self.kv.layer(layer));
                    buffers.flat_map(|(k, v)| [k, v]).map(|b| pass.read(b, first..first + words)).collect()
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
        let words = self.kv.shape().block_bytes() / 4;
        assert_eq!(contents.len(), 2 * self.layers.len() * words, "words of a block");
        if let Some(sparse) = &mut self.sparse {
            sparse.forget(std::iter::once(block.get()));
        }
        let mut parts = contents.chunks_exact(words);
        for layer in 0..self.layers.len() {
            let (k, v) = self.kv.layer(layer);
            for (buffer, part) in [k, v].into_iter().zip(parts.by_ref()) {
                self.gpu.write(buffer, block.get() as usize * words, part);
            }
        }
    }
}
