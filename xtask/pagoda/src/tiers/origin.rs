//! Origins of blocks. A policy that leaves prefill dense computes the same keys and values of a prompt as dense attention, so
//! these have one name in a store, whichever such policy an engine has. Values of generated tokens come from sparse attention,
//! and so do all that attend to them: they belong to one policy, which is a part of their names.

use std::collections::HashSet;

use kvblock::{BlockHash, BlockId, HashAlgorithm, Phase, SeqId};

use crate::options::EngineOptions;

/// Origin of the values of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The values follow from the tokens alone.
    Tokens,
    /// The values depend on earlier decode steps in which a policy selected blocks.
    SparseDecode,
}

/// Origins of the blocks on the device, for engines whose policy selects in decode alone.
#[derive(Debug)]
pub(super) struct Origins {
    /// The policy; `None` if all blocks of the engine have one origin.
    policy: Option<String>,
    /// Blocks of the device whose values come from sparse decode. Every new write to a block updates its entry.
    decoded: HashSet<BlockId>,
    /// Running sequences with values from sparse decode.
    sequences: HashSet<SeqId>,
}

impl Origins {
    /// Origins of an engine with `options`.
    pub(super) fn new(options: &EngineOptions) -> Self {
        let sparse = options.sparse.as_ref().filter(|sparse| sparse.selects() && !sparse.changes_prefill());
        let policy = sparse.filter(|sparse| sparse.policy.acts_on(Phase::Decode));
        let policy = policy.map(|sparse| sparse.spec.to_string());
        Self { policy, decoded: HashSet::new(), sequences: HashSet::new() }
    }

    /// Origins that a block of these tokens may have, the one to prefer first.
    pub(super) fn possible(&self) -> &'static [Origin] {
        if self.policy.is_some() { &[Origin::Tokens, Origin::SparseDecode] } else { &[Origin::Tokens] }
    }

    /// The name of a block with this hash and origin.
    pub(super) fn name(&self, hash: BlockHash, origin: Origin) -> BlockHash {
        match (origin, &self.policy) {
            (Origin::SparseDecode, Some(policy)) => {
                HashAlgorithm::Sha256.hash(&[hash.as_bytes(), policy.as_bytes()].concat())
            }
            _ => hash,
        }
    }

    /// Takes note that a sequence starts or resumes with blocks that are already filled. The blocks of a preempted
    /// sequence include values of its decode steps.
    pub(super) fn admit(&mut self, seq: SeqId, blocks: impl Iterator<Item = BlockId> + Clone) {
        if self.policy.is_none() {
            return;
        }
        if self.sequences.contains(&seq) {
            self.decoded.extend(blocks);
        } else if blocks.clone().any(|block| self.decoded.contains(&block)) {
            self.sequences.insert(seq);
        }
    }

    /// The origin of what a step of `phase` computes of a sequence.
    pub(super) fn computed(&mut self, seq: SeqId, phase: Phase) -> Origin {
        if phase == Phase::Decode && self.policy.is_some() {
            self.sequences.insert(seq);
        }
        if self.sequences.contains(&seq) { Origin::SparseDecode } else { Origin::Tokens }
    }

    /// Takes note of the origin of a block that was filled.
    pub(super) fn fill(&mut self, block: BlockId, origin: Origin) {
        match origin {
            Origin::Tokens => self.decoded.remove(&block),
            Origin::SparseDecode => self.decoded.insert(block),
        };
    }

    /// Forgets a sequence that ended.
    pub(super) fn end(&mut self, seq: SeqId) {
        self.sequences.remove(&seq);
    }
}

#[cfg(test)]
mod tests {
    use sparse_select::Registry;

    use super::*;
    use crate::sparse::Sparse;
    use crate::tiers::hash_seed;

    fn options(spec: &str) -> EngineOptions {
        let sparse = Sparse::new(&Registry::builtin(), &spec.parse().unwrap()).unwrap();
        EngineOptions { sparse: Some(sparse), ..EngineOptions::new() }
    }

    #[test]
    fn every_policy_is_in_the_names_of_what_it_changes() {
        let hash = HashAlgorithm::Sha256.hash(b"a prefix");
        let dense = EngineOptions::new();
        for name in Registry::builtin().entries().iter().map(|entry| entry.name) {
            let of = options(name);
            let (policy, origins) = (&of.sparse.as_ref().unwrap().policy, Origins::new(&of));
            let acts_on = |phase| name != "full" && policy.acts_on(phase);
            let [prefill, decode] = [Phase::Prefill, Phase::Decode].map(acts_on);
            assert_eq!(hash_seed(&of) != hash_seed(&dense), prefill, "{name}");
            assert_eq!(origins.possible().len() == 2, decode && !prefill, "{name}");
            let names = [Origin::Tokens, Origin::SparseDecode].map(|origin| origins.name(hash, origin));
            assert_eq!((names[0], names[1] != hash), (hash, decode && !prefill), "{name}");
        }
        let of_decode = |spec| Origins::new(&options(spec)).name(hash, Origin::SparseDecode);
        assert_ne!(of_decode("quest"), of_decode("quest:page_budget=7"));
    }

    #[test]
    fn what_attends_to_generated_tokens_belongs_to_the_policy() {
        let [prompt, answer, more, other] = [1, 2, 3, 4].map(BlockId::new);
        let [first, second, third] = [1, 2, 3].map(SeqId::new);
        let mut origins = Origins::new(&options("quest"));
        assert_eq!(origins.computed(first, Phase::Prefill), Origin::Tokens);
        origins.fill(prompt, Origin::Tokens);
        let decoded = origins.computed(first, Phase::Decode);
        assert_eq!(decoded, Origin::SparseDecode);
        origins.fill(answer, decoded);
        origins.end(first);
        // The prompt is shared; a conversation that goes on from the answer is not.
        origins.admit(second, [prompt].into_iter());
        assert_eq!(origins.computed(second, Phase::Prefill), Origin::Tokens);
        origins.admit(third, [prompt, answer].into_iter());
        assert_eq!(origins.computed(third, Phase::Prefill), Origin::SparseDecode);
        origins.fill(more, Origin::SparseDecode);
        // After it was preempted, its blocks may be others.
        origins.admit(third, [prompt, other].into_iter());
        origins.end(third);
        origins.admit(first, [other].into_iter());
        assert_eq!(origins.computed(first, Phase::Prefill), Origin::SparseDecode);
        // A block that prefill writes again is of its tokens alone.
        origins.fill(answer, Origin::Tokens);
        origins.admit(SeqId::new(5), [answer].into_iter());
        assert_eq!(origins.computed(SeqId::new(5), Phase::Prefill), Origin::Tokens);
    }
}
