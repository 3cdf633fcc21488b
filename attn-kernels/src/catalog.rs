//! Every kernel of this crate, the modules that they share, and the variants that reports and tests list.

use crate::kernel::paged_prefill::KeyLoads;
use crate::kernel::{self, KvDtype, KvShape};
use crate::source::Modules;
use crate::{Kernel, Level, Variant};

macro_rules! modules {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../wgsl/shared/", $name, ".wgsl")))),*]
    };
}

/// The shared modules: kernels of other crates may import them too.
pub const MODULES: Modules = modules![
    "flat",
    "keys_broadcast_f16",
    "keys_broadcast_f32",
    "keys_uniform",
    "kv_f16",
    "kv_f32",
    "kv_write_f16",
    "kv_write_f32",
    "numbers",
    "partition",
    "reduce_subgroup",
    "reduce_tree",
];

/// Every kernel, by name.
#[must_use]
pub fn catalog() -> Vec<&'static Kernel> {
    vec![
        &kernel::cache_write::KERNEL,
        &kernel::copy_blocks::KERNEL,
        &kernel::lse_merge::KERNEL,
        &kernel::paged_decode::KERNEL,
        &kernel::paged_prefill::KERNEL,
        &kernel::paged_prefill_coop::KERNEL,
        &kernel::paged_reduce::KERNEL,
    ]
}

/// A variant as reports and file names call it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedVariant {
    /// The kernel's name, and after a hyphen what is special: `paged_decode-f16`.
    pub name: String,
    /// What it needs of an adapter.
    pub level: Level,
    /// The variant, at sizes that are usual in models.
    pub variant: Variant,
}

impl NamedVariant {
    /// The kernel's name, `-` and `part`; without a part the kernel's name.
    #[must_use]
    pub fn new(part: &str, level: Level, variant: Variant) -> Self {
        let kernel = variant.kernel.name;
        let name = if part.is_empty() { kernel.into() } else { format!("{kernel}-{part}") };
        Self { name, level, variant }
    }
}

/// One variant of every kernel for each choice of modules (numbers differ from model to model), by name.
#[must_use]
pub fn variants() -> Vec<NamedVariant> {
    variants_of(128)
}

/// As [`variants`], of heads of `head_dim` elements: software drivers compile small ones much faster.
#[must_use]
pub fn variants_of(head_dim: u32) -> Vec<NamedVariant> {
    use kernel::{
        cache_write, copy_blocks, lse_merge, paged_decode, paged_prefill, paged_prefill_coop, paged_reduce,
    };
    let num_heads = 32;
    let shape = |dtype| KvShape { num_kv_heads: 8, head_dim, block_size: 16, dtype };
    let types = [("f16", shape(KvDtype::F16)), ("f32", shape(KvDtype::F32))];
    let baseline = |part: &str, variant| NamedVariant::new(part, Level::Baseline, variant);

    let mut all = Vec::new();
    all.extend(types.map(|(part, shape)| baseline(part, cache_write::variant(&shape))));
    all.push(baseline("", copy_blocks::variant()));
    all.push(baseline("", lse_merge::variant(head_dim)));
    for (name, level) in [("", Level::Baseline), ("subgroup-", Level::Subgroup)] {
        all.extend(types.map(|(part, shape)| {
            let variant = paged_decode::variant(&shape, num_heads, level);
            NamedVariant::new(&format!("{name}{part}"), level, variant)
        }));
    }
    all.extend(types.map(|(part, shape)| {
        let variant = paged_prefill::variant(&shape, num_heads, KeyLoads::Broadcast);
        NamedVariant::new(&format!("broadcast-{part}"), Level::Subgroup, variant)
    }));
    all.extend(
        types.map(|(part, shape)| {
            baseline(part, paged_prefill::variant(&shape, num_heads, KeyLoads::Uniform))
        }),
    );
    all.push(NamedVariant::new("f16", Level::Coop, paged_prefill_coop::variant(&types[0].1)));
    all.push(baseline("", paged_reduce::variant(&types[0].1)));
    all
}
