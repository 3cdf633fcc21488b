//! Block-sparse attention of a decoder: policy, place of selection, and results.

mod attended;

use std::ops::Range;
use std::sync::Arc;

use derive_setters::Setters;
use kvblock::{Phase, UnknownName};
use sparse_select::Policy;
use strum::{Display, EnumString, VariantNames};

use crate::{ChunkCrossing, Crossing, ModelError};

pub use attended::{Attended, Mean, Tally};

/// Options of attention to selected blocks.
#[derive(Clone, Debug, Setters)]
#[non_exhaustive]
pub struct SparseOptions {
    /// Policy that selects the blocks.
    #[setters(skip)]
    pub policy: Arc<dyn Policy>,
    /// Place where blocks are scored.
    #[setters(skip)]
    pub place: SelectionPlace,
    /// Whether to return the selections themselves, layer by layer, for drawings and tests.
    pub trace: bool,
    /// Whether to measure the quality of selections on the host: [`Attended::recall`]. Queries and keys are read back
    /// in every layer that selects.
    pub measure: bool,
    /// Whether to certify in every decode step the attention mass that selections keep: [`Attended::mass`]. Otherwise
    /// steps do so for slices that [request it](crate::batch::Slice::certify). Policies without a bound certify
    /// nothing.
    pub certify: bool,
    /// Lengths below which decode rows attend everything, because selection would take longer.
    pub crossing: Crossing,
    /// Lengths below which prompt chunks attend everything.
    pub chunk_crossing: ChunkCrossing,
    /// Number of the decoder's first layer in the model.
    #[setters(skip)]
    pub(crate) first_layer: u32,
}

impl SparseOptions {
    /// Options for attention to what `policy` selects, scored at `place`, without traces, measurements or certificates.
    #[must_use]
    pub fn new(policy: Arc<dyn Policy>, place: SelectionPlace) -> Self {
        Self {
            policy,
            place,
            trace: false,
            measure: false,
            certify: false,
            crossing: Crossing::default(),
            chunk_crossing: ChunkCrossing::default(),
            first_layer: 0,
        }
    }
}

/// Place where blocks are scored; as text `device` or `host`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Display, EnumString, VariantNames)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = UnknownName::of::<Self>)]
pub enum SelectionPlace {
    /// On the device, without readbacks inside a layer, if the policy has kernels; otherwise like `Host`.
    Device,
    /// By the policy's own code: queries and new keys are read back in every layer. This is the oracle of the kernels.
    Host,
}

/// Traffic of pages of selected blocks, for contexts on the host. A page is a block's part of one KV head of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageTraffic {
    /// Number of selected pages that were on the device.
    pub hits: u64,
    /// Number of selected pages that attention had to wait for.
    pub misses: u64,
    /// Number of pages that were prefetched, concurrently with other work.
    pub prefetched: u64,
    /// Bytes of keys and values of a page.
    pub page_bytes: u64,
    /// Reads from disk ahead of selections, if there are blocks on disk.
    pub predictions: Option<Predictions>,
}

/// Blocks of a layer that were read from disk ahead of a selection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Predictions {
    /// Number of blocks that were predicted.
    pub predicted: u64,
    /// Number of predicted blocks that the next selection needed and found in host memory.
    pub used: u64,
    /// Number of predicted blocks that the next selection needed before they were read.
    pub late: u64,
}

impl PageTraffic {
    /// Returns the bytes that were fetched from the host.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.misses + self.prefetched) * self.page_bytes
    }
}

/// Cost of fetches from the host.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FetchCost {
    /// Nanoseconds per byte of a fetch that runs alone.
    pub ns_per_byte: f64,
    /// Share of a prefetch's time that is hidden by the product that runs next to it.
    pub hidden_ahead: f64,
}

impl FetchCost {
    /// Returns two times in nanoseconds: that of all fetches if nothing overlaps, and that in which nothing else runs
    /// because attention waits for missing pages or for the rest of a prefetch.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "bytes are far below 2^52")]
    pub fn of(&self, traffic: &PageTraffic) -> (f64, f64) {
        let ns = |pages: u64| (pages * traffic.page_bytes) as f64 * self.ns_per_byte;
        let waited = ns(traffic.misses) + ns(traffic.prefetched) * (1.0 - self.hidden_ahead);
        (ns(traffic.misses + traffic.prefetched), waited)
    }
}

impl SparseOptions {
    /// Whether selected blocks may be on disk, which is so if the policy selects by position or by kernels and no kernel
    /// reads the keys of all blocks.
    #[must_use]
    pub fn selects_from_disk(&self) -> bool {
        use sparse_select::Ranking::{Compressed, Digests, Hashes};
        let reaches = |phase| {
            let policy = self.of(phase);
            let by_kernels = match policy.ranking() {
                Some(Digests(_) | Hashes(_)) => {
                    policy.mass().is_none() && self.place == SelectionPlace::Device
                }
                Some(Compressed(_)) | None => false,
            };
            by_kernels || !policy.support().query
        };
        !self.measure && reaches(Phase::Prefill) && reaches(Phase::Decode)
    }

    /// Whether kernels select blocks by their keys, so that the keys of each layer must be in one buffer.
    #[must_use]
    pub fn reads_one_buffer(&self) -> bool {
        let (prefill, decode) = (self.of(Phase::Prefill), self.of(Phase::Decode));
        let by_keys = prefill.antidiagonals().is_some() || prefill.energies().is_some();
        self.place == SelectionPlace::Device && !self.measure && (by_keys || decode.mass().is_some())
    }
}

impl SparseOptions {
    /// Checks that blocks of the policy are whole blocks of the cache, and whole loads of eight keys.
    ///
    /// # Errors
    /// [`ModelError::SelectBlock`]; [`ModelError::Skips`] for a policy that acts inside the attention kernel and is to select on
    /// the host, [`ModelError::Corrects`] for one whose correction only kernels do.
    pub fn check(&self, block_size: u32) -> Result<(), ModelError> {
        if self.policy.skips().is_some() {
            let asked = match self {
                Self { place: SelectionPlace::Host, .. } => "select on the host",
                Self { measure: true, .. } => "be measured",
                _ => return Ok(()),
            };
            return Err(ModelError::Skips { policy: self.policy.name(), asked });
        }
        let corrects = self.policy.energies().is_some_and(|energies| energies.correction);
        if corrects && (self.place == SelectionPlace::Host || self.measure) {
            let asked = if self.measure { "be measured" } else { "select on the host" };
            return Err(ModelError::Corrects { policy: self.policy.name(), asked });
        }
        let select = self.policy.block_size().get();
        if select.is_multiple_of(block_size.max(8)) && select.is_power_of_two() {
            return Ok(());
        }
        Err(ModelError::SelectBlock { policy: self.policy.name(), select, block_size })
    }

    /// Whether the policy selects for rows of this phase; other rows are dense.
    #[must_use]
    pub fn acts_on(&self, phase: Phase) -> bool {
        self.policy.acts_on(phase)
    }

    /// Whether selection pays for a prompt chunk at the positions `chunk`, which it does not if the chunk is too short or
    /// too early.
    pub(crate) fn pays_for(&self, chunk: Range<u32>) -> bool {
        self.chunk_crossing.selects(chunk.end - chunk.start, chunk.end)
    }

    /// Returns the policy of a phase.
    pub(crate) fn of(&self, phase: Phase) -> Arc<dyn Policy> {
        match (self.policy.phases(), phase) {
            (None, _) => Arc::clone(&self.policy),
            (Some([prefill, _]), Phase::Prefill) => prefill,
            (Some([_, decode]), Phase::Decode) => decode,
        }
    }
}
