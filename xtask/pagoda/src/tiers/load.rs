//! Loading: blocks of requests that will start soon, from the tiers to the device pool.

use std::ops::Range;
use std::time::{Duration, Instant};

use kvblock::{BlockIdx, BlockSize, SeqId};
use models::{Decoder, ModelError};
use prefetch::engine::{Handle, Outcome, Submission, TaskKey};
use prefetch::failure::{FailurePolicy, Recovery};
use prefetch::plan::Priority;
use prefetch::tier::{TierError, TierName};
use scheduler::{Load, PrefetchWish, Scheduler, StepPlan};

use super::{GROUP, Tiers};
use crate::event::CachedTokens;
use crate::usage::ReadAhead;
use crate::{Note, error_chain};

/// Longest wait for one portion of a load; after that, its request continues without it.
const PATIENCE: Duration = Duration::from_secs(30);

/// A sequence that ends is forgotten here before.
const WAITS: &str = "a sequence that is loaded waits";

/// Longest wait before the engine checks for other events, such as Ctrl-C.
const GLANCE: Duration = Duration::from_millis(100);

/// A waiting request whose blocks were looked up.
pub(super) struct Wished {
    /// Number of blocks looked up, after the prefix hit.
    asked: usize,
    /// The fastest tier of each that was found, from the first.
    found: Vec<TierName>,
    /// Saves that had ended at that time: a lookup that found too little is worth repeating once there are more.
    saved: u64,
    /// Blocks that are read ahead: positions in the sequence, and the task.
    ahead: Option<(Range<u32>, Handle)>,
}

impl Wished {
    /// Tiers of the blocks of a load, which ends with the last block found. The first ones were not looked up
    /// if the device has lost them since.
    fn tiers_of(&self, blocks: usize) -> Vec<TierName> {
        self.found[self.found.len().saturating_sub(blocks)..].to_vec()
    }
}

/// A request that waits for blocks to be loaded; its place in the device pool is already allocated.
pub(super) struct Loading {
    load: Load,
    /// The tiers of its blocks, as the lookup found them.
    found: Vec<TierName>,
    /// Positions in the sequence of the blocks that are not on the device yet.
    rest: Range<u32>,
    /// The task that reads the first blocks of `rest`, and since when; `None` until the loader has room.
    portion: Option<(Range<u32>, Handle, Instant)>,
}

/// Why a portion ended early.
struct Bad {
    /// Position in the sequence of the first bad block.
    block: u32,
    reason: String,
    /// Whether it was evicted since the lookup, which is no failure.
    missing: bool,
}

impl Tiers {
    /// Looks up the blocks of the requests that will probably start within the next steps, tells the
    /// scheduler which can be loaded, and begins to read them.
    pub(crate) fn look_ahead(&mut self, scheduler: &mut Scheduler) {
        self.step += 1;
        self.loader.advance(self.step);
        for wish in scheduler.prefetch_wishes(self.ahead) {
            let known = self.wishes.get(&wish.seq).is_some_and(|known| {
                known.asked == wish.blocks.len()
                    && (known.found.len() == known.asked || known.saved == self.saver.ended())
            });
            if known || !scheduler.is_loadable(wish.seq) {
                continue;
            }
            let found = self.stack.lookup_prefix(&wish.blocks);
            // The last token is always computed, so the block that it completes is not looked up.
            let usable = (scheduler.tokens(wish.seq).expect(WAITS).len() - 1) / self.block_size as usize;
            let first = usable - wish.blocks.len();
            scheduler.set_external_tokens(wish.seq, u32_of(first + found.len()) * self.block_size);
            let ahead = self.read_ahead(&wish, u32_of(first), u32_of(found.len()));
            let wished = Wished { asked: wish.blocks.len(), found, saved: self.saver.ended(), ahead };
            self.wishes.insert(wish.seq, wished);
        }
    }

    /// Begins to read the first portion of a request that is still waiting. If the loader has no room or the
    /// queue is full, the blocks are read later.
    fn read_ahead(&mut self, wish: &PrefetchWish, first: u32, found: u32) -> Option<(Range<u32>, Handle)> {
        let count = found.min(self.portion);
        let ahead = self.wishes.values().filter_map(|wish| wish.ahead.as_ref().map(|ahead| ahead.0.len()));
        if found == 0 || ahead.sum::<usize>() + self.loading_blocks() + count as usize > self.room {
            return None;
        }
        let submission = Submission::new(
            self.next_key(wish.seq),
            Priority::of_position(wish.position),
            wish.blocks[..count as usize].to_vec(),
        )
        .step(self.step - 1 + u64::from(wish.batch));
        let handle = self.loader.submit(submission).ok()?;
        self.read_ahead.predicted += u64::from(count);
        Some((first..first + count, handle))
    }

    /// Starts the loads of a plan, and counts the misses of its new requests.
    pub(crate) fn start(&mut self, scheduler: &Scheduler, plan: &StepPlan) {
        for admitted in &plan.admitted {
            if let Some(wish) = self.wishes.remove(&admitted.seq) {
                self.stack.count_misses((wish.asked - wish.found.len()) as u64);
            }
        }
        for load in &plan.loads {
            let size = self.block_size;
            let rest = load.start / size..(load.start + load.len) / size;
            let wish = self.wishes.get_mut(&load.seq);
            let found = wish.as_ref().map_or_else(Vec::new, |wish| wish.tiers_of(rest.len()));
            let ahead = wish.and_then(|wish| wish.ahead.take());
            let ahead = ahead.filter(|(range, _)| range.start == rest.start && range.end <= rest.end);
            if let Some((range, handle)) = &ahead {
                let ReadAhead { used, late, .. } = &mut self.read_ahead;
                *(if handle.is_settled() { used } else { late }) += range.len() as u64;
            }
            let portion = ahead.map(|(range, handle)| (range, handle, Instant::now()));
            self.loads.insert(load.seq, Loading { load: *load, found, rest, portion });
        }
        self.submit(scheduler);
    }

    /// Copies blocks that were read to the device and lets their requests continue. Returns the requests that
    /// must end because their blocks could not be read.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn arrive(
        &mut self,
        scheduler: &mut Scheduler,
        decoder: &mut Decoder,
    ) -> Result<Vec<SeqId>, ModelError> {
        let mut ended = Vec::new();
        for (seq, mut loading) in std::mem::take(&mut self.loads) {
            let settled = loading
                .portion
                .take_if(|(_, handle, since)| handle.is_settled() || since.elapsed() > PATIENCE);
            let Some((range, handle, _)) = settled else {
                self.loads.insert(seq, loading);
                continue;
            };
            let bad = self.land(scheduler, decoder, seq, &range, &handle.wait(Duration::ZERO))?;
            handle.cancel();
            loading.rest.start = range.end;
            if bad.is_none() && !loading.rest.is_empty() {
                self.loads.insert(seq, loading);
            } else if self.end_load(scheduler, &loading, bad) {
                ended.push(seq);
            }
        }
        self.submit(scheduler);
        Ok(ended)
    }

    /// Whether any request is waiting for blocks.
    #[must_use]
    pub(crate) fn is_loading(&self) -> bool {
        !self.loads.is_empty()
    }

    /// Waits a moment for the oldest load, when nothing else can run.
    pub(crate) fn wait(&self) {
        let mut portions = self.loads.values().filter_map(|loading| loading.portion.as_ref());
        if let Some((_, handle, _)) = portions.next() {
            // `arrive` handles the outcome.
            let _ = handle.wait(GLANCE);
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Forgets a request that ended: no more of its blocks are written to the device.
    pub(crate) fn cancel(&mut self, seq: SeqId) {
        self.loaded.remove(&seq);
        let wished = self.wishes.remove(&seq).is_some();
        if self.loads.remove(&seq).is_some() || wished {
            self.loader.cancel(seq);
        }
    }

    /// Writes the blocks of a portion to the device, up to the first bad one.
    fn land(
        &self,
        scheduler: &Scheduler,
        decoder: &mut Decoder,
        seq: SeqId,
        range: &Range<u32>,
        outcome: &Outcome,
    ) -> Result<Option<Bad>, ModelError> {
        let mut bad = match outcome {
            Outcome::Ready { .. } => None,
            Outcome::Failed(all) => all.first().map(|bad| Bad {
                block: range.start + bad.position,
                reason: error_chain::joined(&bad.error),
                missing: matches!(*bad.error, TierError::NotFound { .. }),
            }),
            _ => Some(Bad {
                block: range.start,
                reason: format!("no answer within {PATIENCE:?}"),
                missing: false,
            }),
        };
        let table = scheduler.block_table(seq, GROUP);
        let good = range.start..bad.as_ref().map_or(range.end, |bad| bad.block);
        for block in good {
            let hash = scheduler.block_hashes(seq).expect(WAITS)[block as usize];
            // Blocks that were evicted from the cache are read again.
            let bytes = self.loader.take(hash).map_or_else(|| self.loader.load(hash), Ok);
            match bytes {
                Ok(bytes) => {
                    decoder.write_block(table[block as usize], &bytemuck::pod_collect_to_vec(&bytes))?;
                    self.loader.give_back(bytes);
                }
                Err(error) => {
                    let missing = matches!(error, TierError::NotFound { .. });
                    bad = Some(Bad { block, reason: error_chain::joined(&error), missing });
                    break;
                }
            }
        }
        Ok(bad)
    }

    /// Returns a load to the scheduler. The result is whether its request must end.
    fn end_load(&mut self, scheduler: &mut Scheduler, loading: &Loading, bad: Option<Bad>) -> bool {
        let Load { seq, start, len } = loading.load;
        let Some(Bad { block, reason, missing }) = bad else {
            self.count_loaded(seq, &loading.found);
            scheduler.remote_ready(seq, len);
            return false;
        };
        let (first, past) = (start / self.block_size, (start + len) / self.block_size);
        let hashes = &scheduler.block_hashes(seq).expect(WAITS)[first as usize..past as usize];
        let policy = if missing { FailurePolicy::Recompute } else { self.failure };
        let size = BlockSize::new(self.block_size).expect("the engine was opened with it");
        let recovery = policy.recover(hashes, BlockIdx::new(first), &[block - first], start + len, size);
        let good_tokens = block * self.block_size;
        let must_end = matches!(recovery, Recovery::Fail { .. });
        self.notes.tell(&Note::KvUnreadable { seq, from_token: good_tokens, reason, ends: must_end });
        scheduler.remote_ready(seq, good_tokens - start);
        must_end
    }

    /// Counts the tokens of blocks that were loaded for a request.
    fn count_loaded(&mut self, seq: SeqId, tiers: &[TierName]) {
        let of = |name| self.block_size * u32_of(tiers.iter().filter(|tier| **tier == name).count());
        let [host, disk, remote] = [TierName::HOST, TierName::DISK, TierName::REMOTE].map(of);
        self.loaded.insert(seq, CachedTokens { device: 0, host, disk, remote });
    }

    /// Tokens that were loaded for a request that starts.
    pub(crate) fn take_loaded(&mut self, seq: SeqId) -> CachedTokens {
        self.loaded.remove(&seq).unwrap_or_default()
    }

    /// Begins to read the next portion of every load that has none in progress, as far as the loader's cache
    /// has room for it without evicting what others wait for.
    fn submit(&mut self, scheduler: &Scheduler) {
        let idle = self.loads.iter().filter(|(_, loading)| loading.portion.is_none()).map(|(seq, _)| *seq);
        for seq in idle.collect::<Vec<SeqId>>() {
            let rest = &self.loads[&seq].rest;
            let range = rest.start..rest.end.min(rest.start + self.portion);
            if self.loading_blocks() + range.len() > self.room {
                return;
            }
            let hashes = scheduler.block_hashes(seq).expect(WAITS);
            let blocks = hashes[range.start as usize..range.end as usize].to_vec();
            let key = self.next_key(seq);
            let submission = Submission::new(key, Priority::Urgent, blocks).step(self.step);
            // A full queue drains on its own; until then the load waits.
            let Ok(handle) = self.loader.submit(submission) else { return };
            self.loads
                .entry(seq)
                .and_modify(|loading| loading.portion = Some((range, handle, Instant::now())));
        }
    }

    /// Number of blocks that admitted requests are waiting for.
    fn loading_blocks(&self) -> usize {
        self.loads.values().filter_map(|loading| Some(loading.portion.as_ref()?.0.len())).sum()
    }

    fn next_key(&mut self, seq: SeqId) -> TaskKey {
        self.generation += 1;
        TaskKey { seq, generation: self.generation }
    }
}

fn u32_of(blocks: usize) -> u32 {
    u32::try_from(blocks).expect("a sequence has fewer than 2^32 blocks")
}
