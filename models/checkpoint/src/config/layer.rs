//! Properties that differ between the layers of one model, and small parts that families choose among.

pub use kvblock::Reach;

/// Settings of one layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct LayerConfig {
    /// Keys that its queries see.
    pub reach: Reach,
    /// Whether queries and keys are rotated by their position.
    pub rotary: bool,
    /// Part of a layer behind attention.
    pub mlp: Mlp,
}

impl LayerConfig {
    /// A layer whose queries see the keys within `reach`; `rotary` says whether they are rotated by their position.
    #[must_use]
    pub const fn new(reach: Reach, rotary: bool, mlp: Mlp) -> Self {
        Self { reach, rotary, mlp }
    }
}

/// Part of a layer behind attention.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mlp {
    /// A dense, gated MLP.
    Dense,
    /// A mixture of experts with a learned router.
    Experts,
    /// A mixture of experts chosen by a table of token ids; the router weighs them.
    HashedExperts,
}

/// Nonlinearity of the gate of a dense MLP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Gate {
    /// `x / (1 + e^-x)`
    Silu,
    /// GELU by its approximation with `tanh`.
    GeluTanh,
}

/// Places of the RMS norms of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockNorms {
    /// Before attention and before the MLP (Llama).
    Before,
    /// Before and after attention, and before and after the MLP (Gemma 3).
    Around,
    /// After attention and after the MLP only (OLMo 2).
    Behind,
}

/// Norms of query and key heads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QkNorm {
    /// No norms.
    None,
    /// An RMS norm with a weight a dimension, before the rotation (Qwen3).
    Rms,
    /// An RMS norm of all query heads as one, and of all key heads, with a weight an element, before the rotation (OLMo 2).
    Whole,
    /// An RMS norm without weights in the layers that rotate (Llama 4). It comes after the rotation, which changes no
    /// length, so it may as well come before.
    Unweighted,
}

/// A factor on queries, growing with the position (Llama 4, Ministral 3):
/// `ln(1 + floor((position + first) / floor_scale)) * attn_scale + 1`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Temperature {
    /// Positions of one step.
    pub floor_scale: f64,
    /// Height of the steps.
    pub attn_scale: f64,
    /// Number of the first position: 0 or 1.
    pub first: u32,
    /// Whether layers with rotary embedding apply the factor too.
    pub all_layers: bool,
}

impl Temperature {
    /// The factor at a position.
    #[must_use]
    pub fn factor(&self, position: u32) -> f64 {
        (1.0 + ((f64::from(position) + f64::from(self.first)) / self.floor_scale).floor()).ln()
            * self.attn_scale
            + 1.0
    }
}
