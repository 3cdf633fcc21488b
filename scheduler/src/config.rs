//! Configuration of a scheduler.

use derive_setters::Setters;

use crate::error::ConfigError;

/// Order in which sequences run and are preempted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Policy {
    /// First come, first served; the sequence admitted last is preempted first.
    Fcfs,
    /// Service by (priority, arrival), lowest first; the highest is preempted first.
    Priority {
        /// Number of steps of waiting that make up for one level of priority, so that a stream of more important
        /// requests cannot keep a request waiting forever; 0 turns ageing off.
        ageing_steps: u32,
    },
}

/// Treatment of the blocks of a preempted sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Preemption {
    /// The blocks are freed; the sequence computes its tokens again, except for those still in the prefix cache.
    Recompute,
    /// The blocks are copied to host blocks, and back later. A sequence is recomputed if too few host blocks are left for it.
    Swap {
        /// Number of blocks of the host pool.
        num_host_blocks: u32,
    },
}

/// Limits and policies of a [`Scheduler`](crate::Scheduler).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Setters)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
#[non_exhaustive]
pub struct SchedulerConfig {
    /// Maximum number of tokens that one step computes.
    #[setters(skip)]
    pub max_num_batched_tokens: u32,
    /// Maximum number of sequences that run at a time.
    #[setters(skip)]
    pub max_num_seqs: u32,
    /// Whether a prompt that exceeds the rest of the budget is split over several steps. If not, the budget must hold
    /// a sequence of the maximum length.
    pub chunked_prefill: bool,
    /// Maximum number of tokens of one sequence in one step, so that long prompts leave room for short ones;
    /// 0 for no limit.
    pub long_prefill_token_threshold: u32,
    /// Order of service.
    pub policy: Policy,
    /// Treatment of the blocks of preempted sequences.
    pub preemption: Preemption,
    /// Whether a sequence is admitted only when blocks for its whole prompt are free, not only for its first chunk.
    pub reserve_full_input: bool,
    /// Maximum number of draft tokens of a sequence in a step; each decode step reserves as many extra slots.
    pub num_lookahead_tokens: u32,
}

impl SchedulerConfig {
    /// Configuration with FCFS, chunked prefill and preemption by recomputation, and without threshold, reservation
    /// and draft tokens.
    #[must_use]
    pub const fn new(max_num_batched_tokens: u32, max_num_seqs: u32) -> Self {
        Self {
            max_num_batched_tokens,
            max_num_seqs,
            chunked_prefill: true,
            long_prefill_token_threshold: 0,
            policy: Policy::Fcfs,
            preemption: Preemption::Recompute,
            reserve_full_input: false,
            num_lookahead_tokens: 0,
        }
    }

    pub(crate) fn validate(&self, max_model_len: u32) -> Result<(), ConfigError> {
        if self.max_num_batched_tokens == 0 || self.max_num_seqs == 0 {
            let (max_num_batched_tokens, max_num_seqs) = (self.max_num_batched_tokens, self.max_num_seqs);
            return Err(ConfigError::NoRoom { max_num_batched_tokens, max_num_seqs });
        }
        if !self.chunked_prefill && self.max_num_batched_tokens < max_model_len {
            let max_num_batched_tokens = self.max_num_batched_tokens;
            return Err(ConfigError::UnchunkedBudget { max_num_batched_tokens, max_model_len });
        }
        Ok(())
    }
}
