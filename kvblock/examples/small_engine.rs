//! A block manager inside a small engine of one's own: a "model" whose keys and values are the tokens themselves, kept in
//! the blocks that kvblock names. Requests share what their prompts have in common.
//!
//! `cargo run -p kvblock --example small_engine`

use std::error::Error;

use kvblock::{
    AllocError, AttentionKind, BlockSize, ExtraKeys, GroupId, HashChain, KvCache, KvCacheConfig, KvCacheSpec,
    KvDtype, LengthLimits, SeqContent, SeqId, SlotRequest, TokenId, TokenIdx,
};

const BLOCK: u32 = 4;
const NUM_BLOCKS: u32 = 16;

/// Memory of the engine, one token per slot, and the manager that assigns slots to sequences.
pub(crate) struct Engine {
    cache: KvCache,
    slots: Vec<TokenId>,
    next: u64,
}

/// Tokens of an answer, and its cost.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) cached_tokens: u32,
    pub(crate) computed_tokens: u32,
    pub(crate) output: Vec<TokenId>,
}

impl Engine {
    pub(crate) fn new() -> Result<Self, Box<dyn Error>> {
        let block_size = BlockSize::new(BLOCK).ok_or("a block has at least one token")?;
        let spec = KvCacheSpec::new(AttentionKind::FULL, block_size, 1, 8, KvDtype::F16);
        let limits = LengthLimits::new(32);
        let cache = KvCache::new(&KvCacheConfig::uniform(NUM_BLOCKS, spec, 1, limits))?;
        Ok(Self { cache, slots: vec![0; (NUM_BLOCKS * BLOCK) as usize], next: 0 })
    }

    /// Answers a prompt with `count` tokens, each the sum of all before it, which are read back through the block table.
    ///
    /// # Errors
    /// If the pool has too few free blocks.
    pub(crate) fn answer(&mut self, prompt: &[TokenId], count: u32) -> Result<Answer, AllocError> {
        let seq = SeqId::new(self.next);
        self.next += 1;
        let mut tokens = prompt.to_vec();
        let mut chain = HashChain::new(self.cache.hasher(), ExtraKeys::default());
        chain.extend(&tokens);

        // Full blocks that an earlier request left behind need not be computed; the last token always is.
        let hit = self.cache.lookup(SeqContent::new(&tokens, chain.hashes()));
        let cached_tokens = hit.num_tokens;
        let mut computed = cached_tokens;
        let mut adopted = Some(&hit);
        for _ in 0..count {
            let new = u32::try_from(tokens.len()).expect("at most 32 tokens") - computed;
            let content = SeqContent::new(&tokens, chain.hashes());
            let before = if adopted.is_some() { 0 } else { computed };
            let request = SlotRequest::new(seq, content, before, new).hit(adopted.take());
            self.cache.allocate_slots(request)?;
            self.write(seq, &tokens, computed);
            computed += new;
            let sum = self.read(seq, computed).iter().fold(0, |sum: TokenId, token| sum.wrapping_add(*token));
            tokens.push(sum);
            chain.extend(&[sum]);
        }
        // Freed blocks keep their content, and are found again until somebody else takes them.
        self.cache.free(seq);
        let output = tokens.split_off(prompt.len());
        Ok(Answer { cached_tokens, computed_tokens: computed - cached_tokens, output })
    }

    fn write(&mut self, seq: SeqId, tokens: &[TokenId], first: u32) {
        let table = self.cache.table(seq, GroupId::new(0)).expect("slots were allocated");
        for (at, token) in (0..).zip(tokens).skip(first as usize) {
            self.slots[table.slot(TokenIdx::new(at)).get() as usize] = *token;
        }
    }

    fn read(&self, seq: SeqId, len: u32) -> Vec<TokenId> {
        let table = self.cache.table(seq, GroupId::new(0)).expect("slots were allocated");
        (0..len).map(|at| self.slots[table.slot(TokenIdx::new(at)).get() as usize]).collect()
    }
}

#[cfg(not(test))]
#[expect(clippy::print_stdout, reason = "the answers")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut engine = Engine::new()?;
    println!("{:?}", engine.answer(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 2)?);
    println!("{:?}", engine.answer(&[1, 2, 3, 4, 5, 6, 7, 8, 10], 2)?);
    Ok(())
}
