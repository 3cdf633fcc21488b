//! Loading KV from outside while a request waits.

use kvblock::{PrefixHit, SeqId, SlotRequest};

use crate::plan::Load;
use crate::scheduler::Scheduler;
use crate::sequence::Status;
use crate::waiting::QueuePlace;

impl Scheduler {
    /// The tokens to load for a sequence after its prefix hit; `None` when there are none.
    pub(crate) fn wanted_load(&self, seq: SeqId, num_hit: u32) -> Option<Load> {
        let found = self.sequence(seq);
        // The last token is always computed: its logits are needed.
        let loadable = found.request.external_tokens.min(found.num_tokens - 1);
        let allowed = !found.request.skip_prefix_lookup && found.saved.is_none();
        let wanted = allowed && found.computed == 0 && loadable > num_hit;
        wanted.then(|| Load { seq, start: num_hit, len: loadable - num_hit })
    }

    /// Number of leading tokens whose KV may be loaded from outside for a sequence that has not run yet. The last
    /// token is never loaded, because its logits are needed. After a load that ended early, no more tokens than
    /// arrived can be loaded. 0 for unknown sequences and those that cannot be loaded.
    #[must_use]
    pub fn loadable_tokens(&self, seq: SeqId) -> u32 {
        let found = self.seqs.get(&seq).filter(|seq| seq.status == Status::Waiting && seq.computed == 0);
        found.map_or(0, |seq| seq.loadable.min(seq.num_tokens - 1))
    }

    /// Announces that a lower tier can deliver the KV of the first `tokens` tokens of a waiting sequence.
    /// Replaces [`Request::external_tokens`](crate::Request::external_tokens) with the result of a lookup
    /// made while the sequence waited.
    ///
    /// # Panics
    /// When more are announced than are [loadable](Self::loadable_tokens).
    pub fn set_external_tokens(&mut self, seq: SeqId, tokens: u32) {
        let loadable = self.loadable_tokens(seq);
        assert!(
            tokens <= loadable,
            "{tokens} external tokens for {seq:?}, of which {loadable} can be loaded"
        );
        self.sequence_mut(seq).request.external_tokens = tokens;
    }

    /// Allocates the blocks of a load and sets the sequence aside. False when there are too few blocks.
    pub(crate) fn start_load(&mut self, load: Load, hit: Option<&PrefixHit>) -> bool {
        let found = &self.seqs[&load.seq];
        let request = SlotRequest::new(load.seq, found.content(), 0, 0)
            .hit(hit)
            .num_external(load.len)
            .delay_cache(true)
            .full_sequence_must_fit(self.config.reserve_full_input);
        if self.cache.allocate_slots(request).is_err() {
            return false;
        }
        let found = self.sequence_mut(load.seq);
        found.before_load = found.status;
        found.status = Status::WaitingForRemoteKv;
        found.computed = load.start;
        true
    }

    /// Reports the end of a [`Load`], successful or not: its first `loaded_tokens` tokens are in the
    /// sequence's blocks, and the others will be computed. Unknown sequences (aborted in the meantime) are
    /// ignored.
    ///
    /// Abort a sequence that is being loaded only after its load has stopped, because its blocks may be
    /// reused immediately.
    ///
    /// # Panics
    /// When the sequence is not waiting for a load, or more tokens are reported than were to be loaded.
    pub fn remote_ready(&mut self, seq: SeqId, loaded_tokens: u32) {
        let Some(found) = self.seqs.get_mut(&seq) else { return };
        assert_eq!(found.status, Status::WaitingForRemoteKv, "{seq:?} waits for no load");
        let missing = found.request.external_tokens.min(found.num_tokens - 1) - found.computed;
        assert!(loaded_tokens <= missing, "{loaded_tokens} tokens loaded for {seq:?}, {missing} asked for");
        found.status = found.before_load;
        found.computed += loaded_tokens;
        let computed = found.computed;
        self.cache
            .cache_blocks(seq, self.seqs[&seq].content(), computed)
            .expect("every full block has a hash");
        if loaded_tokens == missing {
            let place = self.seqs[&seq].place.expect("a sequence waits while it is loaded");
            self.waiting.set_loaded(place, true);
        } else {
            // Groups with a window have blocks for the end of the load only, so the sequence starts over: a
            // lookup finds whatever of it is usable. What these groups need for what arrived may be loaded yet.
            self.cache.free(seq);
            let found = self.sequence_mut(seq);
            found.restart();
            found.loadable = computed;
        }
    }

    /// Frees the blocks of one waiting sequence: the last sequence after `place` in the queue that holds loaded
    /// blocks. Called for a sequence that cannot continue although no other one runs. Without this, loaded sequences
    /// could keep it waiting forever.
    pub(crate) fn reclaim_from_waiting(&mut self, place: Option<QueuePlace>) -> bool {
        let Some(victim) = self.waiting.last_loaded(place) else { return false };
        self.cache.free(victim);
        let found = self.sequence_mut(victim);
        found.restart();
        let place = found.place.expect("it waits");
        self.waiting.set_loaded(place, false);
        true
    }
}
