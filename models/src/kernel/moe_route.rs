//! Router of a mixture of experts: which experts a row goes to, and their weights.

use attn_kernels::kernel::flat_grid;
use attn_kernels::{Kernel, Params, Variant, bindings, params};

use crate::{MoeConfig, Score};

/// The kernel; [`MoeRouteBuffers`] lists its bindings.
pub static KERNEL: Kernel = Kernel {
    name: "moe_route",
    role: attn_kernels::Role::Dense,
    wgsl: include_str!("../../wgsl/moe_route.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params: MoeRouteParams::LAYOUT,
    bindings: MoeRouteBuffers::BINDINGS,
};

params! {
    /// Uniform parameters.
    pub struct MoeRouteParams {
        /// Rows.
        pub rows: u32,
        /// Factor on weights.
        pub scale: f32,
    }
}

bindings! {
    /// Buffers of `moe_route`.
    pub struct MoeRouteBuffers(MoeRouteParams) {
        /// Router logits, `[rows, experts]`.
        read logits: f32,
        /// Addends to scores for the choice alone, `[experts]`.
        read correction: f32,
        /// Tokens, `[rows]`.
        read tokens: u32,
        /// Experts of each token, `[tokens, top]`, where a table chooses.
        read table: u32,
        /// Chosen experts, `[rows, top]`.
        write experts: u32,
        /// Their weights, `[rows, top]`.
        write weights: f32,
    }
}

/// Source of a row's experts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// The best scores.
    Scores,
    /// A table by token id.
    Table,
}

/// The kernel for one router.
#[must_use]
pub fn variant(moe: &MoeConfig, choice: Choice) -> Variant {
    let score = match moe.router.score {
        Score::Softmax => 0,
        Score::SoftmaxOfChosen => 1,
        Score::Sigmoid => 2,
        Score::SqrtSoftplus => 3,
    };
    Variant::new(&KERNEL)
        .size("EXPERTS", moe.num_experts)
        .size("TOP", moe.top_k)
        .size("GROUPS", moe.router.groups)
        .size("TOP_GROUPS", moe.router.top_groups)
        .size("GROUP_TOP", moe.router.group_top)
        .size("SCORE", score)
        .size("HASHED", u32::from(choice == Choice::Table))
        .size("NORMALISE", u32::from(moe.router.normalise))
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(rows: u32) -> [u32; 3] {
    flat_grid(rows)
}
