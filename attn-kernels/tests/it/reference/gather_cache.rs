//! Refusals of `gather_cache`.

use attn_kernels::kernel::gather_cache::{self, GatherCacheParams};

#[test]
fn spans_outside_their_buffers_are_refused() {
    let shape = super::layer::shape_of(2, attn_kernels::kernel::KvDtype::F16).0;
    let params = |max_keys| GatherCacheParams {
        num_kv_heads: 2,
        list_stride: 0,
        k_scale: 1.0,
        v_scale: 1.0,
        max_keys,
    };
    let said = |span, max_keys| {
        let tables = (&[0, 7, 8, 1][..], 8);
        gather_cache::check(&shape, &params(max_keys), &[[0; 4], span], tables, 64).unwrap_err().to_string()
    };
    assert_eq!(said([5, 4, 0, 0], 9), "gather_cache: first key of entry 1 is 5, the limit is 4");
    assert_eq!(said([0, 40, 30, 0], 40), "gather_cache: end in the output of entry 1 is 70, the limit is 64");
    assert_eq!(said([0, 40, 0, 2], 40), "gather_cache: end in the tables of entry 1 is 5, the limit is 4");
    assert_eq!(
        said([0, 40, 0, 0], 40),
        "gather_cache: block of the table + 1 of entry 1 is 9, the limit is 8"
    );
    assert_eq!(said([0; 4], 1 << 19), "gather_cache: workgroups of a span is 131072, the limit is 65535");
}
