//! Loading: blocks of requests that will start soon, from the tiers to the device pool.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvblock::{BlockHash, BlockIdx, GroupBlock, GroupId, SeqId};
use models::{ModelError, Pipeline};
use prefetch::engine::{Handle, Submission, TaskKey, TaskOutcome};
use prefetch::failure::{FailurePolicy, Recovery};
use prefetch::plan::Priority;
use prefetch::stack::TierStack;
use prefetch::tier::{TierError, TierName};
use scheduler::{Load, PrefetchRequest, Scheduler, StepPlan};

use super::objects::Objects;
use super::origin::Origins;
use super::{Origin, Tiers};
use crate::error_chain;
use crate::event::CachedTokens;
use crate::usage::ReadAhead;

/// Longest wait for one portion of a load; after that, its request continues without it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Message of a panic that cannot happen, because a sequence is forgotten here before it ends.
const WAITS: &str = "a sequence that is loaded waits";

/// Longest wait before the engine checks for other events, such as Ctrl-C.
const GLANCE: Duration = Duration::from_millis(100);

/// Number of blocks per lookup in the tiers: enough to hide round trips, few enough to waste little after a miss.
const LOOKUP_BLOCKS: u32 = 32;

/// A waiting request whose blocks were looked up.
pub(super) struct LookedUp {
    /// Positions of the tokens that were looked up: from the end of the prefix hit on the device to the end of the
    /// longest possible prefix.
    asked: Range<u32>,
    /// End of the prefix for which the tiers have all blocks that the device lacks.
    found: u32,
    /// Each block found.
    lookup: Lookup,
    /// Number of saves that had ended before the lookup. A lookup that found too little is repeated once more saves
    /// have ended.
    saved: u64,
    /// Blocks that are being read before the load begins.
    ahead: Option<Portion>,
}

/// Tier and origin of a block that a lookup found.
#[derive(Clone, Copy)]
struct Found {
    /// The fastest tier that has the block.
    tier: TierName,
    origin: Origin,
}

/// The blocks of a sequence that a lookup found, with the tier and origin of each.
type Lookup = BTreeMap<GroupBlock, Found>;

/// Blocks of a sequence that are read by one task.
pub(super) struct Portion {
    blocks: Vec<GroupBlock>,
    handle: Handle,
}

/// A request that waits for blocks to be loaded; its place in the device pool is already allocated.
pub(super) struct Loading {
    load: Load,
    /// Blocks of the request that a lookup found.
    lookup: Lookup,
    /// Blocks of the request, in the order of their last tokens.
    blocks: Vec<GroupBlock>,
    /// Number of leading blocks that are on the device.
    landed: usize,
    /// The portion that is read next, and the time since which the load waits for it; `None` until the loader has room.
    portion: Option<(Portion, Instant)>,
}

/// KV of a request that could not be read.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) seq: SeqId,
    /// Position of the first token without KV.
    pub(crate) from_token: u32,
    pub(crate) reason: String,
    /// Whether the request must end.
    pub(crate) ends: bool,
}

/// Why a portion ended early.
struct Bad {
    /// The first bad block.
    block: GroupBlock,
    reason: String,
    /// Whether the block was evicted since the lookup, which is no failure.
    missing: bool,
}

/// Lookup of the blocks of one sequence.
struct Search<'a> {
    stack: &'a TierStack,
    objects: &'a Objects,
    origins: &'a Origins,
    hashes: &'a [BlockHash],
    /// Each requested block.
    known: HashMap<GroupBlock, Option<Found>>,
}

impl Search<'_> {
    /// Number of leading blocks of `range` that the tiers hold.
    fn held(&mut self, group: GroupId, range: Range<u32>) -> u32 {
        for index in range.clone() {
            let block = GroupBlock { group, index };
            if !self.known.contains_key(&block) {
                self.ask(group, index..range.end.min(index + LOOKUP_BLOCKS));
            }
            if self.known[&block].is_none() {
                return index - range.start;
            }
        }
        range.end.saturating_sub(range.start)
    }

    fn ask(&mut self, group: GroupId, range: Range<u32>) {
        let blocks = range.map(|index| GroupBlock { group, index });
        let mut blocks: Vec<GroupBlock> = blocks.filter(|block| !self.known.contains_key(block)).collect();
        for origin in self.origins.possible().iter().copied() {
            let named = |_: &GroupBlock, hash| self.origins.name(hash, origin);
            let found = self.stack.lookup_many(&self.objects.names_of(&blocks, self.hashes, named));
            let mut found = found.as_slice();
            for block in &blocks {
                let (own, others) = found.split_at(self.objects.count(&[*block]));
                found = others;
                let tiers: Option<Vec<TierName>> = own.iter().copied().collect();
                let tier = tiers.and_then(|tiers| tiers.first().copied());
                self.known.insert(*block, tier.map(|tier| Found { tier, origin }));
            }
            blocks.retain(|block| self.known[block].is_none());
            if blocks.is_empty() {
                break;
            }
        }
    }
}

impl Tiers {
    /// Looks up the blocks of the requests that will probably start within the next steps, tells the
    /// scheduler which can be loaded, and begins to read them.
    pub(crate) fn look_ahead(&mut self, scheduler: &mut Scheduler) {
        self.step += 1;
        self.loader.advance(self.step);
        let (objects, stack) = (Arc::clone(&self.objects), Arc::clone(&self.stack));
        for request in scheduler.prefetch_requests(self.ahead) {
            let asked = request.start..objects.needs.aligned(scheduler.loadable_tokens(request.seq));
            let known = self.looked_up.get(&request.seq).is_some_and(|known| {
                known.asked == asked && (known.found == asked.end || known.saved == self.saver.ended())
            });
            if known || asked.is_empty() {
                continue;
            }
            let hashes = scheduler.block_hashes(request.seq).expect(WAITS);
            let origins = &self.origins;
            let mut search =
                Search { stack: &stack, objects: &objects, origins, hashes, known: HashMap::new() };
            let held = |group, range| search.held(group, range);
            let found = objects.needs.longest(asked.start, asked.end, held);
            let blocks = objects.needs.beyond(asked.start, found);
            let lookup: Lookup =
                blocks.iter().filter_map(|block| Some((*block, search.known[block]?))).collect();
            self.know(scheduler.content(request.seq).expect(WAITS), lookup.keys().copied());
            let ahead = self.read_ahead(&request, blocks, &lookup, hashes);
            scheduler.set_external_tokens(request.seq, found);
            let looked_up = LookedUp { asked, found, lookup, saved: self.saver.ended(), ahead };
            self.looked_up.insert(request.seq, looked_up);
        }
    }

    /// Begins to read the first portion of the blocks of a request that is still waiting. If the loader has no room or the
    /// queue is full, the blocks are read later.
    fn read_ahead(
        &mut self,
        request: &PrefetchRequest,
        mut blocks: Vec<GroupBlock>,
        lookup: &Lookup,
        hashes: &[BlockHash],
    ) -> Option<Portion> {
        blocks.truncate(self.objects.portion(&blocks, self.portion));
        let count = self.objects.count(&blocks);
        let ahead = self.looked_up.values().filter_map(|known| known.ahead.as_ref());
        let ahead: usize = ahead.map(|ahead| self.objects.count(&ahead.blocks)).sum();
        if blocks.is_empty() || ahead + self.loading_objects() + count > self.room {
            return None;
        }
        let names = self.names(&blocks, lookup, hashes);
        let submission =
            Submission::new(self.next_key(request.seq), Priority::of_position(request.position), names)
                .step(self.step - 1 + u64::from(request.batch));
        let handle = self.loader.submit(submission).ok()?;
        self.read_ahead.predicted += count as u64;
        Some(Portion { blocks, handle })
    }

    /// Names of the objects of some blocks of a sequence, each of the origin that the lookup found.
    fn names(&self, blocks: &[GroupBlock], lookup: &Lookup, hashes: &[BlockHash]) -> Vec<BlockHash> {
        let named = |block: &GroupBlock, hash| self.origins.name(hash, origin_of(lookup, block));
        self.objects.names_of(blocks, hashes, named)
    }

    /// Starts the loads of a plan, and counts the misses of its new requests.
    pub(crate) fn start(&mut self, scheduler: &Scheduler, plan: &StepPlan) {
        for admitted in &plan.admitted {
            let tables = self.objects.groups().map(|group| scheduler.block_table(admitted.seq, group));
            self.origins.admit(admitted.seq, tables.flatten().copied());
            if let Some(known) = self.looked_up.remove(&admitted.seq) {
                let missed = self.objects.needs.beyond(known.found, known.asked.end);
                self.stack.count_misses(self.objects.count(&missed) as u64);
            }
        }
        for load in &plan.loads {
            let blocks = self.objects.needs.beyond(load.start, load.start + load.len);
            self.know(scheduler.content(load.seq).expect(WAITS), blocks.iter().copied());
            let known = self.looked_up.get_mut(&load.seq);
            let (lookup, ahead) =
                known.map(|known| (known.lookup.clone(), known.ahead.take())).unwrap_or_default();
            let ahead = ahead.filter(|ahead| blocks.starts_with(&ahead.blocks));
            if let Some(Portion { blocks, handle }) = &ahead {
                let ReadAhead { used, late, .. } = &mut self.read_ahead;
                *(if handle.is_settled() { used } else { late }) += self.objects.count(blocks) as u64;
            }
            let portion = ahead.map(|portion| (portion, Instant::now()));
            self.loads.insert(load.seq, Loading { load: *load, lookup, blocks, landed: 0, portion });
        }
        self.submit(scheduler);
    }

    /// Copies blocks that were read to the device and lets their requests continue. Returns what could not be read.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn arrive(
        &mut self,
        scheduler: &mut Scheduler,
        decoder: &mut Pipeline,
    ) -> Result<Vec<Unreadable>, ModelError> {
        let mut unreadable = Vec::new();
        for (seq, mut loading) in std::mem::take(&mut self.loads) {
            let settled = loading
                .portion
                .take_if(|(portion, since)| portion.handle.is_settled() || since.elapsed() > PATIENCE);
            let mut bad = None;
            if let Some((Portion { blocks, handle }, _)) = settled {
                bad = self.land(scheduler, decoder, &loading, &blocks, &handle.wait(Duration::ZERO))?;
                handle.cancel();
                loading.landed += blocks.len();
            }
            if bad.is_none() && loading.landed < loading.blocks.len() {
                self.loads.insert(seq, loading);
            } else {
                unreadable.extend(self.end_load(scheduler, &loading, bad));
            }
        }
        self.submit(scheduler);
        Ok(unreadable)
    }

    /// Whether any request is waiting for blocks.
    #[must_use]
    pub(crate) fn is_loading(&self) -> bool {
        !self.loads.is_empty()
    }

    /// Waits a moment for the oldest load, when nothing else can run.
    pub(crate) fn wait(&self) {
        let mut portions = self.loads.values().filter_map(|loading| loading.portion.as_ref());
        if let Some((portion, _)) = portions.next() {
            // `arrive` handles the outcome.
            let _ = portion.handle.wait(GLANCE);
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Forgets a request that ended: no more of its blocks are written to the device.
    pub(crate) fn cancel(&mut self, seq: SeqId) {
        self.loaded.remove(&seq);
        self.origins.end(seq);
        let was_looked_up = self.looked_up.remove(&seq).is_some();
        if self.loads.remove(&seq).is_some() || was_looked_up {
            self.loader.cancel(seq);
        }
    }

    /// Writes the blocks of a portion to the device, up to the first bad one.
    fn land(
        &mut self,
        scheduler: &Scheduler,
        decoder: &mut Pipeline,
        loading: &Loading,
        blocks: &[GroupBlock],
        outcome: &TaskOutcome,
    ) -> Result<Option<Bad>, ModelError> {
        let mut good = blocks.len();
        let mut bad = match outcome {
            TaskOutcome::Ready { .. } => None,
            TaskOutcome::Failed(all) => all.first().map(|bad| {
                good = self.objects.owner(blocks, bad.position as usize);
                Bad::new(blocks[good], &bad.error)
            }),
            _ => {
                good = 0;
                let reason = format!("no answer within {PATIENCE:?}");
                Some(Bad { block: blocks[0], reason, missing: false })
            }
        };
        let seq = loading.load.seq;
        let hashes = scheduler.block_hashes(seq).expect(WAITS);
        for block in &blocks[..good] {
            // Objects that were evicted from the cache are read again.
            let read = |name| self.loader.take(name).map_or_else(|| self.loader.load(name), Ok);
            let names = self.names(&[*block], &loading.lookup, hashes);
            match names.into_iter().map(read).collect::<Result<Vec<_>, _>>() {
                Ok(objects) => {
                    let id = scheduler.block_table(seq, block.group)[block.index as usize];
                    decoder.write_block(id, &self.objects.join(block.group, &objects))?;
                    self.origins.fill(id, origin_of(&loading.lookup, block));
                    objects.into_iter().for_each(|object| self.loader.give_back(object));
                }
                Err(error) => {
                    bad = Some(Bad::new(*block, &error));
                    break;
                }
            }
        }
        Ok(bad)
    }

    /// Tells the scheduler how many tokens a load has brought. Returns the part that could not be read, if the load met a
    /// bad block.
    fn end_load(
        &mut self,
        scheduler: &mut Scheduler,
        loading: &Loading,
        bad: Option<Bad>,
    ) -> Option<Unreadable> {
        let Load { seq, start, len } = loading.load;
        let Some(Bad { block, reason, missing }) = bad else {
            self.count_loaded(loading);
            scheduler.remote_ready(seq, len);
            return None;
        };
        let needs = &self.objects.needs;
        let size = needs.hash_block_size();
        // Blocks land in the order of their last tokens: those of all groups that end before this one begins are there.
        let good_tokens = needs.tokens(block).start.max(start);
        let [first, past, bad] = [start, start + len, good_tokens].map(|tokens| tokens / size.get());
        let hashes = &scheduler.block_hashes(seq).expect(WAITS)[first as usize..past as usize];
        let policy = if missing { FailurePolicy::Recompute } else { self.failure };
        let recovery = policy.recover(hashes, BlockIdx::new(first), &[bad - first], start + len, size);
        // What is left of it may be looked up again.
        self.looked_up.remove(&seq);
        scheduler.remote_ready(seq, good_tokens - start);
        let ends = matches!(recovery, Recovery::Fail { .. });
        Some(Unreadable { seq, from_token: good_tokens, reason, ends })
    }

    /// Counts the tokens that were loaded for a request by tier. A block counts for the tokens between the end of the
    /// previous block and its own end.
    fn count_loaded(&mut self, loading: &Loading) {
        let mut counts = CachedTokens::default();
        let mut from = loading.load.start;
        for block in &loading.blocks {
            let end = self.objects.needs.tokens(*block).end;
            let tokens = end.saturating_sub(from);
            from = from.max(end);
            match loading.lookup.get(block).map(|found| found.tier) {
                Some(TierName::HOST) => counts.host += tokens,
                Some(TierName::DISK) => counts.disk += tokens,
                Some(TierName::REMOTE) => counts.remote += tokens,
                // Not looked up: the device has lost it since.
                _ => {}
            }
        }
        self.loaded.insert(loading.load.seq, counts);
    }

    /// Tokens that were loaded for a request that starts.
    pub(crate) fn take_loaded(&mut self, seq: SeqId) -> CachedTokens {
        self.loaded.remove(&seq).unwrap_or_default()
    }

    /// Begins to read the next portion of every load that has none in progress, if the loader's cache has room for it without
    /// evicting awaited blocks.
    fn submit(&mut self, scheduler: &Scheduler) {
        let idle = self.loads.iter().filter(|(_, loading)| loading.portion.is_none()).map(|(seq, _)| *seq);
        for seq in idle.collect::<Vec<SeqId>>() {
            let Loading { blocks, landed, lookup, .. } = &self.loads[&seq];
            let rest = &blocks[*landed..];
            if rest.is_empty() {
                continue;
            }
            let blocks = rest[..self.objects.portion(rest, self.portion)].to_vec();
            if self.loading_objects() + self.objects.count(&blocks) > self.room {
                return;
            }
            let names = self.names(&blocks, lookup, scheduler.block_hashes(seq).expect(WAITS));
            let submission = Submission::new(self.next_key(seq), Priority::Urgent, names).step(self.step);
            // A full queue drains on its own; until then the load waits.
            let Ok(handle) = self.loader.submit(submission) else { return };
            let portion = Portion { blocks, handle };
            self.loads.entry(seq).and_modify(|loading| loading.portion = Some((portion, Instant::now())));
        }
    }

    /// Number of objects, the units that tiers store, whose loads are under way for requests that wait.
    fn loading_objects(&self) -> usize {
        let portions = self.loads.values().filter_map(|loading| loading.portion.as_ref());
        portions.map(|(portion, _)| self.objects.count(&portion.blocks)).sum()
    }

    fn next_key(&mut self, seq: SeqId) -> TaskKey {
        self.generation += 1;
        TaskKey { seq, generation: self.generation }
    }
}

/// The origin that the lookup found for a block; `Origin::Tokens` for a block that was not looked up.
fn origin_of(lookup: &Lookup, block: &GroupBlock) -> Origin {
    lookup.get(block).map_or(Origin::Tokens, |found| found.origin)
}

impl Bad {
    fn new(block: GroupBlock, error: &TierError) -> Self {
        let missing = matches!(error, TierError::NotFound { .. });
        Self { block, reason: error_chain::joined(error), missing }
    }
}
