//! Selection of as many blocks as an attention mass requires.

use anyhow::Result;
use attn_kernels::gpu::Gpu;
use attn_kernels::kernel::{block_lse, mass_cut};
use attn_kernels::self_test::Size;

use super::attention::Heads;
use super::work::Work;

/// Returns the work of certifying a share of the attention mass for every head: all rounds of `block_lse` and `mass_cut`, which
/// alternate, on random scores and bounds.
pub(super) fn by_mass(gpu: &Gpu, heads: &Heads, [batch, context]: [u32; 2]) -> Result<Work> {
    let size = Size { batch, context, ..heads.size() };
    let name = format!("{batch} x {context}, {}", heads.name());
    let lse = block_lse::variant(&heads.shape, heads.num_heads, size.select_block);
    let lse = Work::of(gpu, "block_lse, mass_cut", &lse, size, &name)?;
    let shared = lse.shared(&["rows", "scores", "lses", "cuts"]);
    let cut = mass_cut::variant(heads.num_heads / heads.shape.num_kv_heads);
    Ok(lse.in_turn(Work::sharing(gpu, "mass_cut", &cut, size, &name, &shared)?))
}
