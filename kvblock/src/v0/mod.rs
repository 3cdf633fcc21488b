//! The first-generation block manager of PagedAttention (Kwon et al., SOSP 2023; vLLM 0.2-0.4):
//! reference-counted blocks on two devices, copy on write between the samples of a prompt, whole groups
//! swapped to host memory.
//!
//! Library only: the engine runs the manager of the crate's root. This one is for engines of the first generation and for
//! comparisons with them.
//!
//! ```text
//!  Sequence q0   tokens   [ 11 12 13 14 | 15 16 17 -- ]      logical blocks, block_size 4
//!  BlockTable q0           b7             b6                 on Device::Gpu
//!                          |              |
//!  BlockAllocator   ref    2              1                  b7 is shared with a fork of q0
//! ```
//!
//! - [`LogicalTokenBlock`], [`Sequence`], [`SequenceGroup`]: the tokens of a request, and the state of each
//!   sample.
//! - [`BlockAllocator`]: the blocks of one device; a stack, so the block freed last is reused first.
//! - [`BlockSpaceManager`]: one [`BlockTable`] a sequence; decides whether a group fits ([`AllocStatus`]) and
//!   allocates it.
//! - [`CopyList`]: the copies that copy on write requires, in waves that a kernel may run in parallel.
//! - [`preempt`] and [`GroupQueues`]: which group is preempted when blocks run out, and which is served first
//!   afterwards.
//!
//! The manager decides and counts; it never touches the contents of a block. Each operation either succeeds
//! completely or returns an error and changes nothing. A step executes its memory operations in this order:
//! swaps out, swaps in, copies, then writes of new tokens.
//!
//! ```
//! use kvblock::v0::{AllocStatus, BlockSpaceConfig, BlockSpaceManager};
//! use kvblock::v0::{RequestId, SeqState, Sequence, SequenceGroup};
//! use kvblock::{BlockSize, SeqId};
//!
//! let block_size = BlockSize::new(4).unwrap();
//! let mut space = BlockSpaceManager::new(BlockSpaceConfig::new(block_size, 9, 0))?;
//!
//! // Two samples of a prompt of six tokens share its two blocks.
//! let samples = [1, 2].map(|id| Sequence::new(SeqId::new(id), &[11, 12, 13, 14, 15, 16], block_size));
//! let mut group = SequenceGroup::new(RequestId::new(0), 0, samples)?;
//! assert_eq!(space.can_allocate(&group), AllocStatus::Ok);
//! space.allocate(&group)?;
//! group.transition(SeqState::Waiting, SeqState::Running)?;
//!
//! // The first to write into the block that is not full gets a copy of it.
//! let first = group.get_mut(SeqId::new(1)).unwrap();
//! first.append_token(17);
//! let copy = space.append_slot(first)?.unwrap();
//! assert_eq!((copy.src.get(), copy.dst.get()), (7, 6));
//! # Ok::<(), kvblock::v0::BlockSpaceError>(())
//! ```
//!
//! This manager is independent of the second-generation pool (one device, content hashes, a null block,
//! first-in first-out reuse): the two differ in every policy and share only the id types.

mod allocator;
mod copies;
mod device;
mod error;
mod group;
mod logical;
mod preempt;
mod queues;
mod seq_state;
mod sequence;
mod space;
mod swap;
mod table;

pub use crate::Ending;
pub use allocator::{BlockAllocator, PhysicalTokenBlock};
pub use copies::{BlockMove, CopyList};
pub use device::Device;
pub use error::BlockSpaceError;
pub use group::{RequestId, SequenceGroup};
pub use logical::{BLANK, LogicalTokenBlock};
pub use preempt::{Preemption, PreemptionMode, preempt};
pub use queues::{GroupQueues, StepOps};
pub use seq_state::SeqState;
pub use sequence::Sequence;
pub use space::{AllocStatus, BlockSpaceConfig, BlockSpaceManager};
pub use table::BlockTable;
