//! Forecast of the next steps, so that lower tiers can prepare for them.

use kvblock::{BlockHash, SeqId};
use rustc_hash::FxHashSet;

use crate::scheduler::Scheduler;
use crate::sequence::Status;

/// A request to prefetch blocks that a waiting sequence can use, if a lower tier provides them before the sequence
/// starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrefetchRequest {
    /// The sequence.
    pub seq: SeqId,
    /// Number of steps ahead: 1 is the next step.
    pub batch: u32,
    /// Position of the sequence among all forecast sequences, in the order of service; a lower position is more
    /// urgent.
    pub position: u32,
    /// Number of tokens of the sequence's prefix hit.
    pub start: u32,
    /// Hashes of the blocks that follow the sequence's prefix hit, at hash-block granularity, in sequence
    /// order: a hit must have no gap.
    pub blocks: Vec<BlockHash>,
}

/// A sequence in the forecast.
struct Expected {
    seq: SeqId,
    /// Number of tokens left to compute before the sequence decodes one token per step.
    left: u32,
    seats: usize,
}

impl Scheduler {
    /// The sequences that the next `num_batches` steps will probably run, one list per step. Token budget and
    /// sequence limit are applied; blocks are assumed to suffice, and no sequence to end. O(`num_batches` ·
    /// sequence limit), and O(prompt blocks) for each sequence that starts.
    #[must_use]
    pub fn forecast(&self, num_batches: u32) -> Vec<Vec<SeqId>> {
        let expected = |seq: &SeqId, num_hit: u32| {
            let found = self.sequence(*seq);
            let left = found.num_tokens - found.computed - num_hit;
            Expected { seq: *seq, left: left.max(1), seats: found.num_seats() }
        };
        let mut running: Vec<Expected> = self.running.iter().map(|seq| expected(seq, 0)).collect();
        // Only those that the budget can reach are looked at.
        let is_ready = |seq: &SeqId| self.sequence(*seq).status != Status::WaitingForRemoteKv;
        let mut waiting = self.waiting.iter().filter(is_ready).peekable();
        let mut seats: usize = running.iter().map(|found| found.seats).sum();
        let mut batches = Vec::new();
        for _ in 0..num_batches {
            let mut budget = self.config.max_num_batched_tokens;
            let mut batch = Vec::new();
            for found in &mut running {
                self.forecast_slice(found, &mut budget, &mut batch);
            }
            while let Some(&seq) = waiting.peek().filter(|_| budget > 0) {
                let mut found = expected(&seq, self.lookup(seq).map_or(0, |hit| hit.num_tokens));
                let too_long = !self.config.chunked_prefill && found.left > budget;
                if too_long || seats + found.seats > self.config.max_num_seqs as usize {
                    break;
                }
                self.forecast_slice(&mut found, &mut budget, &mut batch);
                seats += found.seats;
                running.push(found);
                waiting.next();
            }
            batches.push(batch);
        }
        batches
    }

    fn forecast_slice(&self, found: &mut Expected, budget: &mut u32, batch: &mut Vec<SeqId>) {
        let threshold = match self.config.long_prefill_token_threshold {
            0 => u32::MAX,
            threshold => threshold,
        };
        let len = found.left.min(threshold).min(*budget);
        if len > 0 {
            *budget -= len;
            found.left = (found.left - len).max(1);
            batch.push(found.seq);
        }
    }

    /// Returns requests to prefetch the blocks of the sequences that will probably start within the next
    /// `prefetch_ahead` steps. Running sequences already have their blocks on the device, and loads under way are not
    /// requested again.
    #[must_use]
    pub fn prefetch_requests(&self, prefetch_ahead: u32) -> Vec<PrefetchRequest> {
        let mut requests: Vec<PrefetchRequest> = Vec::new();
        let mut seen = FxHashSet::default();
        for (batch, seqs) in (1..).zip(self.forecast(prefetch_ahead)) {
            for seq in seqs {
                let found = self.sequence(seq);
                let starts = found.status != Status::Running && found.computed == 0;
                if !starts || found.request.skip_prefix_lookup || !seen.insert(seq) {
                    continue;
                }
                let start = self.lookup(seq).map_or(0, |hit| hit.num_tokens);
                let size = self.cache.hasher().block_size().get();
                // The last token is always computed, so the block that it completes is never used.
                let usable = ((found.num_tokens - 1) / size) as usize;
                let blocks = found.chain.hashes()[(start / size) as usize..usable].to_vec();
                if !blocks.is_empty() {
                    let position = u32::try_from(requests.len()).expect("fewer requests than sequences");
                    requests.push(PrefetchRequest { seq, batch, position, start, blocks });
                }
            }
        }
        requests
    }
}
