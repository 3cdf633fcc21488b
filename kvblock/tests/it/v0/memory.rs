//! The contents of the blocks, which the manager under test never sees: one token id a slot.

use kvblock::v0::{BlockMove, BlockSpaceManager, CopyList, Device, Sequence};
use kvblock::{BlockId, BlockSize, TokenId, TokenIdx};

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Memory {
    /// `[num_blocks * block_size]`; `None` was never written.
    gpu: Vec<Option<TokenId>>,
    cpu: Vec<Option<TokenId>>,
    block_size: BlockSize,
    /// Tokens before the newest that must still be there.
    visible: Option<u32>,
}

impl Memory {
    pub(crate) fn new(block_size: BlockSize, gpu_blocks: u32, cpu_blocks: u32, window: Option<u32>) -> Self {
        let slots = |blocks: u32| vec![None; (blocks * block_size.get()) as usize];
        Self { gpu: slots(gpu_blocks), cpu: slots(cpu_blocks), block_size, visible: window }
    }

    fn range(&self, block: BlockId) -> core::ops::Range<usize> {
        let start = self.block_size.slot(block, 0).get() as usize;
        start..start + self.block_size.get() as usize
    }

    pub(crate) fn swap_out(&mut self, moves: &[BlockMove]) {
        for m in moves {
            let block = self.gpu[self.range(m.src)].to_vec();
            let to = self.range(m.dst);
            self.cpu[to].clone_from_slice(&block);
        }
    }

    pub(crate) fn swap_in(&mut self, moves: &[BlockMove]) {
        for m in moves {
            let block = self.cpu[self.range(m.src)].to_vec();
            let to = self.range(m.dst);
            self.gpu[to].clone_from_slice(&block);
        }
    }

    fn copy(&mut self, src: BlockId, dst: BlockId) {
        let (from, to) = (self.range(src), self.range(dst).start);
        self.gpu.copy_within(from, to);
    }

    /// Executes `copies`, each wave in both directions, which must not differ.
    pub(crate) fn copy_waves(&mut self, copies: &CopyList) {
        for wave in copies.waves() {
            let pairs = wave.iter().flat_map(|(src, dsts)| dsts.iter().map(|dst| (*src, *dst)));
            let mut reversed = self.clone();
            pairs.clone().for_each(|(src, dst)| self.copy(src, dst));
            pairs.collect::<Vec<_>>().into_iter().rev().for_each(|(src, dst)| reversed.copy(src, dst));
            assert_eq!(*self, reversed, "the copies of a wave depend on their order: {wave:?}");
        }
    }

    /// Writes the tokens of `seq` from position `from` on, in order, as a forward pass does.
    pub(crate) fn write(&mut self, space: &BlockSpaceManager, seq: &Sequence, from: u32) {
        let table = space.get_block_table(seq.id()).expect("a sequence that runs has a table");
        assert_eq!(table.device(), Device::Gpu, "{:?} is written on the GPU", seq.id());
        for (t, token) in (0..).zip(seq.token_ids()).skip(from as usize) {
            let slot = table.slot(TokenIdx::new(t), self.block_size).expect("every token has a slot");
            self.gpu[slot.get() as usize] = Some(token);
        }
    }

    /// Asserts that `seq` finds each of its first `written` tokens that attention still sees.
    pub(crate) fn assert_reads_back(&self, space: &BlockSpaceManager, seq: &Sequence, written: u32) {
        let table = space.get_block_table(seq.id()).expect("a sequence that runs has a table");
        let memory = if table.device() == Device::Gpu { &self.gpu } else { &self.cpu };
        let first = written.saturating_sub(self.visible.unwrap_or(written));
        for (t, token) in (0..written).zip(seq.token_ids()).skip(first as usize) {
            let slot = table.slot(TokenIdx::new(t), self.block_size).expect("every token has a slot");
            let found = memory[slot.get() as usize];
            assert_eq!(
                found,
                Some(token),
                "{:?} reads another token at {t} of {written}: {table:?}",
                seq.id()
            );
        }
    }
}
