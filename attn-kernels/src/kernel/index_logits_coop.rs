//! Logits of the DSA indexer with cooperative matrices: `index_logits` of [`Level::Coop`].
//!
//! Bindings, parameters and logits are those of [`index_logits`](super::index_logits); queries are rounded to f16, keys are
//! f16 or fp8, sums f32. Runs where [`Gpu::runs_coop`](crate::gpu::Gpu::runs_coop) says so.
//!
//! [`Level::Coop`]: crate::Level::Coop

use super::KvDtype;
use super::index_logits::{self, IndexKeys, IndexLogitsParams};
use crate::{Kernel, Variant};

/// Bindings: q, k_cache, tables, rows, gates, logits.
pub static KERNEL: Kernel = Kernel {
    name: "index_logits_coop",
    wgsl: include_str!("../../wgsl/index_logits_coop.wgsl"),
    modules: &[crate::MODULES],
    params_bytes: size_of::<IndexLogitsParams>(),
    bindings: index_logits::KERNEL.bindings,
};

/// Keys of a workgroup.
const TILE: u32 = 256;

/// Whether the kernel serves these keys: fp8 or f16, head sizes that are multiples of 16.
#[must_use]
pub fn serves(keys: &IndexKeys) -> bool {
    let (head_dim, page) = keys.head_dim_and_page();
    let typed = match keys {
        IndexKeys::Fp8 { .. } => page.is_multiple_of(4),
        IndexKeys::Cached(shape) => shape.dtype == KvDtype::F16,
    };
    typed && head_dim.is_multiple_of(16)
}

/// The kernel for one kind of keys.
///
/// # Panics
/// When it does not serve them: see [`serves`].
#[must_use]
pub fn variant(keys: &IndexKeys) -> Variant {
    assert!(serves(keys), "{keys:?}: not fp8 or f16, or the head size is not a multiple of 16");
    let (head_dim, page) = keys.head_dim_and_page();
    let module = match keys {
        IndexKeys::Fp8 { .. } => "k_coop_index_fp8",
        IndexKeys::Cached(_) => "k_coop_f16",
    };
    Variant::new(&KERNEL).size("HEAD_DIM", head_dim).size("BLOCK_SIZE", page).module("k", module)
}

/// Workgroups for `rows` rows.
#[must_use]
pub fn grid(params: &IndexLogitsParams, rows: u32) -> [u32; 3] {
    [params.logit_stride.div_ceil(TILE), rows, 1]
}
