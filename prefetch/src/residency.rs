//! Prompt blocks of a layer that are on the device as a sparse policy changes its selection.
//!
//! Library only: the engine decides this on the device, by the kernel `residency` of attn-kernels, since the host does not know
//! a step's selection before it ran. This is the form for engines that select on the host.

use std::collections::BTreeMap;

use kvblock::{BlockId, BlockIdx};
use rustc_hash::FxHashSet;

/// Device blocks of one request in one layer, and the prompt blocks that they hold.
///
/// The device holds fewer blocks than the prompt has. For each new top-k list, resident blocks stay, and
/// missing ones are loaded over blocks that the list does not name (the GSA prefetch engine of UCM).
/// [`Residency::plan`] is pure; nothing changes until the loads are done and [`Residency::commit`] is called,
/// so a failed load leaves the tables as they were.
///
/// Blocks of the current table are never free: attention may still read them while the next loads run. A
/// request with exactly as many device blocks as it attends to can therefore replace none; the number of
/// spare blocks limits how many may change at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Residency {
    /// Prompt block to device block; each device block at most once.
    resident: BTreeMap<BlockIdx, BlockId>,
    /// Device block of each resident prompt block; no device block occurs twice.
    free: Vec<BlockId>,
    /// Number of blocks at the end of a top-k list that are only speculative prefetches.
    extra: usize,
    /// Number of commits so far, by which an outdated plan is noticed.
    revision: u64,
}

/// Changes on the device that a top-k list needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResidencyPlan {
    /// Blocks to attend to once the loads are done, by position: hits and loads.
    pub table: Vec<(BlockIdx, BlockId)>,
    /// Blocks to load, most important first.
    pub loads: Vec<Load>,
    /// Number of blocks that were already resident.
    pub hits: usize,
    /// Missing blocks for which no device block is free.
    pub dropped: Vec<BlockIdx>,
    revision: u64,
}

/// A block to load to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// The prompt block.
    pub block: BlockIdx,
    /// The device block to write.
    pub into: BlockId,
    /// The prompt block that is evicted.
    pub evicts: Option<BlockIdx>,
}

/// Why residency could not be set up or changed.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ResidencyError {
    /// A device block is listed twice.
    #[error("device block {device:?} appears twice")]
    Repeated {
        /// The device block.
        device: BlockId,
    },
    /// Another plan was committed in between.
    #[error("plan of revision {planned} is outdated, the tables are at {current}")]
    Outdated {
        /// Revision of the tables that the plan was made for.
        planned: u64,
        /// Current revision of the tables.
        current: u64,
    },
}

impl Residency {
    /// Starts with `resident` blocks. `free` lists the device blocks that may be overwritten: some of the
    /// resident ones, and those that hold nothing yet.
    ///
    /// # Errors
    /// [`ResidencyError::Repeated`] when a device block is resident for two prompt blocks, or free twice.
    pub fn new(
        resident: impl IntoIterator<Item = (BlockIdx, BlockId)>,
        free: impl IntoIterator<Item = BlockId>,
        extra: usize,
    ) -> Result<Self, ResidencyError> {
        let (mut devices, mut table) = (FxHashSet::default(), BTreeMap::new());
        for (block, device) in resident {
            if !devices.insert(device) || table.insert(block, device).is_some() {
                return Err(ResidencyError::Repeated { device });
            }
        }
        let (mut devices, free) = (FxHashSet::default(), free.into_iter().collect::<Vec<_>>());
        match free.iter().find(|device| !devices.insert(**device)) {
            Some(&device) => Err(ResidencyError::Repeated { device }),
            None => Ok(Self { resident: table, free, extra, revision: 0 }),
        }
    }

    /// Resident prompt blocks, by position.
    pub fn resident(&self) -> impl Iterator<Item = (BlockIdx, BlockId)> + '_ {
        self.resident.iter().map(|(&block, &device)| (block, device))
    }

    /// Device blocks that may be overwritten, the first one first.
    #[must_use]
    pub fn free(&self) -> &[BlockId] {
        &self.free
    }

    /// Whether `selected` names a block that is not on the device, so that a prefetch would load something.
    #[must_use]
    pub fn is_missing_any(&self, selected: &[BlockIdx]) -> bool {
        selected.iter().any(|block| !self.resident.contains_key(block))
    }

    /// Plans the changes for a top-k list, most important first; repeats count once.
    ///
    /// The walk stops after `top_k.len() - extra` hits: enough of the list is then resident, and nothing is
    /// loaded. Otherwise, missing blocks are assigned to free device blocks that no hit uses, in the order of
    /// both lists. Surplus missing blocks are dropped.
    ///
    /// # Complexity
    /// O(k log r + f + r) for k listed, r resident and f free blocks.
    #[must_use]
    pub fn plan(&self, top_k: &[BlockIdx]) -> ResidencyPlan {
        let mut seen = FxHashSet::default();
        let top_k: Vec<BlockIdx> = top_k.iter().copied().filter(|block| seen.insert(*block)).collect();
        let enough = top_k.len().saturating_sub(self.extra);
        let mut table = BTreeMap::new();
        let mut missing = Vec::new();
        for block in top_k {
            if table.len() == enough {
                break;
            }
            match self.resident.get(&block) {
                Some(&device) => drop(table.insert(block, device)),
                None => missing.push(block),
            }
        }
        let hits = table.len();
        let mut loads = Vec::new();
        if hits < enough {
            let in_use: FxHashSet<BlockId> = table.values().copied().collect();
            let holder: BTreeMap<BlockId, BlockIdx> = self.resident.iter().map(|(&b, &d)| (d, b)).collect();
            let overwritable = self.free.iter().copied().filter(|device| !in_use.contains(device));
            for (&block, into) in missing.iter().zip(overwritable) {
                loads.push(Load { block, into, evicts: holder.get(&into).copied() });
                table.insert(block, into);
            }
        }
        let dropped = missing.split_off(loads.len());
        ResidencyPlan { table: table.into_iter().collect(), loads, hits, dropped, revision: self.revision }
    }

    /// Applies a plan whose loads all succeeded. New blocks replace the evicted ones. The device blocks that the plan
    /// does not attend to become free, in the order of their prompt blocks, before device blocks that hold nothing.
    ///
    /// A loader must verify a block in its staging buffer before it writes to the device, so that a failed
    /// load has overwritten nothing. Dropping the plan then undoes everything.
    ///
    /// # Errors
    /// [`ResidencyError::Outdated`] when another plan was committed since.
    pub fn commit(&mut self, plan: &ResidencyPlan) -> Result<(), ResidencyError> {
        if plan.revision != self.revision {
            return Err(ResidencyError::Outdated { planned: plan.revision, current: self.revision });
        }
        let empty: Vec<BlockId> = {
            let held: FxHashSet<BlockId> = self.resident.values().copied().collect();
            let loaded: FxHashSet<BlockId> = plan.loads.iter().map(|load| load.into).collect();
            self.free
                .iter()
                .copied()
                .filter(|device| !held.contains(device) && !loaded.contains(device))
                .collect()
        };
        for load in &plan.loads {
            if let Some(evicted) = load.evicts {
                self.resident.remove(&evicted);
            }
            self.resident.insert(load.block, load.into);
        }
        let attended: FxHashSet<BlockIdx> = plan.table.iter().map(|&(block, _)| block).collect();
        let unused = self.resident.iter().filter(|(block, _)| !attended.contains(block));
        self.free = unused.map(|(_, &device)| device).chain(empty).collect();
        self.revision += 1;
        Ok(())
    }
}
