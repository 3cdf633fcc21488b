//! Mixtures of experts.

use super::ConfigError;

/// The experts of a layer, and their routing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MoeConfig {
    /// Number of experts of a layer.
    pub num_experts: u32,
    /// Number of experts that each row uses.
    pub top_k: u32,
    /// Width inside the MLP of an expert.
    pub inner_size: u32,
    /// Width inside the MLP of the shared expert.
    pub shared_size: Option<u32>,
    /// Rule that selects and weights experts.
    pub router: Router,
    /// Activation of the experts and of the shared expert.
    pub activation: Activation,
    /// Whether the router and the experts have biases.
    pub biases: bool,
    /// Whether weights multiply the input of an expert (Llama 4) instead of its output.
    pub weighted_input: bool,
    /// Layout of the experts' matrices in plain checkpoints.
    pub packing: ExpertPacking,
}

impl MoeConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let Router { groups, top_groups, scale, .. } = self.router;
        let members = self.num_experts.checked_div(groups).unwrap_or(0);
        for (field, value, max, rule) in [
            ("the number of experts", self.num_experts, MAX_EXPERTS, "1 to 1024"),
            (
                "num_experts_per_tok",
                self.top_k,
                self.num_experts.min(MAX_TOP),
                "1 to the number of experts, at most 64",
            ),
            ("the width of an expert", self.inner_size, 1 << 20, "1 to 2^20"),
            ("the width of the shared expert", self.shared_size.unwrap_or(1), 1 << 20, "1 to 2^20"),
            ("topk_group", top_groups, groups, "1 to n_group"),
        ] {
            if value == 0 || value > max {
                return Err(ConfigError::Invalid { field, value: value.to_string(), rule });
            }
        }
        if members * groups != self.num_experts || members * top_groups < self.top_k {
            let rule = "a divisor of the experts, with enough of them in topk_group groups";
            return Err(ConfigError::Invalid { field: "n_group", value: groups.to_string(), rule });
        }
        if !(scale.is_finite() && scale > 0.0) {
            let (field, value) = ("routed_scaling_factor", scale.to_string());
            return Err(ConfigError::Invalid { field, value, rule: "finite and over 0" });
        }
        Ok(())
    }
}

/// Maximum number of experts of a layer: a workgroup holds the scores of a row.
const MAX_EXPERTS: u32 = 1024;

/// Maximum number of experts that a row is routed to.
const MAX_TOP: u32 = 64;

/// Rule that turns router logits into experts and weights.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Router {
    /// Function that turns router logits into scores.
    pub score: Score,
    /// Number of groups of experts. Only experts of the best groups are eligible; 1 for no limit.
    pub groups: u32,
    /// Number of eligible groups.
    pub top_groups: u32,
    /// Number of experts of a group whose scores are added to rank it: one (DeepSeek V2), or two (V3).
    pub group_top: u32,
    /// Whether the weights of a row are divided by their sum.
    pub normalise: bool,
    /// Factor on weights.
    pub scale: f32,
    /// Whether each expert has a correction, which is added to its scores for selection alone.
    pub correction: bool,
}

/// The simplest router.
pub(super) const CHOICE: Router = Router {
    score: Score::SoftmaxOfChosen,
    groups: 1,
    top_groups: 1,
    group_top: 2,
    normalise: false,
    scale: 1.0,
    correction: false,
};

/// Functions that turn router logits into scores.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Score {
    /// Softmax over all experts (Qwen3).
    Softmax,
    /// The logits; weights are the softmax over the selected ones (gpt-oss).
    SoftmaxOfChosen,
    /// `1 / (1 + e^-x)` (Llama 4, DeepSeek V3).
    Sigmoid,
    /// `sqrt(ln(1 + e^x))` (DeepSeek V4).
    SqrtSoftplus,
}

/// Function of the gate and up projections that the down projection reads.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Activation {
    /// `silu(gate) * up`
    Silu,
    /// `silu(min(gate, limit)) * up`, with `up` clamped to `[-limit, limit]` (DeepSeek V4).
    LimitedSilu {
        /// The limit.
        limit: f32,
    },
    /// `gate * sigmoid(alpha * gate) * (up + 1)` with both clamped (gpt-oss).
    LimitedSwiglu {
        /// Slope of the sigmoid.
        alpha: f32,
        /// The limit.
        limit: f32,
    },
}

/// Layout of a tensor of all experts' gates and ups in a checkpoint; down projections are transposed in the same way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExpertPacking {
    /// `[experts, gates then ups, hidden]`
    Rows,
    /// `[experts, hidden, gates then ups]` (Llama 4)
    Columns,
    /// `[experts, hidden, alternating gates and ups]` (gpt-oss); in MXFP4 `[experts, alternating gates and ups, hidden]`
    AlternateColumns,
}
