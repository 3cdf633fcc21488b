//! A closer look at the engine, for people who watch it.

use std::collections::VecDeque;
use std::time::Instant;

use kvblock::{BlockSize, SeqId};
use models::{Attended, DecoderConfig};
use scheduler::Slice;

use super::Engine;
use crate::event::Finished;
use crate::kv_used::group_id;
use crate::live_view::{BlockReads, Ended, LiveView, MAX_ENDED, MAX_WATCHED, Owners, ReadStep};
use crate::usage;

/// State that an engine keeps for live views.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Sequences whose block reads were requested.
    wanted: Vec<SeqId>,
    /// Last block reads of each unfinished sequence in `wanted`.
    reads: Vec<BlockReads>,
    ended: VecDeque<Ended>,
    /// Number of tokens per block that the sparse policy or the model's indexer selects; `None` if there is neither.
    select_block: Option<BlockSize>,
    /// Whether selections are traced even if no live view requests them.
    always_traced: bool,
}

impl Watch {
    pub(super) fn new(sparse: Option<&crate::Sparse>, config: &DecoderConfig) -> Self {
        let select_block = sparse.map(|sparse| sparse.policy.block_size());
        let select_block = select_block.or_else(|| BlockSize::new(config.indexed_block()?));
        let always_traced = sparse.is_some_and(|sparse| sparse.trace);
        Self { select_block, always_traced, ..Self::default() }
    }

    /// Remembers the end of a sequence.
    pub(super) fn ended(&mut self, end: &Finished, at: Instant) {
        let Finished { seq, sample, ref reason, ref usage, .. } = *end;
        self.reads.retain(|reads| reads.seq != seq);
        self.ended.push_back(Ended { seq, sample, reason: reason.clone(), usage: usage.clone(), at });
        if self.ended.len() > MAX_ENDED {
            self.ended.pop_front();
        }
    }

    /// Whether a live view shows which blocks a sequence attends.
    pub(super) fn looks_at(&self, seq: SeqId) -> bool {
        self.wanted.contains(&seq)
    }

    /// Records the blocks that a slice attended. Returns whether the sequence is being watched.
    fn take(&mut self, slice: &Slice, attended: &Attended) -> bool {
        let Some(block_size) = self.select_block.filter(|_| self.looks_at(slice.seq)) else {
            return false;
        };
        let step = ReadStep { seq: slice.seq, tokens: slice.end(), block_size };
        let Some(reads) = BlockReads::of(step, attended) else { return false };
        self.reads.retain(|reads| reads.seq != slice.seq);
        self.reads.push(reads);
        true
    }
}

impl Engine {
    /// Takes a closer look at the engine now. Shows the blocks that `watched` sequences read in their last traced
    /// step, and traces their next step, whose selections are then read back, which takes a moment. O(blocks of the
    /// pool).
    pub fn live_view(&mut self, watched: &[SeqId]) -> LiveView {
        let snapshot = self.snapshot();
        self.watch.wanted = watched.iter().copied().take(MAX_WATCHED).collect();
        self.watch.reads.retain(|reads| watched.contains(&reads.seq));
        self.trace_selections(!watched.is_empty());
        let (scheduler, pool) = (&self.scheduler, self.scheduler.cache().pool());
        let mut owners = Owners::new(pool);
        for seq in scheduler.running().iter().copied().chain(scheduler.waiting()) {
            for group in 0..self.kv_used.most.len() {
                owners.add(seq, scheduler.block_table(seq, group_id(group)));
            }
        }
        LiveView {
            policy: usage::policy(self.spec(), self.decoder.config().indexer.is_some()),
            map: owners.map(
                pool,
                self.decoder.num_blocks()
                    - self.decoder.first().kv().host_blocks()
                    - self.decoder.first().kv().disk_blocks(),
            ),
            reads: self.watch.reads.clone(),
            ended: self.watch.ended.iter().map(|ended| ended.view(snapshot.at)).collect(),
            snapshot,
        }
    }

    /// Records the blocks that a slice attended to, if a live view shows the sequence.
    pub(super) fn look_at(&mut self, slice: &Slice, attended: &Attended) {
        if self.watch.take(slice, attended) {
            self.trace_selections(false);
        }
    }

    fn trace_selections(&mut self, on: bool) {
        if self.watch.select_block.is_some() && !self.watch.always_traced {
            self.decoder.trace_selections(on);
        }
    }
}
