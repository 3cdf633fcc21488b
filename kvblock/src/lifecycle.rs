//! Phases and ends of sequences, as the crates above name them.

/// Part of generation that tokens belong to. It follows from the tokens alone, never from their number or from what else is in a
/// batch, so that the arithmetic of a token does not depend on how its sequence was split.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Phase {
    /// The token that was sampled last, followed by draft tokens, if any.
    Decode,
    /// Tokens that were given: a prompt, or tokens recomputed after a preemption.
    Prefill,
}

/// End of a sequence, as a scheduler sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Ending {
    /// The sequence met a stop condition: an end-of-sequence or stop token, or one that the caller found.
    Stopped,
    /// The sequence reached its output limit, or the context length.
    LengthCapped,
    /// The caller aborted the sequence.
    Aborted,
    /// A step or a load failed, or the sequence can never fit into the cache.
    Failed,
}
