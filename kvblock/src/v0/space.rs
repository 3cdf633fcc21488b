use core::num::NonZeroU32;
use std::collections::BTreeMap;

use derive_setters::Setters;

use super::{
    BlockAllocator, BlockMove, BlockSpaceError, BlockTable, Device, SeqState, Sequence, SequenceGroup,
};
use crate::{BlockSize, SeqId};

/// Configuration of a [`BlockSpaceManager`].
#[derive(Clone, Copy, PartialEq, Debug, Setters)]
#[non_exhaustive]
pub struct BlockSpaceConfig {
    /// Tokens per block.
    #[setters(skip)]
    pub block_size: BlockSize,
    /// Number of blocks on the GPU.
    #[setters(skip)]
    pub num_gpu_blocks: u32,
    /// Number of blocks on the CPU, for swapped groups.
    #[setters(skip)]
    pub num_cpu_blocks: u32,
    /// The fraction of the GPU blocks, at least 0, that admission and swapping in keep free, so that running
    /// sequences can grow before one must be preempted.
    pub watermark: f64,
    /// Number of tokens that attention can see, if not all; older blocks are overwritten.
    pub sliding_window: Option<u32>,
}

impl BlockSpaceConfig {
    /// A configuration with a watermark of 1 % and no sliding window.
    #[must_use]
    pub const fn new(block_size: BlockSize, num_gpu_blocks: u32, num_cpu_blocks: u32) -> Self {
        Self { block_size, num_gpu_blocks, num_cpu_blocks, watermark: 0.01, sliding_window: None }
    }
}

/// Whether the blocks of a group fit on the GPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AllocStatus {
    /// The blocks fit now.
    Ok,
    /// The blocks fit once other groups have freed theirs.
    Later,
    /// The blocks do not even fit on an otherwise empty device.
    Never,
}

/// Keeps the block table of every sequence and decides what fits on the GPU.
///
/// The states of the sequences determine what an operation acts on (admission on the waiting ones, swapping
/// out on the running ones). Moving them to their next state is up to the caller; [`preempt`](super::preempt)
/// and [`GroupQueues`](super::GroupQueues) do so.
#[derive(Clone, Debug)]
pub struct BlockSpaceManager {
    pub(super) gpu: BlockAllocator,
    pub(super) cpu: BlockAllocator,
    pub(super) tables: BTreeMap<SeqId, BlockTable>,
    block_size: BlockSize,
    /// Number of GPU blocks that admission keeps free. A `u64`, since a watermark above 1 may reserve more blocks
    /// than the GPU has.
    watermark_blocks: u64,
    /// The sliding window in blocks, rounded up.
    window_blocks: Option<NonZeroU32>,
}

impl BlockSpaceManager {
    /// A manager whose blocks are all free.
    ///
    /// # Errors
    /// [`BlockSpaceError::InvalidWatermark`] and [`BlockSpaceError::EmptyWindow`].
    pub fn new(config: BlockSpaceConfig) -> Result<Self, BlockSpaceError> {
        let BlockSpaceConfig { block_size, num_gpu_blocks, num_cpu_blocks, watermark, sliding_window } =
            config;
        if watermark.is_nan() || watermark < 0.0 {
            return Err(BlockSpaceError::InvalidWatermark { watermark });
        }
        let window_blocks = sliding_window
            .map(|tokens| NonZeroU32::new(block_size.blocks_for(tokens)).ok_or(BlockSpaceError::EmptyWindow))
            .transpose()?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the floor is wanted, and a huge watermark saturates: nothing fits then"
        )]
        let watermark_blocks = (watermark * f64::from(num_gpu_blocks)) as u64;
        Ok(Self {
            gpu: BlockAllocator::new(Device::Gpu, block_size, num_gpu_blocks),
            cpu: BlockAllocator::new(Device::Cpu, block_size, num_cpu_blocks),
            tables: BTreeMap::new(),
            block_size,
            watermark_blocks,
            window_blocks,
        })
    }

    /// Whether the prompt of `group` fits while the watermark stays free. Only its first waiting sequence
    /// counts: the others share its blocks.
    #[must_use]
    pub fn can_allocate(&self, group: &SequenceGroup) -> AllocStatus {
        let required = group.in_state(SeqState::Waiting).next().map_or(0, |seq| self.prompt_blocks(seq));
        let reserved = u64::from(required).saturating_add(self.watermark_blocks);
        if reserved > u64::from(self.gpu.num_total_blocks()) {
            AllocStatus::Never
        } else if reserved <= u64::from(self.gpu.num_free_blocks()) {
            AllocStatus::Ok
        } else {
            AllocStatus::Later
        }
    }

    /// Number of physical blocks for the tokens that `seq` has now.
    fn prompt_blocks(&self, seq: &Sequence) -> u32 {
        let logical = seq.num_logical_blocks();
        self.window_blocks.map_or(logical, |window| logical.min(window.get()))
    }

    /// Allocates blocks for the tokens of the waiting sequences of `group`, which all share one set of
    /// blocks. The watermark concerns only [`can_allocate`](Self::can_allocate).
    ///
    /// # Errors
    /// [`BlockSpaceError::NoneInState`] without a waiting sequence, [`BlockSpaceError::PromptsDiffer`],
    /// [`BlockSpaceError::BlockSizeMismatch`], [`BlockSpaceError::AlreadyAllocated`],
    /// [`BlockSpaceError::OutOfMemory`].
    ///
    /// # Complexity
    /// O(waiting sequences x tokens): their tokens are compared.
    pub fn allocate(&mut self, group: &SequenceGroup) -> Result<(), BlockSpaceError> {
        let waiting = group.in_state(SeqState::Waiting);
        let first =
            waiting.clone().next().ok_or(BlockSpaceError::NoneInState { state: SeqState::Waiting })?;
        for seq in waiting.clone() {
            self.check_allocatable(seq, first)?;
        }
        let own_blocks = self.prompt_blocks(first);
        self.gpu.require(own_blocks)?;

        let mut table = BlockTable::new(Device::Gpu, self.window_blocks);
        for _ in 0..own_blocks {
            table.push(self.gpu.allocate().expect("enough free blocks were required"));
        }
        for _ in own_blocks..first.num_logical_blocks() {
            table.push_reuse();
        }
        for sharer in waiting.skip(1) {
            self.share(&table, sharer.id());
        }
        self.tables.insert(first.id(), table);
        Ok(())
    }

    fn check_allocatable(&self, seq: &Sequence, first: &Sequence) -> Result<(), BlockSpaceError> {
        if self.tables.contains_key(&seq.id()) {
            return Err(BlockSpaceError::AlreadyAllocated { seq: seq.id() });
        }
        if seq.block_size() != self.block_size {
            return Err(BlockSpaceError::BlockSizeMismatch {
                seq: seq.id(),
                found: seq.block_size().get(),
                expected: self.block_size.get(),
            });
        }
        if !seq.token_ids().eq(first.token_ids()) {
            return Err(BlockSpaceError::PromptsDiffer { first: first.id(), other: seq.id() });
        }
        Ok(())
    }

    /// Gives `seq` a copy of `table`, which adds a reference to each of its blocks.
    fn share(&mut self, table: &BlockTable, seq: SeqId) {
        for &block in table.distinct() {
            self.allocator_mut(table.device()).retain(block).expect("a block of a table is in use");
        }
        self.tables.insert(seq, table.clone());
    }

    /// Whether every running sequence of `group` can take one more token. Conservative: assumes that each
    /// needs a block.
    #[must_use]
    pub fn can_append_slot(&self, group: &SequenceGroup) -> bool {
        group.num_in_state(SeqState::Running) <= self.gpu.num_free_blocks()
    }

    /// Makes room for the newest token of `seq`, which its logical blocks already hold. When the block it
    /// falls into was shared, returns the copy to execute before the token is written.
    ///
    /// A block that a sliding window reuses is written like any other: if it is shared, it is copied first.
    ///
    /// # Errors
    /// [`BlockSpaceError::NotAllocated`], [`BlockSpaceError::WrongDevice`] for a swapped sequence,
    /// [`BlockSpaceError::OutOfStep`] unless exactly one token is new, [`BlockSpaceError::OutOfMemory`].
    pub fn append_slot(&mut self, seq: &Sequence) -> Result<Option<BlockMove>, BlockSpaceError> {
        let id = seq.id();
        let table = self.tables.get_mut(&id).ok_or(BlockSpaceError::NotAllocated { seq: id })?;
        if table.device() != Device::Gpu {
            return Err(BlockSpaceError::WrongDevice {
                seq: id,
                found: table.device(),
                expected: Device::Gpu,
            });
        }
        let (logical_blocks, table_blocks) = (seq.num_logical_blocks(), table.len());
        let opens_block = table_blocks.checked_add(1) == Some(logical_blocks);
        if !opens_block && (logical_blocks != table_blocks || table.is_empty()) {
            return Err(BlockSpaceError::OutOfStep { seq: id, logical_blocks, table_blocks });
        }
        if opens_block && table.reused_next().is_none() {
            table.push(self.gpu.allocate()?);
            return Ok(None);
        }

        let written =
            if opens_block { table.reused_next() } else { table.last() }.expect("the table is not empty");
        let shared = self.gpu.block(written).expect("a block of a table exists").ref_count > 1;
        let replacement = if shared { Some(self.gpu.allocate()?) } else { None };
        if opens_block {
            table.push_reuse();
        }
        let Some(dst) = replacement else { return Ok(None) };
        table.replace_last(dst);
        self.gpu.free(written).expect("a block of a table is in use");
        Ok(Some(BlockMove { src: written, dst }))
    }

    /// Gives `child` the blocks of `parent`. Allocates nothing: a shared block is copied when one of the two
    /// writes to it.
    ///
    /// # Errors
    /// [`BlockSpaceError::NotAllocated`] for the parent, [`BlockSpaceError::AlreadyAllocated`] for the child.
    pub fn fork(&mut self, parent: SeqId, child: SeqId) -> Result<(), BlockSpaceError> {
        if self.tables.contains_key(&child) {
            return Err(BlockSpaceError::AlreadyAllocated { seq: child });
        }
        let table = self.tables.get(&parent).ok_or(BlockSpaceError::NotAllocated { seq: parent })?.clone();
        self.share(&table, child);
        Ok(())
    }

    /// Frees the blocks of `seq`, the first block first. Does nothing for a sequence without a table: it was
    /// already freed, or never admitted.
    pub fn free(&mut self, seq: SeqId) {
        let Some(table) = self.tables.remove(&seq) else { return };
        for &block in table.distinct() {
            self.allocator_mut(table.device()).free(block).expect("a block of a table is in use");
        }
    }

    /// Frees all sequences, in the order of their ids.
    pub fn reset(&mut self) {
        while let Some((&seq, _)) = self.tables.first_key_value() {
            self.free(seq);
        }
    }

    /// The block table of `seq`, or `None` when it has none.
    #[must_use]
    pub fn get_block_table(&self, seq: SeqId) -> Option<&BlockTable> {
        self.tables.get(&seq)
    }

    /// The allocator of `device`.
    #[must_use]
    pub const fn allocator(&self, device: Device) -> &BlockAllocator {
        match device {
            Device::Gpu => &self.gpu,
            Device::Cpu => &self.cpu,
        }
    }

    pub(super) const fn allocator_mut(&mut self, device: Device) -> &mut BlockAllocator {
        match device {
            Device::Gpu => &mut self.gpu,
            Device::Cpu => &mut self.cpu,
        }
    }

    /// Number of GPU blocks that [`can_allocate`](Self::can_allocate) and [`can_swap_in`](Self::can_swap_in) leave free.
    #[must_use]
    pub const fn watermark_blocks(&self) -> u64 {
        self.watermark_blocks
    }
}
