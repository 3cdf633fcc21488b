use super::{BlockSpaceError, Device};
use crate::{BlockId, BlockSize};

/// The state of a block at one moment, as its allocator sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PhysicalTokenBlock {
    /// Memory that the block lives in.
    pub device: Device,
    /// Index of the block on its device.
    pub block_number: BlockId,
    /// Number of tokens that the block holds.
    pub block_size: BlockSize,
    /// Number of block tables that refer to the block; 0 when it is free.
    pub ref_count: u32,
}

/// Hands out the blocks of one device and counts the references to each. All operations are O(1).
///
/// The free list is a stack: a new allocator hands out the highest id first, and the block freed last is
/// reused first.
#[derive(Clone, Debug)]
pub struct BlockAllocator {
    device: Device,
    block_size: BlockSize,
    /// `[num_blocks]`, by block id.
    ref_counts: Vec<u32>,
    /// The blocks with reference count 0; the last one is handed out next.
    free_list: Vec<BlockId>,
}

impl BlockAllocator {
    /// An allocator of blocks `0..num_blocks`, all free.
    #[must_use]
    pub fn new(device: Device, block_size: BlockSize, num_blocks: u32) -> Self {
        Self {
            device,
            block_size,
            ref_counts: vec![0; num_blocks as usize],
            free_list: (0..num_blocks).map(BlockId::new).collect(),
        }
    }

    /// Allocates the block freed last, with one reference.
    ///
    /// # Errors
    /// [`BlockSpaceError::OutOfMemory`] when no block is free.
    pub fn allocate(&mut self) -> Result<BlockId, BlockSpaceError> {
        let Some(block) = self.free_list.pop() else {
            return Err(BlockSpaceError::OutOfMemory { device: self.device, needed: 1, free: 0 });
        };
        let count = &mut self.ref_counts[block.get() as usize];
        assert!(*count == 0, "free block {block:?} has {count} references");
        *count = 1;
        Ok(block)
    }

    /// Adds a reference to a block in use.
    ///
    /// # Errors
    /// [`BlockSpaceError::UseAfterFree`] when the block is free, [`BlockSpaceError::UnknownBlock`] when the
    /// device has no such block.
    pub fn retain(&mut self, block: BlockId) -> Result<(), BlockSpaceError> {
        let device = self.device;
        match self.count_mut(block)? {
            0 => Err(BlockSpaceError::UseAfterFree { device, block }),
            count => {
                *count = count.checked_add(1).expect("more than 2^32 references to a block");
                Ok(())
            }
        }
    }

    /// Drops a reference; a block without references is the next to be handed out.
    ///
    /// # Errors
    /// [`BlockSpaceError::DoubleFree`] when the block is free, [`BlockSpaceError::UnknownBlock`] when the
    /// device has no such block.
    pub fn free(&mut self, block: BlockId) -> Result<(), BlockSpaceError> {
        let device = self.device;
        let count = self.count_mut(block)?;
        if *count == 0 {
            return Err(BlockSpaceError::DoubleFree { device, block });
        }
        *count -= 1;
        if *count == 0 {
            self.free_list.push(block);
        }
        Ok(())
    }

    fn count_mut(&mut self, block: BlockId) -> Result<&mut u32, BlockSpaceError> {
        let (device, num_blocks) = (self.device, self.num_total_blocks());
        self.ref_counts.get_mut(block.get() as usize).ok_or(BlockSpaceError::UnknownBlock {
            device,
            block,
            num_blocks,
        })
    }

    /// Fails unless `needed` blocks are free, so that an operation can check before it changes anything.
    pub(super) fn require(&self, needed: u32) -> Result<(), BlockSpaceError> {
        let free = self.num_free_blocks();
        if needed > free {
            return Err(BlockSpaceError::OutOfMemory { device: self.device, needed, free });
        }
        Ok(())
    }

    /// The state of `block`, or `None` when the device has no such block.
    #[must_use]
    pub fn block(&self, block: BlockId) -> Option<PhysicalTokenBlock> {
        self.ref_counts.get(block.get() as usize).map(|&ref_count| PhysicalTokenBlock {
            device: self.device,
            block_number: block,
            block_size: self.block_size,
            ref_count,
        })
    }

    /// Number of free blocks.
    #[must_use]
    pub fn num_free_blocks(&self) -> u32 {
        u32::try_from(self.free_list.len()).expect("no more free blocks than blocks, a u32")
    }

    /// Number of blocks, free or not.
    #[must_use]
    pub fn num_total_blocks(&self) -> u32 {
        u32::try_from(self.ref_counts.len()).expect("made from a u32")
    }

    /// The device.
    #[must_use]
    pub const fn device(&self) -> Device {
        self.device
    }
}
