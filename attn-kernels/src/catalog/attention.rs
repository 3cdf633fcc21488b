//! Variants of the attention kernels.

use super::NamedVariant;
use crate::Level;
use crate::kernel::attention::Attention;
use crate::kernel::paged_prefill::KeyLoads;
use crate::kernel::{KvShape, paged_decode, paged_prefill, paged_prefill_coop, paged_reduce};

/// Dense and sparse variants for `num_heads` query heads over caches of these types, f16 first.
pub(super) fn variants(num_heads: u32, types: &[(&str, KvShape); 2]) -> Vec<NamedVariant> {
    [("", Attention::default()), ("blocks-", Attention::blocks(64))]
        .iter()
        .flat_map(|(name, attention)| variants_of(name, attention, num_heads, types))
        .collect()
}

fn variants_of(
    name: &str,
    attention: &Attention,
    num_heads: u32,
    types: &[(&str, KvShape); 2],
) -> Vec<NamedVariant> {
    let mut all = Vec::new();
    for (dtype, shape) in types {
        for (reduce, level) in [("", Level::Baseline), ("subgroup-", Level::Subgroup)] {
            let variant = paged_decode::variant(shape, num_heads, level, attention);
            all.push(NamedVariant::new(&format!("{name}{reduce}{dtype}"), level, variant));
        }
        for (loads, part, level) in
            [(KeyLoads::Uniform, "", Level::Baseline), (KeyLoads::Broadcast, "broadcast-", Level::Subgroup)]
        {
            let variant = paged_prefill::variant(shape, num_heads, loads, attention);
            all.push(NamedVariant::new(&format!("{name}{part}{dtype}"), level, variant));
        }
    }
    let f16 = &types[0].1;
    let coop = paged_prefill_coop::variant(f16, attention);
    all.push(NamedVariant::new(&format!("{name}f16"), Level::Coop, coop));
    let reduce = paged_reduce::variant(f16, attention);
    all.push(NamedVariant::new(name.trim_end_matches('-'), Level::Baseline, reduce));
    all
}
