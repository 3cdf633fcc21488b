//! The object `pagoda` of a reply: the engine's work for an answer, for which no API has a place.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pagoda::usage::SparseUse;
use pagoda::{CachedTokens, Event};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

/// Work of the engine for an answer.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct EngineUse {
    /// Prompt tokens that were not computed, by the tier that had them.
    #[schemars(with = "CachedByTier")]
    cached_tokens: CachedTokens,
    /// Position of the first token at which the prompt differs from the nearest earlier one of the same salt: later tokens
    /// cannot have been cached. Null if there is no such prompt, or nothing differs.
    first_new_token: Option<usize>,
    /// Positions that contain the first token whose KV was found nowhere: the token above or, if no earlier prompt is
    /// remembered, as after a restart, the block after the cached tokens. Null if all cacheable tokens were found.
    first_miss: Option<Positions>,
    /// Number of tokens of a KV block.
    #[serde(skip)]
    block_size: u32,
    /// Time in the queue, in milliseconds; the next fields are the times from the start to the first token, and from
    /// the first token to the last one.
    queue_ms: Option<f64>,
    prefill_ms: Option<f64>,
    decode_ms: Option<f64>,
    /// The sparse-attention policy, which share of the KV blocks it read, and the mass that it certifies.
    #[schemars(with = "Option<Map<String, Value>>")]
    sparse: Option<SparseUse>,
    /// Fields of the call that changed nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Prompt tokens by the tier that had them.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "its schema is that of `CachedTokens`")]
struct CachedByTier {
    device: u32,
    host: u32,
    disk: u32,
    remote: u32,
}

/// Positions from `from` up to, and without, `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
struct Positions {
    from: usize,
    to: usize,
}

impl EngineUse {
    pub(crate) fn new(first_new_token: Option<usize>, block_size: u32) -> Self {
        Self { first_new_token, block_size, ..Self::default() }
    }

    /// Reports fields of the call that changed nothing.
    pub(crate) fn warn(&mut self, ignored: &[String]) {
        self.warnings =
            ignored.iter().map(|field| format!("{field}: ignored, it changes nothing here")).collect();
    }

    /// Returns the positions of the first cache miss in a prompt with `cached` tokens found.
    fn miss(&self, cached: usize, prompt_tokens: usize) -> Option<Positions> {
        match self.first_new_token {
            // Blocks are found as wholes, so what is found ends up to a block before.
            Some(new) if new >= cached && new < cached + self.block_size as usize => {
                Some(Positions { from: new, to: new + 1 })
            }
            // The last token is always computed, so its block is never looked for.
            _ => {
                let to = cached + self.block_size as usize;
                (to < prompt_tokens).then_some(Positions { from: cached, to })
            }
        }
    }

    /// Updates the report by an event. Cached tokens are summed over all prompts; times and policy are of the last sample to
    /// end.
    pub(crate) fn take(&mut self, event: &Event) {
        match event {
            Event::Started(started) => {
                self.first_miss = self.miss(started.cached.total() as usize, started.prompt_tokens as usize);
                self.cached_tokens += started.cached;
            }
            Event::Finished(end) => {
                let clock = end.usage.clock;
                [self.queue_ms, self.prefill_ms, self.decode_ms] =
                    [clock.queue(), clock.prefill(), clock.decode()].map(milliseconds);
                self.sparse = Some(end.usage.sparse.clone());
            }
            _ => {}
        }
    }
}

fn milliseconds(time: Option<Duration>) -> Option<f64> {
    Some(time?.as_secs_f64() * 1e3)
}

/// Maximum number of remembered prompts; the next constant is the maximum number of their tokens in total.
const MAX_PROMPTS: usize = 64;
const MAX_TOKENS: usize = 1 << 20;

/// The last prompts, with which a new one is compared.
#[derive(Debug, Default)]
pub(crate) struct Recent(Mutex<VecDeque<Seen>>);

#[derive(Debug)]
struct Seen {
    salt: Option<String>,
    ids: Arc<[u32]>,
}

impl Recent {
    /// Remembers a prompt. Returns the length of its longest common prefix with an earlier prompt of the same salt, if it
    /// differs from all of them. O(tokens of the longest common prefixes).
    pub(crate) fn first_new_token(&self, ids: &[u32], salt: Option<&str>) -> Option<usize> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let alike = seen.iter().filter(|seen| seen.salt.as_deref() == salt);
        let common = alike.map(|seen| seen.ids.iter().zip(ids).take_while(|(a, b)| a == b).count()).max();
        if common != Some(ids.len()) {
            seen.push_back(Seen { salt: salt.map(str::to_owned), ids: ids.into() });
        }
        let mut tokens: usize = seen.iter().map(|seen| seen.ids.len()).sum();
        while seen.len() > MAX_PROMPTS || tokens > MAX_TOKENS {
            tokens -= seen.pop_front().map_or(0, |oldest| oldest.ids.len());
        }
        common.filter(|common| *common < ids.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_miss_is_exact_where_an_earlier_prompt_is_known() {
        let miss =
            |known, cached| EngineUse::new(known, 16).miss(cached, 100).map(|miss| (miss.from, miss.to));
        assert_eq!(miss(Some(40), 32), Some((40, 41)));
        // What the tiers found reaches further than the prompts that are remembered.
        assert_eq!([miss(Some(40), 64), miss(None, 64)], [Some((64, 80)); 2]);
        // A prompt whose KV was dropped since.
        assert_eq!(miss(Some(90), 0), Some((0, 16)));
        assert_eq!([miss(None, 96), miss(None, 99)], [None; 2]);
        assert_eq!(miss(Some(98), 96), Some((98, 99)));
    }

    #[test]
    fn prompts_are_compared_with_the_nearest_of_their_salt() {
        let recent = Recent::default();
        let first_new = |ids: &[u32], salt| recent.first_new_token(ids, salt);
        assert_eq!(first_new(&[1, 2, 3], None), None);
        assert_eq!(first_new(&[1, 2, 3], None), None);
        assert_eq!(first_new(&[1, 2, 3, 4], None), Some(3));
        assert_eq!(first_new(&[1, 2, 9, 4], None), Some(2));
        assert_eq!(first_new(&[1, 2, 9, 5], None), Some(3));
        assert_eq!(first_new(&[1, 2, 9, 5], Some("s")), None);
        assert_eq!(first_new(&[1, 2, 8], Some("s")), Some(2));
    }

    #[test]
    fn old_prompts_are_forgotten() {
        let recent = Recent::default();
        for prompt in 0..1000_u32 {
            recent.first_new_token(&[prompt, 0], None);
        }
        assert_eq!(recent.0.lock().unwrap().len(), MAX_PROMPTS);
        recent.first_new_token(&vec![7; MAX_TOKENS], None);
        assert_eq!(recent.0.lock().unwrap().len(), 1);
    }
}
