//! Router of a mixture of experts: which experts a row goes to, and their weights.

use attn_kernels::kernel::flat_grid;
use attn_kernels::{Access, Kernel, Variant};
use bytemuck::{Pod, Zeroable};

use crate::{MoeConfig, Score};

/// Bindings: logits, correction, tokens, table, experts, weights.
pub static KERNEL: Kernel = Kernel {
    name: "moe_route",
    wgsl: include_str!("../../wgsl/moe_route.wgsl"),
    modules: &[super::MODULES, attn_kernels::MODULES],
    params_bytes: size_of::<MoeRouteParams>(),
    bindings: &[Access::Read, Access::Read, Access::Read, Access::Read, Access::Write, Access::Write],
};

/// Uniform parameters.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct MoeRouteParams {
    /// Rows.
    pub rows: u32,
    /// Factor on weights.
    pub scale: f32,
    /// Zero.
    pub pad0: u32,
    /// Zero.
    pub pad1: u32,
}

/// The kernel for one router; `hashed` takes the experts from a table of token ids.
#[must_use]
pub fn variant(moe: &MoeConfig, hashed: bool) -> Variant {
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
        .size("SCORE", score)
        .size("HASHED", u32::from(hashed))
        .size("NORMALISE", u32::from(moe.router.normalise))
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(rows: u32) -> [u32; 3] {
    flat_grid(rows)
}
