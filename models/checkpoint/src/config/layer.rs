//! Properties that differ between the layers of a model, and small options of families.

pub use kvblock::Reach;

/// Settings of one layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct LayerConfig {
    /// Mask of the layer's queries.
    pub reach: Reach,
    /// Whether queries and keys are rotated by their position.
    pub rotary: bool,
    /// MLP of a layer.
    pub mlp: Mlp,
}

impl LayerConfig {
    /// A layer with the mask `reach`; `rotary` says whether it uses rope.
    #[must_use]
    pub const fn new(reach: Reach, rotary: bool, mlp: Mlp) -> Self {
        Self { reach, rotary, mlp }
    }
}

/// MLP of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mlp {
    /// A dense, gated MLP.
    Dense,
    /// A mixture of experts with a learned router.
    Experts,
    /// A mixture of experts selected by a table of token ids, with weights from the router.
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

/// Positions of the RMS norms of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockNorms {
    /// Norms before attention and before the MLP (Llama).
    Before,
    /// Norms before and after attention, and before and after the MLP (Gemma 3).
    Around,
    /// Norms after attention and after the MLP only (OLMo 2).
    Behind,
}

/// Norms of query and key heads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QkNorm {
    /// No norms.
    None,
    /// An RMS norm with a weight per dimension, before the rotation (Qwen3).
    Rms,
    /// An RMS norm of all query heads together, and of all key heads, with a weight per element, before the rotation (OLMo 2).
    Whole,
    /// An RMS norm without weights in layers with rope (Llama 4). It follows the rotation, which keeps lengths, so that the order
    /// does not matter.
    Unweighted,
}

/// Query scale that grows with the position (Llama 4, Ministral 3):
/// `ln(1 + floor((position + first) / floor_scale)) * attn_scale + 1`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Temperature {
    /// Positions per step.
    pub floor_scale: f64,
    /// Height of the steps.
    pub attn_scale: f64,
    /// Number of the first position: 0 or 1.
    pub first: u32,
    /// Whether the query scale also applies to layers with rope.
    pub all_layers: bool,
}

impl Temperature {
    /// Returns the factor at a position.
    #[must_use]
    pub fn factor(&self, position: u32) -> f64 {
        (1.0 + ((f64::from(position) + f64::from(self.first)) / self.floor_scale).floor()).ln()
            * self.attn_scale
            + 1.0
    }
}
