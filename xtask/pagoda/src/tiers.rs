//! KV tiers below the device pool: full blocks are saved to the configured tiers as steps fill them, and loaded for later
//! requests with the same prefix, including requests of other processes.
//!
//! Before a step, the blocks of requests that will start soon are looked up in the tiers (`load`), and the
//! workers of the prefetch engine read those found while other requests run. After a step, the blocks that it
//! filled are copied to the host and written in the background (`save`). Only the engine's thread uses the
//! device.

pub(crate) mod error;
mod ledger;
mod load;
mod objects;
mod origin;
mod save;

pub use error::TiersError;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use attn_kernels::kernel::KvDtype;
use kvblock::{
    BlockHash, BlockHasher, BlockSize, CacheEvent, ExtraKeys, GroupBlock, HashAlgorithm, HashChain, Phase,
    SeqContent, SeqId, StoredBlocks,
};
use models::{Decoder, FetchCost, ModelError, Pipeline};
use prefetch::assemble::StackConfig;
use prefetch::changes::Changes;
use prefetch::codec::RowLayout;
use prefetch::failure::FailurePolicy;
use prefetch::spec::{Compression, TierSpec};
use prefetch::stack::TierStack;
use prefetch::store::{Store, StoreConfig};
use prefetch::tier::{BlockLayout, HostTier, TierName};

use crate::error::Error;
use crate::event::CachedTokens;
use crate::kv_events::CacheEvents;
use crate::model::Model;
use crate::options::EngineOptions;
use crate::usage::{PageUse, ReadAhead, TierTraffic, TierUse};
use crate::{Note, Notes};
use ledger::Ledger;
pub(crate) use load::Unreadable;
use load::{Loading, LookedUp};
use objects::Objects;
pub(crate) use origin::Origin;
use origin::Origins;
pub(crate) use save::Filled;
use save::Saver;

/// Maximum number of bytes of blocks that are buffered in memory for saving, and for loading if no policy states a number.
const STAGED_BYTES: u64 = 256 << 20;

/// Minimum number of blocks of the disk for which a tier of prefixes is opened.
const MIN_BLOCKS: u64 = 16;

/// The tiers of an engine, and the transfers between them and the device pool.
pub struct Tiers {
    // Fields are dropped in this order: queued writes are finished before the stack closes.
    loader: prefetch::engine::Engine,
    saver: Saver,
    stack: Arc<TierStack>,
    /// The host tier of the stack, which other engines of the model may have in theirs.
    host: Option<Arc<HostTier>>,
    failure: FailurePolicy,
    objects: Arc<Objects>,
    origins: Origins,
    /// Records the changes of the tiers as cache events; `None` if they have no follower.
    ledger: Option<Ledger>,
    /// Capacity of the loader's cache, in objects.
    room: usize,
    /// Number of steps ahead of the current one whose blocks are loaded.
    ahead: u32,
    /// Maximum number of objects per load task.
    portion: usize,
    looked_up: BTreeMap<SeqId, LookedUp>,
    loads: BTreeMap<SeqId, Loading>,
    /// Blocks of waiting requests that are read before their loads begin.
    read_ahead: ReadAhead,
    /// Number of tokens that were loaded, by tier, for each request that has not started.
    loaded: BTreeMap<SeqId, CachedTokens>,
    /// Number of steps before which `look_ahead` ran.
    step: u64,
    generation: u64,
    /// Whether a failure was already reported; a tier that is down fails every block.
    told: bool,
    notes: Notes,
}

impl std::fmt::Debug for Tiers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<TierName> = self.stack.names().collect();
        f.debug_struct("Tiers").field("names", &names).finish_non_exhaustive()
    }
}

impl Tiers {
    /// Opens the tiers of `options`; `None` if there are none.
    ///
    /// # Errors
    /// [`Error::KvTiers`] if a tier cannot be built or reached, or contains the blocks of another model or
    /// format.
    pub fn open(options: &EngineOptions, model: &Model, decoder: &Pipeline) -> Result<Option<Self>, Error> {
        let Some(asked) = &options.kv_tiers else { return Ok(None) };
        let kv = decoder.first().kv();
        // The part of the host tier that long contexts use is not available for prefixes.
        let block_bytes = decoder.plan().block_bytes();
        let taken = u64::from(kv.host_blocks()) * block_bytes;
        let left = asked.host_bytes.map(|bytes| bytes.saturating_sub(taken));
        // What lies on disk takes the rest of the host's memory on its way.
        let full = kv.disk_blocks() > 0 || taken > 0 && left.is_none_or(|left| left < block_bytes);
        let mut spec = asked.clone().host_bytes(left.filter(|_| !full));
        if let Some(disk) = &mut spec.disk {
            disk.capacity_bytes -= u64::from(kv.disk_blocks()) * block_bytes;
        }
        spec.disk =
            spec.disk.filter(|disk| kv.disk_blocks() == 0 || disk.capacity_bytes >= MIN_BLOCKS * block_bytes);
        if full && spec.disk.is_none() && spec.remote.is_none() {
            return Ok(None);
        }
        let tiers = Self::build(&spec, options, model, decoder);
        let refused = |source| Error::KvTiers { spec: Box::new(asked.clone()), source: Box::new(source) };
        tiers.map(Some).map_err(refused)
    }

    fn build(
        spec: &TierSpec,
        options: &EngineOptions,
        model: &Model,
        decoder: &Pipeline,
    ) -> Result<Self, TiersError> {
        let shape = decoder.first().kv().shape();
        let compresses = spec.compression != Compression::None;
        if compresses && shape.dtype != KvDtype::F16 {
            return Err(TiersError::CompressedDtype { dtype: shape.dtype });
        }
        let objects = Objects::new(decoder.config(), decoder.plan())?;
        let pairs = objects.pairs(shape);
        if compresses && pairs.is_none() {
            return Err(TiersError::CompressedLayers);
        }
        // A shard is the part of an object that belongs to one layer: K, then V. What has no such pairs is one shard.
        let shards = pairs.unwrap_or(1);
        let block_bytes = objects.bytes() as u64;
        let layout = u32::try_from(block_bytes / u64::from(shards)).ok();
        let layout = layout.and_then(|bytes| BlockLayout::new(shards, bytes));
        let layout = layout.ok_or(TiersError::BlockBytes { block_bytes })?;
        let mut config = StackConfig::new(layout, namespace(model, decoder)? + objects.about());
        config.rows = Some(RowLayout::PagedKeyValue {
            head_dim: shape.head_dim,
            block_size: shape.block_size,
            num_kv_heads: shape.num_kv_heads,
        });
        let host = model.host_tiers.get(spec, &config)?;
        let changes = (options.cache_events == CacheEvents::All).then(Changes::default);
        config.changes.clone_from(&changes);
        let stack = Arc::new(spec.build_below(host.clone(), &config)?);
        stack.probe()?;
        for warning in stack.take_warnings() {
            options.notes.tell(&Note::TierWarning { warning: warning.to_string() });
        }
        let objects = Arc::new(objects);
        let staged = usize::try_from(STAGED_BYTES / block_bytes).expect("256 MiB are counted in 32 bits");
        let load = options.prefetching();
        let per_block = objects.most_per_block();
        let room = room(options, staged).max(per_block);
        let most_queued = save::MAX_BLOCKS.max(per_block);
        let waiting_depth = staged.clamp(most_queued, StoreConfig::UCM.waiting_depth.max(most_queued));
        // Reads wait as blocks that are staged too.
        let reads = (staged / save::MAX_BLOCKS).max(1);
        let dump = StoreConfig::UCM.streams(4).waiting_depth(waiting_depth);
        Ok(Self {
            loader: prefetch::engine::Engine::new(stack.clone(), load.prefetch_cache_size(room))?,
            saver: Saver::new(Store::new(stack.clone(), dump)?, &objects, reads)?,
            stack,
            host,
            failure: spec.failure,
            room,
            ahead: load.prefetch_ahead,
            portion: room.div_ceil(4),
            objects,
            origins: Origins::new(options),
            ledger: changes.map(Ledger::new),
            looked_up: BTreeMap::new(),
            loads: BTreeMap::new(),
            read_ahead: ReadAhead::default(),
            loaded: BTreeMap::new(),
            step: 0,
            generation: 0,
            told: false,
            notes: options.notes.clone(),
        })
    }

    /// Blocks that were filled by the tokens of `range`, each with its hash; only blocks that a later prefix may need.
    pub(crate) fn filled<'h>(
        &self,
        range: Range<u32>,
        hashes: &'h [BlockHash],
    ) -> impl Iterator<Item = (GroupBlock, BlockHash)> + use<'_, 'h> {
        let needs = &self.objects.needs;
        needs.filled(range).map(|block| (block, needs.hash(hashes, block)))
    }

    /// Records the tokens of blocks that the tiers hold or are about to hold, for use in events.
    pub(crate) fn know(&mut self, content: SeqContent<'_>, blocks: impl IntoIterator<Item = GroupBlock>) {
        let Some(ledger) = &mut self.ledger else { return };
        let (objects, origins) = (&self.objects, &self.origins);
        for GroupBlock { group, index } in blocks {
            let hash_block_size = objects.needs.hash_block_size();
            let size = objects.needs.tokens(GroupBlock { group, index }).len();
            let size = u32::try_from(size).ok().and_then(BlockSize::new).expect("a block has tokens");
            let at = index as usize;
            let block = StoredBlocks::new(content, at..at + 1, size, hash_block_size, group);
            let names =
                |origin: &Origin| objects.names(group, origins.name(block.hashes[0], *origin)).collect();
            let names = origins.possible().iter().map(names).collect();
            ledger.know(block, names);
        }
    }

    /// The host tier. As long as a caller holds it, an engine that is opened with the same options takes it over.
    pub(crate) fn host(&self) -> Option<Arc<HostTier>> {
        self.host.clone()
    }

    /// Whether changes of the tiers are recorded as events.
    pub(crate) const fn tell_events(&self) -> bool {
        self.ledger.is_some()
    }

    /// The events of the tiers since the last call, oldest first.
    pub(crate) fn take_events(&mut self) -> Vec<CacheEvent> {
        self.ledger.as_mut().map(Ledger::take_events).unwrap_or_default()
    }

    /// The origin of what a step of `phase` computes of a sequence.
    pub(crate) fn computed(&mut self, seq: SeqId, phase: Phase) -> Origin {
        self.origins.computed(seq, phase)
    }

    /// Hashes of the blocks of a sequence without salt, as an engine with `options` computes them.
    #[must_use]
    pub(crate) fn hash_chain(&self, options: &EngineOptions) -> HashChain {
        let size = self.objects.needs.hash_block_size();
        let hasher = BlockHasher::new(HashAlgorithm::default(), &hash_seed(options), size);
        HashChain::new(hasher, ExtraKeys::default())
    }

    /// Traffic since the engine was opened.
    #[must_use]
    pub fn traffic(&self) -> TierUse {
        let counters = self.stack.counters();
        let of = |name| {
            let tier = counters.tier(name);
            self.stack.names().any(|held| held == name).then(|| TierTraffic {
                hits: tier.hits,
                misses: tier.misses,
                errors: tier.errors,
                wait_ms: tier.wait_ms(),
                bytes_read: tier.bytes_read,
                bytes_written: tier.bytes_written,
            })
        };
        TierUse {
            device: None,
            host: of(TierName::HOST),
            disk: of(TierName::DISK),
            remote: of(TierName::REMOTE),
            ahead: Some(self.read_ahead).filter(|read| read.predicted > 0),
            overlap: counters.overlap().hidden(),
        }
    }
}

impl TierUse {
    /// The traffic of `tiers`, and the pages that the attention of `decoder` fetched from host blocks. If any page
    /// was fetched, measures the cost of a fetch, which takes a moment.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn of(tiers: Option<&Tiers>, decoder: &mut Decoder) -> Result<Self, ModelError> {
        let traffic = tiers.map(Tiers::traffic).unwrap_or_default();
        let cost = decoder.fetch_cost()?;
        with_fetches(traffic, decoder, cost)
    }
}

/// Adds the fetches of attention from blocks on the host, and their cost if it was measured.
///
/// # Errors
/// Errors of the device.
pub(crate) fn with_fetches(
    used: TierUse,
    decoder: &Decoder,
    cost: Option<FetchCost>,
) -> Result<TierUse, ModelError> {
    let kv = decoder.kv();
    if kv.host_blocks() + kv.disk_blocks() == 0 {
        return Ok(used);
    }
    let pages = decoder.page_traffic()?;
    let mut host = used.host.unwrap_or_default();
    let traffic = decoder.host_traffic();
    let disk = kv.spill().map(|spill| spill.traffic()).map(|moved| {
        let disk = used.disk.unwrap_or_default();
        TierTraffic {
            bytes_read: disk.bytes_read + moved.read_bytes,
            bytes_written: disk.bytes_written + moved.written_bytes,
            errors: disk.errors + moved.errors,
            ..disk
        }
    });
    host.bytes_read += traffic.fetched_bytes + pages.map_or(0, |pages| pages.bytes());
    host.bytes_written += traffic.written_bytes;
    let times = pages.zip(cost).map(|(pages, cost)| cost.of(&pages));
    let device = pages.map(|pages| PageUse {
        hits: pages.hits,
        misses: pages.misses,
        prefetched: pages.prefetched,
        ahead: pages.predictions.map(ReadAhead::from),
        wait_ms: times.map(|(_, waited)| waited / 1e6),
    });
    let moved = times.filter(|(transfer, _)| *transfer > 0.0);
    let hidden = moved.map(|(transfer, waited)| 1.0 - waited / transfer);
    Ok(TierUse {
        device,
        host: Some(host),
        disk: disk.or(used.disk),
        overlap: hidden.or(used.overlap),
        ..used
    })
}

/// The root of every hash chain. A reproducible engine computes rows in another order of operations, and a policy that
/// selects in prefill computes them from other keys, so their blocks must not be confused with those of dense
/// attention, even if all are in one store. What policies of decode change has [other names](Origins::name).
#[must_use]
pub(crate) fn hash_seed(options: &EngineOptions) -> Vec<u8> {
    let kernels = if options.coop { "reproducible by matrices" } else { "reproducible" };
    let order = options.reproducible.then(|| kernels.to_owned());
    let sparse = options.sparse.as_ref().filter(|sparse| sparse.changes_prefill());
    let sparse = sparse.map(|sparse| sparse.spec.to_string());
    order.into_iter().chain(sparse).collect::<Vec<_>>().join(", ").into_bytes()
}

/// Number of blocks that may wait for the device: as many as the policy states, or else `staged` within the defaults.
fn room(options: &EngineOptions, staged: usize) -> usize {
    let stated = options.sparse.as_ref().and_then(|sparse| sparse.policy.deployment().prefetch);
    let most = options.prefetching().prefetch_cache_size;
    stated.map_or(staged.min(most).max(16), |_| most)
}

/// Identifies the contents of the blocks. A store that was written under another name is refused, or its
/// entries are not seen.
fn namespace(model: &Model, decoder: &Pipeline) -> Result<String, models::WeightError> {
    let (shape, config) = (decoder.first().kv().shape(), decoder.config());
    // Keys are rotated.
    let rope = if config.rope == model.config.rope { "" } else { ", short rotation" };
    let index = config.indexer.map(|_| format!(", index keys in {}", decoder.plan().options.of_index()));
    let index = index.unwrap_or_default();
    Ok(format!(
        "model {:032x}, {} layers, {} KV heads of {}, {:?}, K [head, dim/16B, token, 16B] then V [head, token, dim], \
         blocks of {} tokens{index}{rope}",
        model.fingerprint()?,
        config.num_layers,
        shape.num_kv_heads,
        shape.head_dim,
        shape.dtype,
        shape.block_size,
    ))
}

#[cfg(test)]
mod tests {
    use sparse_select::Registry;

    use prefetch::engine::EngineConfig;

    use super::*;
    use crate::sparse::Sparse;

    #[test]
    fn the_policy_decides_how_much_is_loaded_ahead() {
        let with = |spec: &str| {
            let sparse = Sparse::new(&Registry::builtin(), &spec.parse().unwrap()).unwrap();
            EngineOptions { sparse: Some(sparse), ..EngineOptions::new() }.prefetching()
        };
        assert_eq!(with("quest"), EngineConfig::GSA);
        assert_eq!(with("gsa"), EngineConfig::GSA);
        let expected = EngineConfig::GSA.prefetch_workers(9).prefetch_ahead(7);
        assert_eq!(with("gsa:prefetch_workers=9,prefetch_ahead=7"), expected);
        assert_eq!(with("gsa:max_pending_prefetch=5"), EngineConfig::GSA.max_pending_prefetch(5));
    }

    #[test]
    fn a_stated_cache_is_not_cut_to_what_is_staged() {
        // 128 blocks of 2 MiB, as of an 8B model.
        let with = |spec: &str| {
            let sparse = Sparse::new(&Registry::builtin(), &spec.parse().unwrap()).unwrap();
            room(&EngineOptions { sparse: Some(sparse), ..EngineOptions::new() }, 128)
        };
        assert_eq!(["quest", "gsa", "gsa:prefetch_cache_size=7"].map(with), [128, 1000, 7]);
    }
}
