//! KV that arrives from outside while a request waits.

use kvblock::{PrefixHit, SeqId, SlotRequest};

use crate::plan::Load;
use crate::scheduler::Scheduler;
use crate::sequence::Phase;

impl Scheduler {
    /// The tokens to load for a sequence behind its prefix hit; `None` when there are none.
    pub(crate) fn wanted_load(&self, seq: SeqId, num_hit: u32) -> Option<Load> {
        let found = self.sequence(seq);
        // The last token is always computed: its logits are needed.
        let loadable = found.request.external_tokens.min(found.num_tokens - 1);
        let allowed = !found.request.skip_prefix_lookup && found.saved.is_none();
        let wanted = allowed && found.computed == 0 && loadable > num_hit;
        wanted.then(|| Load { seq, start: num_hit, len: loadable - num_hit })
    }

    /// Whether KV of a sequence may still come from outside: once, before it first runs. Unknown sequences cannot
    /// be loaded.
    #[must_use]
    pub fn is_loadable(&self, seq: SeqId) -> bool {
        let found = self.seqs.get(&seq);
        found.is_some_and(|seq| seq.loadable && seq.phase == Phase::Waiting && seq.computed == 0)
    }

    /// Says that a lower tier can deliver the KV of the first `tokens` tokens of a waiting sequence, as
    /// [`Request::external_tokens`](crate::Request::external_tokens) does when it is added: lookups that were
    /// made while it waited know more.
    ///
    /// # Panics
    /// When the sequence is not [loadable](Self::is_loadable).
    pub fn set_external_tokens(&mut self, seq: SeqId, tokens: u32) {
        assert!(
            self.is_loadable(seq),
            "{tokens} external tokens for {seq:?}, which cannot be loaded any more"
        );
        self.sequence_mut(seq).request.external_tokens = tokens;
    }

    /// Takes the blocks of a load and sets the sequence aside. False when the blocks do not suffice.
    pub(crate) fn start_load(&mut self, load: Load, hit: Option<&PrefixHit>) -> bool {
        let found = &self.seqs[&load.seq];
        let request = SlotRequest {
            hit,
            num_external: load.len,
            delay_cache: true,
            full_sequence_must_fit: self.config.reserve_full_input,
            ..SlotRequest::new(load.seq, found.content(), 0, 0)
        };
        if self.cache.allocate_slots(request).is_err() {
            return false;
        }
        let found = self.sequence_mut(load.seq);
        found.before_load = found.phase;
        found.phase = Phase::WaitingForRemoteKv;
        found.computed = load.start;
        true
    }

    /// Reports the end of a [`Load`], successful or not: its first `loaded_tokens` tokens are in the
    /// sequence's blocks. What is missing will be computed. Unknown sequences (aborted meanwhile) are
    /// ignored.
    ///
    /// Abort a sequence that is being loaded only after its load has stopped: its blocks are reused at once.
    ///
    /// # Panics
    /// When the sequence does not wait for a load.
    pub fn remote_ready(&mut self, seq: SeqId, loaded_tokens: u32) {
        let Some(found) = self.seqs.get_mut(&seq) else { return };
        assert_eq!(found.phase, Phase::WaitingForRemoteKv, "{seq:?} waits for no load");
        let missing = found.request.external_tokens.min(found.num_tokens - 1) - found.computed;
        assert!(loaded_tokens <= missing, "{loaded_tokens} tokens loaded for {seq:?}, {missing} asked for");
        found.phase = found.before_load;
        found.computed += loaded_tokens;
        let computed = found.computed;
        self.cache
            .cache_blocks(seq, self.seqs[&seq].content(), computed)
            .expect("every full block has a hash");
        if loaded_tokens < missing {
            // Groups with a window have blocks for the end of the load only, so the sequence starts over: a
            // lookup finds whatever of it is usable.
            self.cache.free(seq);
            self.sequence_mut(seq).restart();
        }
    }

    /// Takes the blocks of the last waiting sequence that holds some, at queue position `first` or later, for
    /// one that cannot go on though no other sequence runs. Without this, loaded sequences could keep it
    /// waiting forever.
    pub(crate) fn reclaim_from_waiting(&mut self, first: usize) -> bool {
        let holds = |seq: &&SeqId| {
            let found = self.sequence(**seq);
            found.computed > 0 && found.saved.is_none() && found.phase != Phase::WaitingForRemoteKv
        };
        let Some(&victim) = self.waiting.iter().skip(first).rev().find(holds) else { return false };
        self.cache.free(victim);
        self.sequence_mut(victim).restart();
        true
    }
}
