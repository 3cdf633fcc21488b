//! Notes: messages of an engine while it works.

use std::fmt;
use std::sync::Arc;

use attn_kernels::Level;
use models::{ChunkCrossing, Crossing, WeightPlacement};

use crate::request::RequestId;
use crate::usage::readable;

/// A message for the user, while the engine continues.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Note {
    /// A device was opened.
    Device {
        /// The adapter.
        adapter: String,
        /// Level of its kernels.
        level: Level,
        /// Driver of the adapter, with the version.
        driver: String,
    },
    /// Kernels that a self-test found wrong run, because the user requested it.
    SelfTest {
        /// The adapter.
        adapter: String,
        /// The verdict, and its consequence.
        verdict: String,
    },
    /// Another kernel variant replaces one that a self-test found wrong.
    PassedOver {
        /// The variant.
        variant: String,
        /// Level of the variant.
        level: Level,
        /// The adapter.
        adapter: String,
        /// Driver of the adapter, with the version.
        driver: String,
    },
    /// Matrix products were timed on an adapter when it was first used, or timing them failed.
    Products {
        /// The adapter.
        adapter: String,
        /// Sizes at which matrix products switch to another kernel.
        tuning: String,
    },
    /// A policy has no kernels, so each layer waits for a selection on the host.
    SelectsOnHost {
        /// The policy.
        policy: String,
    },
    /// A policy keeps all blocks of sequences up to a length that no sequence exceeds.
    KeepsAll {
        /// The policy.
        policy: &'static str,
        /// Number of tokens from which the policy selects.
        dense_below_tokens: usize,
        /// Number of tokens of the longest sequence.
        longest: u64,
    },
    /// A policy selects nothing in a phase, which stays dense.
    DensePhase {
        /// The policy.
        policy: &'static str,
        /// `prefill` or `decode`.
        phase: &'static str,
    },
    /// Steps attend densely up to a length, because selecting takes longer by times of this device.
    Crossing {
        /// The policy.
        policy: String,
        /// Lengths from which decode steps select, if decode steps were timed.
        crossing: Option<Crossing>,
        /// Lengths from which prompt chunks select, if chunks were timed.
        chunks: Option<ChunkCrossing>,
        /// Number of tokens of the longest sequence.
        longest: u32,
    },
    /// Memory is short, so the KV pool has fewer blocks than could be used.
    FewerBlocks {
        /// Number of blocks of the pool.
        blocks: u32,
        /// Number of blocks that were requested.
        wanted: u32,
    },
    /// Chunks are shorter than `wanted` tokens, because the buffers of a step would exceed the bindings of the
    /// device.
    ShorterChunk {
        /// Number of tokens of a step.
        chunk: u32,
        /// Number of tokens that were requested.
        wanted: u32,
        /// Bytes of the device's largest binding.
        binding_bytes: u64,
    },
    /// Weights of some layers are in host memory, and every step brings them to the device.
    WeightsOnHost {
        /// The division of the weights.
        placement: WeightPlacement,
    },
    /// The layers are split over devices.
    Split {
        /// Adapter and number of layers of each device.
        stages: Vec<(String, u32)>,
    },
    /// A device was lost, and a new one is being opened.
    DeviceLost {
        /// The adapter.
        adapter: String,
    },
    /// A step takes longer than the limit of the handle.
    StepStalled {
        /// Seconds since the start of the step.
        seconds: f64,
    },
    /// A KV tier failed; further failures are only counted.
    TierFailed {
        /// Action that failed.
        action: &'static str,
        /// The reason.
        reason: String,
    },
    /// A KV tier has repaired damage, or works with less than was requested.
    TierWarning {
        /// Text of the warning.
        warning: String,
    },
    /// Tokens of a sequence cannot be decoded to text; the sequence ends.
    Undecodable {
        /// The request.
        id: RequestId,
        /// The reason.
        reason: String,
    },
    /// Logits of a request are not finite: the request ends, and none of its KV is kept.
    NonFinite {
        /// The request.
        id: RequestId,
        /// Number of the step.
        step: u64,
    },
    /// KV that a request counted on could not be read from a tier.
    KvUnreadable {
        /// The request.
        id: RequestId,
        /// Position of the first token without KV.
        from_token: u32,
        /// The reason.
        reason: String,
        /// Whether the request ends; otherwise, the KV is computed again.
        ends: bool,
    },
}

fn weights_on_host(placement: &WeightPlacement) -> String {
    let WeightPlacement { num_layers, host_layers, device_bytes, host_bytes, .. } = placement;
    format!(
        "weights: {} on the device, {} in host memory ({} of {num_layers} layers), which every step reads over the link: \
         prefills hide it, decoding waits for it",
        readable(*device_bytes),
        readable(*host_bytes),
        host_layers.len(),
    )
}

/// Names the kernels that replace wrong kernels of a level, as a part of a message.
fn instead_of(level: Level) -> &'static str {
    match level {
        Level::Coop => "kernels without cooperative matrices are",
        Level::Subgroup => "kernels without subgroups are",
        Level::Baseline => "another kernel of the same product is",
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device { adapter, level, driver } => write!(f, "device: {adapter} ({level:?}, {driver})"),
            Self::SelfTest { adapter, verdict } => write!(f, "{adapter}: {verdict}"),
            Self::PassedOver { variant, level, adapter, driver } => {
                write!(f, "{variant} is wrong on {adapter}, {driver}: {} used instead", instead_of(*level))
            }
            Self::Products { adapter, tuning } => write!(f, "products on {adapter}: {tuning}"),
            Self::SelectsOnHost { policy } => {
                write!(f, "sparse: no kernels for {policy}, so each layer waits for a selection on the host")
            }
            Self::KeepsAll { policy, dense_below_tokens, .. } if *dense_below_tokens >= u32::MAX as usize => {
                write!(f, "sparse: {policy} keeps everything at any length")
            }
            Self::KeepsAll { policy, dense_below_tokens, longest } => write!(
                f,
                "sparse: {policy} keeps everything below {dense_below_tokens} tokens, and none here has more than \
                 {longest}"
            ),
            Self::DensePhase { policy, phase } => {
                write!(f, "sparse: {policy} selects nothing in {phase}, which stays dense")
            }
            Self::Crossing { policy, crossing, chunks, longest } => {
                let phases = dense_phases(policy, crossing.as_ref(), chunks.as_ref(), *longest);
                write!(
                    f,
                    "sparse: {phases}, where selecting takes longer on this device; min_tokens=0 selects all the same"
                )
            }
            Self::FewerBlocks { blocks, wanted } => {
                write!(f, "memory is short: {blocks} KV blocks instead of {wanted}")
            }
            Self::ShorterChunk { chunk, wanted, binding_bytes } => write!(
                f,
                "steps take {chunk} tokens instead of {wanted}, whose buffers would not fit in the device's bindings of {} MiB",
                binding_bytes >> 20
            ),
            Self::WeightsOnHost { placement } => f.write_str(&weights_on_host(placement)),
            Self::Split { stages } => {
                let of = |(adapter, layers): &(String, u32)| format!("{layers} on {adapter}");
                write!(f, "layers: {}", stages.iter().map(of).collect::<Vec<_>>().join(", "))
            }
            Self::DeviceLost { adapter } => {
                write!(f, "{adapter} was lost; the engine is opened anew, and its requests go on")
            }
            Self::StepStalled { seconds } => {
                write!(f, "a step of the engine has taken {seconds:.1} seconds and has not ended")
            }
            Self::TierFailed { action, reason } => {
                write!(f, "{action}: {reason}; further failures are counted")
            }
            Self::TierWarning { warning } => f.write_str(warning),
            Self::Undecodable { id, reason } => write!(f, "{id}: {reason}"),
            Self::NonFinite { id, step } => {
                write!(f, "{id}: non-finite logits in step {step}: the request ends")
            }
            Self::KvUnreadable { id, from_token, reason, ends } => {
                let consequence = if *ends { "the request ends" } else { "computed again" };
                write!(f, "{id}: KV from token {from_token} on: {reason}: {consequence}")
            }
        }
    }
}

/// States the lengths below which phases are dense, up to `longest` tokens if one never selects.
fn dense_phases(
    policy: &str,
    crossing: Option<&Crossing>,
    chunks: Option<&ChunkCrossing>,
    longest: u32,
) -> String {
    let up_to = |never: bool| if never { format!(" up to {longest} tokens") } else { String::new() };
    let decode = crossing.map(|of| format!("{of}{}", up_to(of.is_never())));
    let prefill = chunks.map(|of| format!("{of}{}", up_to(of.is_never())));
    match (decode, prefill) {
        (Some(decode), None) => format!("decode with {policy} is {decode}"),
        (Some(decode), Some(prefill)) => {
            format!("decode with {policy} is {decode}, and prefill is {prefill}")
        }
        (None, prefill) => format!("prefill with {policy} is {}", prefill.unwrap_or_default()),
    }
}

/// Receiver of notes: a function that is called on the engine's thread. Clones share it; the default drops all notes.
#[derive(Clone, Default)]
pub struct Notes(Option<Arc<Receiver>>);

type Receiver = dyn Fn(&Note) + Send + Sync;

impl Notes {
    /// Calls `receive` for each note.
    #[must_use]
    pub fn to(receive: impl Fn(&Note) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(receive)))
    }

    /// Tells a note.
    pub(crate) fn tell(&self, note: &Note) {
        if let Some(receive) = &self.0 {
            receive(note);
        }
    }
}

impl fmt::Debug for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Notes(received)" } else { "Notes(dropped)" })
    }
}
