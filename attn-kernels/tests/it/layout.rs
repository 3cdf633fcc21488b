//! Bindings and parameters of kernels on the host against their WGSL.

mod checks;

use attn_kernels::kernel::attention::{Attention, Context};
use attn_kernels::kernel::paged_decode::Lanes;
use attn_kernels::kernel::{KvDtype, KvLayout, KvShape, paged_decode, paged_decode_subgroup};
use attn_kernels::reflect::interface;
use attn_kernels::{catalog, variants};
use std::collections::HashSet;
use std::path::Path;

#[test]
fn uniform_structs_are_the_host_structs() {
    checks::structs(&variants());
}

#[test]
fn bindings_are_those_of_the_wgsl() {
    checks::bindings(&variants());
}

#[test]
fn every_file_is_in_the_catalog_and_has_variants() {
    let wgsl = Path::new(env!("CARGO_MANIFEST_DIR")).join("wgsl");
    checks::files(&wgsl, &catalog(), &variants());
}

#[test]
fn workgroup_memory_of_paged_decode_fits_at_every_head_size() {
    let mut seen = HashSet::new();
    for head_dim in (8..=256).step_by(8).chain([512]) {
        for num_heads in [1, 2, 3, 4, 6, 7, 8, 16] {
            let shape = KvShape {
                num_kv_heads: 1,
                head_dim,
                block_size: 16,
                dtype: KvDtype::F16,
                layout: KvLayout::Native,
            };
            // Places of single tokens take the most.
            let tokens = Attention { context: Context::Tokens, ..Attention::default() };
            for lanes in [Lanes::Workgroup, Lanes::Alone(8), Lanes::Subgroup(8), Lanes::Subgroup(32)] {
                if lanes != Lanes::Workgroup && !paged_decode_subgroup::serves(&shape, lanes) {
                    continue;
                }
                let variant = paged_decode::variant(&shape, num_heads, lanes, &tokens);
                // Groups of other sizes are often served as the same ones.
                if !seen.insert(variant.clone()) {
                    continue;
                }
                let bytes = interface(&variant).unwrap().workgroup_bytes;
                let what = format!("head size {head_dim}, {num_heads} heads a KV head, {lanes:?}");
                assert!(bytes <= 16_384, "{what}: {bytes} bytes");
            }
        }
    }
}
